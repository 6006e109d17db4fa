"""Terms: products of row columns, the only thing an engine averages.

An estimator does not read rows; it declares which products of row columns it
needs the mean, the scatter or the extremes of (`Needs`).  The declarations of
all estimators are united, bound to each target, and answered in one pass.

The row columns, in the paper's symbols:

=================  ===========================================================
reward             delta
weight             target / logger that wrote the row
balanced_weight    target / mixture of the loggers
ratio[k]           logger k / mixture
inverse_ratio[k]   mixture / logger k; `UNSUPPORTED` where logger k is zero
unsupported[k]     1 where logger k is zero, else 0
overlap            smallest of all loggers / logger that wrote the row
predicted_reward   what a reward model expects of the logged action
predicted_value    what it expects of the target in this context
residual           reward - predicted_reward
=================  ===========================================================

A balanced weight may be held back by a rule with a bound: "clip" cuts it at the
bound, "switch" makes it 0 above the bound, "optimistic" turns w into
bound * w / (w * w + bound).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

UNSUPPORTED = 1e100  # stands for infinity where a logger is zero: finite, so it merges
OF_TARGET = frozenset({"weight", "balanced_weight", "predicted_value"})
OF_MODEL = frozenset({"predicted_reward", "predicted_value", "residual"})


@dataclass(frozen=True, order=True)
class Factor:
    """One row column.

    Attributes:
        name: Kind of column, from the table above.
        logger: The logger it speaks of, empty where it speaks of none.
        target: The target it belongs to, empty until bound.
        rule: How a balanced weight is held back, empty where it is not.
        bound: The bound of that rule.
    """

    name: str
    logger: str = ""
    target: str = ""
    rule: str = ""
    bound: float = 0.0

    def bind(self, target: str) -> Factor:
        return replace(self, target=target) if self.name in OF_TARGET else self


@dataclass(frozen=True, order=True)
class Term:
    """A product of row columns: the unit an engine averages.

    Attributes:
        factors: Row columns in sorted order, so that equal products are equal terms.
    """

    factors: tuple[Factor, ...]

    @cached_property
    def _hash(self) -> int:
        return hash(self.factors)

    def __hash__(self) -> int:
        return self._hash  # asked for thousands of times where there are many targets

    @cached_property
    def key(self) -> tuple[object, ...]:
        """What terms are sorted by: plain values compare quickly."""
        return tuple((f.name, f.logger, f.target, f.rule, f.bound) for f in self.factors)

    def __mul__(self, other: Term) -> Term:
        return Term(tuple(sorted(self.factors + other.factors)))

    def bind(self, target: str) -> Term:
        """The same product for one target among several."""
        return Term(tuple(sorted(f.bind(target) for f in self.factors)))


REWARD = Term((Factor("reward"),))
OVERLAP = Term((Factor("overlap"),))
OVERLAP_REWARD = Term((Factor("overlap"), Factor("reward")))
WEIGHT = Term((Factor("weight"),))
BALANCED_WEIGHT = Term((Factor("balanced_weight"),))
WEIGHTED_REWARD = REWARD * WEIGHT
BALANCED_REWARD = REWARD * BALANCED_WEIGHT
PREDICTED_REWARD = Term((Factor("predicted_reward"),))
PREDICTED_VALUE = Term((Factor("predicted_value"),))
RESIDUAL = Term((Factor("residual"),))


def ratio(logger: str) -> Term:
    """Logger over mixture: its mean over all rows is 1."""
    return Term((Factor("ratio", logger),))


def second_moment(logger: str) -> Term:
    r"""What the rows of all loggers say of one logger's divergence.

    The mean of $\delta^2 \bar\pi^2 / (\pi_i \pi_{avg})$ over the mixture is
    $E_i[(w_i \delta)^2]$.
    """
    return BALANCED_REWARD * BALANCED_REWARD * Term((Factor("inverse_ratio", logger),))


def weight_moment(logger: str) -> Term:
    r"""The same without rewards: its mean over the mixture is $E_i[w_i^2]$."""
    return BALANCED_WEIGHT * BALANCED_WEIGHT * Term((Factor("inverse_ratio", logger),))


def residual_moment(logger: str) -> Term:
    r"""The second moment of weighted residuals, $E_i[w_i^2 (\delta - \hat q)^2]$."""
    return RESIDUAL * RESIDUAL * weight_moment(logger)


def unsupported_weight(logger: str) -> Term:
    """Its mean over all rows is how often the target plays what a logger never plays."""
    return BALANCED_WEIGHT * Term((Factor("unsupported", logger),))


@dataclass(frozen=True)
class Needs:
    """What is asked of the rows.

    Attributes:
        means: Terms whose mean is wanted.
        groups: Groups of terms; every pair within a group gets its scatter.
        extremes: Terms whose smallest and largest value are wanted.
        tails: Terms whose largest values are wanted, some thousands of them.
        histograms: Terms whose distribution is wanted.
    """

    means: tuple[Term, ...] = ()
    groups: tuple[tuple[Term, ...], ...] = ()
    extremes: tuple[Term, ...] = ()
    tails: tuple[Term, ...] = ()
    histograms: tuple[Term, ...] = ()

    def __or__(self, other: Needs) -> Needs:
        return unite([self, other])

    @property
    def modelled(self) -> bool:
        """Whether some term reads what a reward model says."""
        return any(f.name in OF_MODEL for t in self.terms for f in t.factors)

    def bind(self, target: str) -> Needs:
        """The same needs for one target among several."""
        return Needs(
            tuple(t.bind(target) for t in self.means),
            tuple(tuple(t.bind(target) for t in group) for group in self.groups),
            tuple(t.bind(target) for t in self.extremes),
            tuple(t.bind(target) for t in self.tails),
            tuple(t.bind(target) for t in self.histograms),
        )

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """All terms, those with a scatter first.

        Both parts are sorted, so that the query is the same text on every run.
        """
        every = {*self.means, *self.extremes, *self.tails, *self.histograms}
        return (*self.scattered, *_unique(every - set(self.scattered)))

    @cached_property
    def scattered(self) -> tuple[Term, ...]:
        """Terms with a scatter, sorted."""
        return _unique(t for group in self.groups for t in group)

    @cached_property
    def pairs(self) -> list[tuple[Term, Term]]:
        """Pairs of terms whose scatter is wanted, each once, in sorted order."""
        found = {
            pair
            for group in self.groups
            for pair in combinations_with_replacement(_unique(group), 2)
        }
        return sorted(found, key=lambda pair: (pair[0].key, pair[1].key))


def unite(needs: Iterable[Needs]) -> Needs:
    """All needs together, each once."""
    every = tuple(needs)
    return Needs(
        _unique(t for n in every for t in n.means),
        tuple(dict.fromkeys(group for n in every for group in n.groups)),
        _unique(t for n in every for t in n.extremes),
        _unique(t for n in every for t in n.tails),
        _unique(t for n in every for t in n.histograms),
    )


def _unique(terms: Iterable[Term]) -> tuple[Term, ...]:
    return tuple(sorted(set(terms), key=lambda term: term.key))
