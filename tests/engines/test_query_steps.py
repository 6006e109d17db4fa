"""Each step of the query, word for word: what a mixture, a weight and a centre are in SQL.

Both sides are written by the same generator, so that only the query is compared and not
the taste of a version of SQLGlot.  What makes a row good is the business of
`tests/engines/test_check.py`; here it is the single word GOOD.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlglot
from sqlglot import exp

from poolwise.engines.sql import Request, columns_query, factor_name, moments_query
from poolwise.moments.terms import (
    BALANCED_WEIGHT,
    OVERLAP,
    PREDICTED_REWARD,
    PREDICTED_VALUE,
    RESIDUAL,
    REWARD,
    WEIGHT,
    Factor,
    Needs,
    Term,
    ratio,
    second_moment,
    unsupported_weight,
    weight_moment,
)
from poolwise.rows.rules import RoleColumns, column, good

if TYPE_CHECKING:
    from collections.abc import Mapping

COUNTS = {"a": 3, "b": 1}
PAIR = Needs((REWARD,), ((REWARD * BALANCED_WEIGHT, WEIGHT),), (WEIGHT,), (WEIGHT,)).bind("two")
FIRST, SECOND = PAIR.scattered


def table(**roles: Any) -> RoleColumns:  # noqa: ANN401 - any role of a table
    """Two loggers and two targets; other roles as given."""
    known: dict[str, Any] = {
        "relation": exp.to_table("log"),
        "logger": column("who"),
        "reward": column("r"),
        "propensity": column("p"),
        "propensities": {"a": column("pa"), "b": column("pb")},
        "targets": {"one": column("t1"), "two": column("t2")},
        "labels": ("a", "b"),
    }
    return RoleColumns(**(known | roles))


def steps_of(query: exp.Select, of: RoleColumns) -> dict[str, str]:
    """The text of each common table expression but the first, and of the query itself."""
    outer = query.copy()
    for steps in list(outer.find_all(exp.With)):
        steps.pop()
    found = {cte.alias: cte.this.sql("duckdb") for cte in query.ctes}
    found["query"] = outer.sql("duckdb")
    rule = good(of).sql("duckdb")
    return {name: text.replace(rule, "GOOD") for name, text in found.items() if name != "rows"}


def assert_steps(request: Request, expected: Mapping[str, str]) -> None:
    found = steps_of(moments_query(request), request.table)
    for name, text in expected.items():
        assert found[name] == sqlglot.parse_one(text, dialect="duckdb").sql("duckdb"), name


OUTER = """
    SELECT "terms"."logger", COUNT(*) AS "rows", SUM("terms"."bad") AS "bad",
        SUM(("terms"."x_0" - "centres"."c_0")) AS "sum_0",
        SUM(("terms"."x_1" - "centres"."c_1")) AS "sum_1",
        SUM("terms"."x_2") AS "sum_2",
        SUM(("terms"."x_0" - "centres"."c_0") * ("terms"."x_0" - "centres"."c_0"))
            AS "scatter_0_0",
        SUM(("terms"."x_0" - "centres"."c_0") * ("terms"."x_1" - "centres"."c_1"))
            AS "scatter_0_1",
        SUM(("terms"."x_1" - "centres"."c_1") * ("terms"."x_1" - "centres"."c_1"))
            AS "scatter_1_1",
        MIN(("terms"."x_1" - "centres"."c_1")) AS "lowest_1",
        MAX(("terms"."x_1" - "centres"."c_1")) AS "largest_1",
        MIN("centres"."c_0") AS "centre_0", MIN("centres"."c_1") AS "centre_1"
    FROM terms LEFT JOIN centres ON "terms"."logger" = "centres"."logger"
    GROUP BY "terms"."logger" ORDER BY "terms"."logger"
