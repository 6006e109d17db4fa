r"""Manifest: the loggers' counts that fix a mixture, where they are not those of these rows.

Rows of one day, or of one shard, are weighted against the mixture of *all* days or
shards: $\pi_{avg} = \sum_i a_i \pi_i$ with shares $a_i$ that were fixed beforehand.  Then, and
only then, do the moments of the parts add up to those of the whole.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from sqlglot import exp

from poolwise.engine.rows import Table, double, number, string

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlglot.expressions import Expr as Expression

SAME = 1e-12  # shares that differ by less than that weigh every row alike


def same_shares(left: Mapping[str, float], right: Mapping[str, float]) -> bool:
    """Whether two counts of the loggers make the same mixture.

    >>> same_shares({"a": 200, "b": 100}, {"b": 1, "a": 2})
    True
    >>> same_shares({"a": 201, "b": 100}, {"b": 1, "a": 2})
    False
    """
    whole = sum(left.values()), sum(right.values())
    if not all(whole):
        return False
    return all(
        abs(left.get(i, 0) / whole[0] - right.get(i, 0) / whole[1]) <= SAME
        for i in {*left, *right}
    )


def with_manifest(table: Table, counts: Mapping[str, float], present: Collection[str]) -> Table:
    """The same rows, weighted against the mixture that `counts` make.

    Only the loggers that are `present` must have rows here.
    """
    probs = {label: double(prob) for label, prob in table.propensities.items()}
    whole = sum(counts.values())
    used = [(counts[label] / whole, prob) for label, prob in probs.items()]
    mixed = _log_mixture(used) if table.log_probabilities else _mixture(used)
    own = exp.Case()
    for label, prob in probs.items():
        own = own.when(_label(table).eq(string(label)), prob.copy())
    return replace(
        table,
        mixture=mixed,
        propensity=own if table.propensity is None else table.propensity,
        labels=tuple(label for label in table.labels if label in present),
    )


def _label(table: Table) -> Expression:
    return exp.cast(table.logger.copy(), "varchar")


def _mixture(parts: Sequence[tuple[float, Expression]]) -> Expression:
    return reduce(add, [number(share) * prob.copy() for share, prob in parts])


def _log_mixture(parts: Sequence[tuple[float, Expression]]) -> Expression:
    """Relative to the largest, so that nothing vanishes however small it is."""
    several = [prob.copy() for _, prob in parts]
    top = exp.func("greatest", *several) if len(several) > 1 else several[0]
    raised = [
        (share, exp.func("exp", exp.paren(prob.copy() - top.copy()))) for share, prob in parts
    ]
    return top + exp.func("ln", exp.paren(_mixture(raised)))
