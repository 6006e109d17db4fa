"""Rules: SQL, the mask over batches, the kernel and `check` agree about every value."""

from __future__ import annotations

import math
import sys
from itertools import product

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from sqlglot import exp

from poolwise.engines.kernel import Kernel
from poolwise.engines.workspace import Workspace
from poolwise.moments.terms import REWARD, Needs
from poolwise.rows.layout import BadRowsError, plan_layout
from poolwise.rows.reader import good_rows
from poolwise.rows.rules import RoleColumns, Scale, breaches, column, good, rows

LARGEST = sys.float_info.max
EDGES = [
    -math.inf,
    -LARGEST,
    -2.0,
    -1e-9,
    -5e-324,
    0.0,
    5e-324,
    0.2,
    0.5,
    1.0,
    1.0 + 1e-9,
    70.0,
]
EDGES += [LARGEST, math.inf, math.nan]
SCALES = [Scale(logs=logs, densities=wide) for logs, wide in product((False, True), repeat=2)]
ROLES = {
    "with a propensity": ("propensity",),
    "without one": (),
    "with a mixture": ("propensity", "mixture"),
    "with predictions": ("propensity", "predicted_reward", "v"),
}


def table_of(scale: Scale, roles: tuple[str, ...]) -> RoleColumns:
    """Two loggers, of which the first wrote all rows."""
    return RoleColumns(
        relation=exp.to_table("log"),
        logger=column("logger"),
        reward=column("reward"),
        propensity=column("propensity") if "propensity" in roles else None,
        propensities={"a": column("p_0"), "b": column("p_1")},
        targets={"new": column("t_0")},
        labels=("a", "b"),
        scale=scale,
        mixture=column("estimated_mixture") if "mixture" in roles else None,
        predicted_reward=column("predicted_reward") if "v" in roles else None,
        predicted_values={"new": column("v_0")} if "v" in roles else {},
    )


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("roles", ROLES)
def test_every_evaluator_keeps_the_same_rows(roles: str, scale: Scale) -> None:
    table = table_of(scale, ROLES[roles])
    layout = plan_layout(table, {"a": 1, "b": 1})
    fine = -0.5 if scale.logs else 0.5
    lines = [dict.fromkeys(layout.columns, fine)]
    lines += [lines[0] | {name: value} for name in layout.columns for value in EDGES]
    lines += [lines[0] | {"p_0": v, "propensity": v} for v in EDGES]  # the gap is 0
    columns = {name: np.array([line[name] for line in lines]) for name in layout.columns}
    codes = np.zeros(len(lines), dtype=np.int8)

    masked = good_rows(codes, columns, layout).tolist()
    assert masked[0]
    assert 0 < sum(masked) < len(masked)
    log = pa.table({"logger": ["a"] * len(lines), **columns})
    found = [breach.broken for breach in breaches(table)]
    wanted = [good(table), exp.Not(this=exp.func("coalesce", exp.or_(*found), exp.false()))]
    query = exp.select(*wanted).from_("rows").with_("rows", as_=rows(table))
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("log", log)
        answers = connection.sql(query.sql(dialect="duckdb")).fetchall()
    assert answers == [(is_good, is_good) for is_good in masked]

    kernel = Kernel(layout, Workspace(Needs(means=(REWARD,))))
    for k, is_good in enumerate(masked):
        one = {name: values[k : k + 1] for name, values in columns.items()}
        try:
            kernel.together([(codes[:1], one)])
        except BadRowsError:
            assert not is_good
        else:
            assert is_good