"""


def test_a_query_that_stands_alone_counts_its_rows_and_finds_its_centres() -> None:
    request = Request(table(), PAIR)
    expected = {
        "totals": """
            SELECT COUNT(CASE WHEN "logger" = 'a' THEN 1 END) AS "n_0",
                COUNT(CASE WHEN "logger" = 'b' THEN 1 END) AS "n_1" FROM rows""",
        "probs": """
            SELECT "logger", "reward", "p_0", "p_1", "t_0", "t_1", "propensity" AS "own",
                CASE WHEN GOOD THEN 0 ELSE 1 END AS "bad" FROM rows""",
        "ratios": """
            SELECT "logger", "bad", "reward",
                "t_1" / NULLIF("mixture", 0.0e0) AS "balanced_weight_1",
                "t_1" / NULLIF("own", 0.0e0) AS "weight_1"
            FROM (
                SELECT *, (((CAST("totals"."n_0" AS DOUBLE) * "p_0")
                        + (CAST("totals"."n_1" AS DOUBLE) * "p_1"))
                    / NULLIF(CAST("totals"."n_0" AS DOUBLE) + CAST("totals"."n_1" AS DOUBLE),
                        0.0e0)) AS "mixture"
                FROM probs CROSS JOIN totals) AS mixed""",
        "shared": "SELECT * FROM ratios",
        "terms": """
            SELECT "logger", "bad", "balanced_weight_1" * "reward" AS "x_0",
                "weight_1" AS "x_1", "reward" AS "x_2" FROM shared""",
        "centres": """
            SELECT "logger", AVG("x_0") AS "c_0", AVG("x_1") AS "c_1" FROM terms
            GROUP BY "logger" """,
        "query": OUTER,
    }
    assert_steps(request, expected)
    assert list(steps_of(moments_query(request), request.table)) == list(expected)


def test_known_counts_and_centres_stand_in_the_query_as_numbers() -> None:
    centres = {"b": {FIRST: -0.5, SECOND: -1.5}, "a": {FIRST: 0.0, SECOND: 1.0}}
    request = Request(table(), PAIR, COUNTS, by_logger=centres)
    expected = {
        "ratios": """
            SELECT "logger", "bad", "reward",
                "t_1" / NULLIF("mixture", 0.0e0) AS "balanced_weight_1",
                "t_1" / NULLIF("own", 0.0e0) AS "weight_1"
            FROM (SELECT *, ((0.75e0 * "p_0") + (0.25e0 * "p_1")) AS "mixture" FROM probs)
                AS mixed""",
        "centres": """
            SELECT * FROM (
                SELECT 'a' AS "logger", 0.0e0 AS "c_0", 1.0e0 AS "c_1"
                UNION ALL
                SELECT 'b' AS "logger", -0.5e0 AS "c_0", -1.5e0 AS "c_1") AS lines""",
        "query": OUTER,
    }
    assert_steps(request, expected)
    names = ["probs", "ratios", "shared", "terms", "centres", "query"]
    assert list(steps_of(moments_query(request), request.table)) == names


def test_a_logger_without_rows_has_no_part_in_the_mixture() -> None:
    found = steps_of(moments_query(Request(table(), PAIR, {"b": 4})), table())["ratios"]
    assert '((0.0e0 * "p_0") + (1.0e0 * "p_1")) AS "mixture"' in found


def test_common_centres_are_taken_off_each_row() -> None:
    request = Request(table(), PAIR, COUNTS, common={FIRST: 0.0, SECOND: 1.0})
    expected = {
        "terms": """
            SELECT "logger", "bad", "balanced_weight_1" * "reward" AS "x_0",
                "weight_1" - 1.0e0 AS "x_1", "reward" AS "x_2" FROM shared""",
        "query": """
            SELECT "terms"."logger", COUNT(*) AS "rows", SUM("terms"."bad") AS "bad",
                SUM("terms"."x_0") AS "sum_0", SUM("terms"."x_1") AS "sum_1",
                SUM("terms"."x_2") AS "sum_2",
                SUM("terms"."x_0" * "terms"."x_0") AS "scatter_0_0",
                SUM("terms"."x_0" * "terms"."x_1") AS "scatter_0_1",
                SUM("terms"."x_1" * "terms"."x_1") AS "scatter_1_1",
                MIN("terms"."x_1") AS "lowest_1", MAX("terms"."x_1") AS "largest_1"
            FROM terms GROUP BY "terms"."logger" ORDER BY "terms"."logger" """,
    }
    assert_steps(request, expected)
    assert "centres" not in steps_of(moments_query(request), request.table)


def test_buckets_are_carried_along_and_tails_are_asked_for() -> None:
    needs = Needs(tails=(WEIGHT,)).bind("one")
    assert_steps(
        Request(table(bucket=column("k")), needs, COUNTS, tail=7),
        {
            "probs": """
                SELECT "logger", "reward", "bucket", "p_0", "p_1", "t_0", "t_1",
                    "propensity" AS "own", CASE WHEN GOOD THEN 0 ELSE 1 END AS "bad"
                FROM rows""",
            "ratios": """
                SELECT "logger", "bad", "reward", "bucket",
                    "t_0" / NULLIF("own", 0.0e0) AS "weight_0"
                FROM (SELECT *, ((0.75e0 * "p_0") + (0.25e0 * "p_1")) AS "mixture" FROM probs)
                    AS mixed""",
            "terms": 'SELECT "logger", "bad", "bucket", "weight_0" AS "x_0" FROM shared',
            "query": """
                SELECT "terms"."logger", "terms"."bucket", COUNT(*) AS "rows",
                    SUM("terms"."bad") AS "bad", SUM("terms"."x_0") AS "sum_0",
                    MAX("terms"."x_0", 7) AS "tail_0"
                FROM terms GROUP BY "terms"."logger", "terms"."bucket"
                ORDER BY "terms"."logger", "terms"."bucket" """,
        },
    )


def test_every_row_column_is_its_formula() -> None:
    held = [
        Term((Factor("balanced_weight", rule=r, bound=2.0),))
        for r in ("clip", "optimistic", "switch")
    ]
    means = (
        second_moment("a"),
        second_moment("b"),
        unsupported_weight("b"),
        *held,
        OVERLAP,
        PREDICTED_REWARD,
        PREDICTED_VALUE,
        ratio("a"),
        RESIDUAL,
    )
    modelled = table(
        drop=True,
        predicted_reward=column("q"),
        predicted_values={"one": column("v1"), "two": column("v2")},
    )
    weight = '"t_1" / NULLIF("mixture", 0.0e0)'
    assert_steps(
        Request(modelled, Needs(means).bind("two"), COUNTS),
        {
            "kept": "SELECT * FROM rows WHERE GOOD",
            "probs": """
                SELECT "logger", "reward", "v_0", "v_1", "predicted_reward", "p_0", "p_1",
                    "t_0", "t_1", "propensity" AS "own",
                    CASE WHEN GOOD THEN 0 ELSE 1 END AS "bad" FROM kept""",
            "ratios": f"""
                SELECT "logger", "bad", "reward", {weight} AS "balanced_weight_1",
                    LEAST(({weight}), 2.0e0) AS "balanced_weight_1_clip_2.0",
                    (2.0e0 * ({weight})) / ((({weight}) * ({weight})) + 2.0e0)
                        AS "balanced_weight_1_optimistic_2.0",
                    CASE WHEN ({weight}) <= 2.0e0 THEN ({weight}) ELSE 0.0e0 END
                        AS "balanced_weight_1_switch_2.0",
                    CASE WHEN "p_0" > 0.0e0 THEN "mixture" / NULLIF("p_0", 0.0e0)
                        ELSE 1e+100 END AS "inverse_ratio_0",
                    CASE WHEN "p_1" > 0.0e0 THEN "mixture" / NULLIF("p_1", 0.0e0)
                        ELSE 1e+100 END AS "inverse_ratio_1",
                    LEAST("p_0", "p_1") / NULLIF("own", 0.0e0) AS "overlap",
                    "predicted_reward" AS "predicted_reward", "v_1" AS "predicted_value_1",
                    "p_0" / NULLIF("mixture", 0.0e0) AS "ratio_0",
                    "reward" - "predicted_reward" AS "residual",
                    CASE WHEN "p_1" > 0.0e0 THEN 0.0e0 ELSE 1.0e0 END AS "unsupported_1"
                FROM (SELECT *, ((0.75e0 * "p_0") + (0.25e0 * "p_1")) AS "mixture" FROM probs)
                    AS mixed""",
            "shared": """
                SELECT *, "balanced_weight_1" * "balanced_weight_1" * "reward" * "reward"
                    AS "s_0" FROM ratios""",
            "terms": """
                SELECT "logger", "bad", "s_0" * "inverse_ratio_0" AS "x_0",
                    "s_0" * "inverse_ratio_1" AS "x_1",
                    "balanced_weight_1" * "unsupported_1" AS "x_2",
                    "balanced_weight_1_clip_2.0" AS "x_3",
                    "balanced_weight_1_optimistic_2.0" AS "x_4",
                    "balanced_weight_1_switch_2.0" AS "x_5", "overlap" AS "x_6",
                    "predicted_reward" AS "x_7", "predicted_value_1" AS "x_8",
                    "ratio_0" AS "x_9", "residual" AS "x_10" FROM shared""",
        },
    )


def test_products_of_two_columns_that_terms_share_are_computed_once() -> None:
    means = (
        *map(weight_moment, "ab"),  # share the squared weight
        *map(unsupported_weight, "ab"),  # share the weight alone, which is no product
    )
    assert_steps(
        Request(table(), Needs(means).bind("one"), COUNTS),
        {
            "shared": """
                SELECT *, "balanced_weight_0" * "balanced_weight_0" AS "s_0" FROM ratios""",
            "terms": """
                SELECT "logger", "bad", "s_0" * "inverse_ratio_0" AS "x_0",
                    "s_0" * "inverse_ratio_1" AS "x_1",
                    "balanced_weight_0" * "unsupported_0" AS "x_2",
                    "balanced_weight_0" * "unsupported_1" AS "x_3" FROM shared""",
        },
    )


def test_logarithms_are_taken_back_relative_to_the_largest_of_the_loggers() -> None:
    needs = Needs((WEIGHT, BALANCED_WEIGHT)).bind("one")
    top = 'GREATEST("propensity", "p_0", "p_1")'
    assert_steps(
        Request(table(log_probabilities=True, mixture=column("m")), needs, COUNTS),
        {
            "probs": f"""
                SELECT "logger", "reward", EXP("p_0" - {top}) AS "p_0",
                    EXP("p_1" - {top}) AS "p_1", EXP("t_0" - {top}) AS "t_0",
                    EXP("t_1" - {top}) AS "t_1",
                    EXP("estimated_mixture" - {top}) AS "estimated_mixture",
                    EXP(("propensity" - {top})) AS "own",
                    CASE WHEN GOOD THEN 0 ELSE 1 END AS "bad" FROM rows""",
            "ratios": """
                SELECT "logger", "bad", "reward",
                    "t_0" / NULLIF("mixture", 0.0e0) AS "balanced_weight_0",
                    "t_0" / NULLIF("own", 0.0e0) AS "weight_0"
                FROM (SELECT *, "estimated_mixture" AS "mixture" FROM probs) AS mixed""",
        },
    )


def test_logarithms_of_one_propensity_are_taken_back_relative_to_it() -> None:
    needs = Needs((WEIGHT,)).bind("one")
    alone = table(log_probabilities=True, propensities={})
    request = Request(alone, needs)
    assert_steps(
        request,
        {
            "probs": """
                SELECT "logger", "reward", EXP("t_0" - "propensity") AS "t_0",
                    EXP("t_1" - "propensity") AS "t_1",
                    EXP(("propensity" - "propensity")) AS "own",
                    CASE WHEN GOOD THEN 0 ELSE 1 END AS "bad" FROM rows""",
            "ratios": """
                SELECT "logger", "bad", "reward", "t_0" / NULLIF("own", 0.0e0) AS "weight_0"
                FROM (SELECT * FROM probs) AS mixed""",
        },
    )
    assert "totals" not in steps_of(moments_query(request), alone)


def test_logarithms_of_one_logger_are_taken_back_relative_to_the_larger_of_two() -> None:
    alone = table(log_probabilities=True, propensities={"a": column("pa")})
    found = steps_of(moments_query(Request(alone, Needs((OVERLAP,)), {"a": 2})), alone)
    assert 'EXP("p_0" - GREATEST("propensity", "p_0")) AS "p_0"' in found["probs"]


def test_an_estimated_mixture_needs_no_propensities() -> None:
    needs = Needs((BALANCED_WEIGHT,)).bind("one")
    request = Request(table(propensities={}, mixture=column("m")), needs)
    assert_steps(
        request,
        {
            "ratios": """
                SELECT "logger", "bad", "reward",
                    "t_0" / NULLIF("mixture", 0.0e0) AS "balanced_weight_0"
                FROM (SELECT *, "estimated_mixture" AS "mixture" FROM probs) AS mixed"""
        },
    )


def test_the_overlap_of_one_logger_is_its_own_probability() -> None:
    request = Request(table(propensities={"a": column("pa")}), Needs((OVERLAP,)), {"a": 2})
    assert_steps(
        request,
        {
            "ratios": """
                SELECT "logger", "bad", "reward",
                    "p_0" / NULLIF("own", 0.0e0) AS "overlap"
                FROM (SELECT *, (1.0e0 * "p_0") AS "mixture" FROM probs) AS mixed"""
        },
    )


def test_a_limit_cuts_the_rows_and_nothing_else() -> None:
    request = Request(table(), PAIR, COUNTS)
    plain, cut = moments_query(request), moments_query(request, limit=5)
    assert plain.ctes[0].alias == cut.ctes[0].alias == "rows"
    assert cut.ctes[0].this.sql("duckdb") == plain.ctes[0].this.sql("duckdb") + " LIMIT 5"
    assert steps_of(cut, request.table) == steps_of(plain, request.table)


@pytest.mark.parametrize("counts", [None, COUNTS])
def test_the_columns_are_the_steps_up_to_the_ratios(counts: dict[str, int] | None) -> None:
    request = Request(table(), PAIR, counts)
    found, whole = columns_query(request), moments_query(request)
    totals = ["totals"] if counts is None else []
    assert [cte.alias for cte in found.ctes] == ["rows", *totals, "probs", "ratios"]
    steps = steps_of(found, request.table)
    assert steps.pop("query") == "SELECT * FROM ratios"
    assert steps.items() <= steps_of(whole, request.table).items()


def test_row_columns_have_short_names_without_labels() -> None:
    of = table()
    assert [
        factor_name(factor, of)
        for factor in (
            Factor("reward"),
            Factor("overlap"),
            Factor("predicted_reward"),
            Factor("residual"),
            Factor("weight", target="two"),
            Factor("balanced_weight", target="one", rule="clip", bound=0.1),
            Factor("ratio", "b"),
        )
    ] == [
        "reward",
        "overlap",
        "predicted_reward",
        "residual",
        "weight_1",
        "balanced_weight_0_clip_0.1",
        "ratio_1",
    ]
