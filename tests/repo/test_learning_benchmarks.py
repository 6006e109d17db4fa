from __future__ import annotations

from benchmarks import honesty, learning


def lines(method: str, rewards: str, *normalised: float) -> list[learning.Line]:
    cell = {"set": "s", "rows": "1000", "rewards": rewards, "method": method, "value": "0"}
    return [
        {**cell, "seed": str(seed), "normalised": str(v)} for seed, v in enumerate(normalised)
    ]


def test_the_table_has_means_errors_and_the_worst_cell() -> None:
    method = learning.OURS
    found = lines(method, "clean", 0.5, 0.7) + lines(method, "noisy", -0.2, 0.2)
    beaten = lines(learning.TO_BEAT, "clean", 0.4, 0.6) + lines(
        learning.TO_BEAT, "noisy", 0.0, 0.0
    )
    text = learning.table([*found, *beaten], 1_000).splitlines()
    numbers = "2 | 0.600 (0.100) | 0% | 0.50 | 0.000 (0.200) | 50% | -0.20"
    assert text[2] == f"| {method} | {numbers} |"


def test_methods_with_fewer_than_two_draws_have_no_line() -> None:
    once = lines(learning.OURS, "clean", 0.5) + lines(learning.OURS, "noisy", 0.5)
    assert len(learning.table(once, 1_000).splitlines()) == 2


def test_coverage_and_verdicts_are_counted() -> None:
    setting, scheme = next(iter(honesty.SETTINGS)), next(iter(honesty.SCHEMES))
    head = {"setting": setting, "scheme": scheme}
    good = {"truth": "0.5", "value": "0.5", "lower": "0.4", "upper": "0.6"}
    far = {"truth": "0.7", "value": "0.6", "lower": "0.5", "upper": "0.6"}
    found = [
        {**head, **good, "seed": "0", "better": "1", "right": "1"},
        {**head, **far, "seed": "1", "better": "1", "right": "0"},
    ]
    text = honesty.table(found).splitlines()[2]
    numbers = "2 | 0.6000 | -0.0500 | 0.500 | 0.0750 | 0.500 | 0.500"
    assert text == f"| {setting} | {scheme} | {numbers} |"
