from __future__ import annotations

from benchmarks import honesty, learning


def line(method: str, rewards: str, normalised: float, rows: int = 1_000) -> learning.Line:
    values = {"set": "s", "seed": "0", "value": "0", "method": method, "rewards": rewards}
    return {**values, "rows": str(rows), "normalised": str(normalised)}


def test_the_table_has_means_errors_and_the_worst_cell() -> None:
    method = next(iter(learning.METHODS))
    lines = [line(method, "clean", 0.5), line(method, "clean", 0.7)]
    lines += [line(method, "noisy", -0.2), line(method, "noisy", 0.2)]
    text = learning.table(lines, 1_000).splitlines()[2]
    assert text == f"| {method} | 0.600 (0.100) | 0% | 0.50 | 0.000 (0.200) | 50% | -0.20 |"


def test_methods_without_measurements_are_left_open() -> None:
    assert learning.table([], 1_000).splitlines()[2].count("–") == 6


def test_coverage_and_verdicts_are_counted() -> None:
    setting, scheme = next(iter(honesty.SETTINGS)), next(iter(honesty.SCHEMES))
    head = {"setting": setting, "scheme": scheme}
    good = {"truth": "0.5", "value": "0.5", "lower": "0.4", "upper": "0.6"}
    far = {"truth": "0.7", "value": "0.6", "lower": "0.5", "upper": "0.6"}
    lines = [
        {**head, **good, "seed": "0", "better": "1", "right": "1"},
        {**head, **far, "seed": "1", "better": "1", "right": "0"},
    ]
    text = honesty.table(lines).splitlines()[2]
    numbers = "2 | 0.6000 | -0.0500 | 0.500 | 0.0750 | 0.500 | 0.500"
    assert text == f"| {setting} | {scheme} | {numbers} |"
