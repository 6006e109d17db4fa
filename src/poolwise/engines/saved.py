"""Saved: moments in place of rows.

Saved moments answer the questions they were read for, and no others: a hash of roles and
targets rejects the rest, and a manifest of counts fixes the mixture.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import reduce
from hashlib import sha256
from operator import add
from typing import TYPE_CHECKING, NoReturn

from sqlglot import exp

from poolwise.errors import RefusedError
from poolwise.log.log import ONLY_LOGGER
from poolwise.log.policies import as_policy
from poolwise.log.policy import expression_of
from poolwise.rows.rules import RoleColumns, double, number, string

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlglot.expressions import Expr as Expression

    from poolwise.errors import Fault, Finding
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.moments import Moments
    from poolwise.moments.terms import Needs, Term

FORMAT = 1  # of the fingerprint, of saved files and of the columns of an answer
LETTERS = 16


@dataclass(frozen=True)
class Question:
    """Fingerprints of the roles of a log.

    Attributes:
        roles: Of the logger, the reward and the rules.
        targets: Of each target.
        mixture: Of the probabilities under every logger; empty where they are not known.
    """

    roles: str
    targets: Mapping[str, str]
    mixture: str = ""

    def mark(self, needs: Needs) -> str:
        """What an answer to exactly these needs is marked with."""
        parts = [sorted(map(_factors, part)) for part in (needs.means, needs.extremes)]
        groups = sorted(sorted(map(_factors, group)) for group in needs.groups)
        asked = [self.roles, dict(self.targets), self.mixture, *parts, groups]
        return f"{FORMAT}:{_fingerprint(asked)}"


def question(log: Log, targets: Mapping[str, PolicyLike]) -> Question:
    """The question that a log and its targets ask; where the rows are does not matter.

    >>> from poolwise.log import Log
    >>> day = [Log(f"{k}.parquet", reward="r", propensity="p") for k in (1, 2)]
    >>> question(day[0], {"new": "t"}) == question(day[1], {"new": "t"})
    True
    >>> question(day[0], {"new": "t"}) == question(day[1], {"new": "u"})
    False
    """
    logger = ONLY_LOGGER if log.logger is None else _text(log.logger)
    rules = [log.log_probabilities, log.on_fault]
    known = {str(k): _text(v) for k, v in (log.propensities or {}).items() if v is not None}
    own = None if log.propensity is None else _text(log.propensity)
    return Question(
        _fingerprint([logger, _text(log.reward), rules]),
        {str(name): _fingerprint(_text(policy)) for name, policy in targets.items()},
        _fingerprint([known, own]) if log.crossed else "",
    )


def _text(value: PolicyLike) -> str:
    policy = as_policy(value)
    expression = expression_of(policy)
    if expression is None:  # Python: its numbers are in the moments, its code is not
        return f"{type(policy).__name__} in Python"
    return expression.sql(dialect="duckdb", normalize_functions=False)


def _factors(term: Term) -> list[list[str]]:
    return [[f.name, f.logger, f.target, f.rule, repr(f.bound)] for f in term.factors]


def _fingerprint(value: object) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return sha256(text.encode()).hexdigest()[:LETTERS]


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


def with_manifest(
    table: RoleColumns, counts: Mapping[str, float], present: Collection[str]
) -> RoleColumns:
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


def _label(table: RoleColumns) -> Expression:
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


@dataclass(frozen=True, eq=False)
class SavedRows:
    """Moments in the place of rows; answers what `engines.base.Rows` promises, or refuses.

    Attributes:
        known: Moments of each logger, in the order in which loggers are shown.
        dropped: Whether rows that break a rule were left out, uncounted.
        notes: What a reader must know of how these moments came about.
    """

    known: Mapping[str, Moments]
    dropped: bool = False
    notes: tuple[Finding, ...] = ()

    @property
    def by_kernel(self) -> bool:
        return False

    @property
    def rereadable(self) -> bool:
        return False

    @property
    def counts(self) -> dict[str, int]:
        return {logger: m.count for logger, m in self.known.items()}

    @property
    def found(self) -> dict[str, int]:
        return self.counts

    def check(self) -> tuple[Fault, ...]:
        """Rules were kept when the moments were made; what was left out is not known."""
        if not self.dropped:
            _needs_rows("checking rows")
        return ()

    def moments(self, needs: Needs) -> dict[str, Moments]:
        """The moments that are asked for, if they were saved."""
        names = {term: term for term in needs.terms}
        for m in self.known.values():
            if not all(map(m.has, names)) or not _serves(m, needs):
                raise RefusedError(
                    "not-saved",
                    "these estimators need averages that the saved moments do not hold: make "
                    "them with the same estimators, and for the same targets",
                )
        return {logger: m.select(names) for logger, m in self.known.items()}

    def bucketed(self, needs: Sequence[Needs], buckets: int) -> NoReturn:
        """Refused: buckets are made from rows."""
        del needs, buckets
        _needs_rows("resampling (intervals by jackknife or bootstrap, clusters, cross-fitting)")

    def without(self, logger: str) -> NoReturn:
        """Refused: without a logger every row has another weight."""
        _needs_rows(f"leaving out logger {logger!r} (which_logs)")


def _serves(m: Moments, needs: Needs) -> bool:
    """Whether every pair and extreme that is asked for is there."""
    try:
        for left, right in needs.pairs:
            m.scatter_of([left, right])
        for term in needs.extremes:
            m.max(term)
    except KeyError:
        return False
    return True


def _needs_rows(what: str) -> NoReturn:
    raise RefusedError(
        "needs-rows",
        f"{what} needs the rows, and there are only moments of them: evaluate the log itself, "
        "or do without (interval='student', no `cluster`)",
    )


MIXED = frozenset({"balanced_weight", "ratio", "inverse_ratio"})


def of_mixture(term: Term) -> bool:
    """Whether a term changes with the mixture, and so with every logger's rows."""
    return any(factor.name in MIXED for factor in term.factors)
