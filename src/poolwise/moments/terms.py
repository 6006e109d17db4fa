"""Terms: products of row columns that an engine averages.

An estimator declares the terms whose mean, scatter or extremes it needs (`Needs`).  The
needs of all estimators are united, bound to each target, and computed in one pass.

The row columns are called factors.  `FACTORS` defines each of them by quantities of a row, from
which the kernel, the queries and the enumeration compute it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations_with_replacement
from threading import Lock
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Iterable

UNSUPPORTED = 1e100  # finite stand-in for infinity, so that moments merge
MOST_CACHED = 10_000  # terms of loggers and periods, and products

QUANTITIES = {  # what an engine knows about a row, and what it must be told to find it
    "reward": "row",
    "predicted_reward": "row",  # by a reward model, for the logged action
    "predicted_value": "target",  # mean prediction under the target in this context
    "target": "target",  # probabilities of the logged action under the target,
    "own": "row",  # the logger of the row,
    "logger": "logger",  # a logger,
    "least": "row",  # the logger that plays it least,
    "mixture": "row",  # the loggers, mixed in proportion to their rows,
    "others": "logger",  # the loggers except one, mixed likewise,
    "period_mixture": "row",  # the loggers of the row's period,
    "period": "period",  # the loggers of a period
}
SHRINKS = ("clip", "switch", "optimistic")
WITHIN = ("switch", "within")
AT_MOST = "at_most"
GAINS = ("gain", "loss")


@dataclass(frozen=True)
class Definition:
    """Formula of a factor: above / below, or above - minus, or above alone.

    With bound b, the rule "clip" cuts a weight w at b, "switch" makes it 0 above b, and
    "optimistic" turns it into b * w / (w * w + b).  The rule "within" turns it into 1 where
    0 < w <= b and into 0 elsewhere.  The rule "at_most" turns a reward into 1 up to b and into
    0 above it.  The rules "gain" and "loss" turn it into
    ln(1 + w * gain / b), where the gain is the distance of the reward above or below `zero`.

    Attributes:
        above: Quantity of the row; empty for 0.
        below: Quantity that divides it; empty for none.
        minus: Quantity that is subtracted from it; empty for none.
        at_zero: Value of the factor where `below` is 0.
        rules: Rules that a factor of this name may have.
    """

    above: str
    below: str = ""
    minus: str = ""
    at_zero: float = 0.0
    rules: tuple[str, ...] = ()

    @cached_property
    def quantities(self) -> tuple[str, ...]:
        """Quantities of the row that the factor is computed from."""
        reward = "reward" if self.logarithmic else ""
        return tuple(q for q in (self.above, self.below, self.minus, reward) if q)

    @cached_property
    def scope(self) -> str:
        """Kind of name that a factor has: "target", "logger" or "period"; "row" for none."""
        return next((s for q in self.quantities if (s := QUANTITIES[q]) != "row"), "row")

    @cached_property
    def modelled(self) -> bool:
        """True for factors that use predictions of a reward model."""
        return not {"predicted_reward", "predicted_value"}.isdisjoint(self.quantities)

    @cached_property
    def measured(self) -> bool:
        """True for factors that use the reward or its predictions: each measure has its own."""
        return self.modelled or "reward" in self.quantities

    @property
    def logarithmic(self) -> bool:
        """True for logarithms of gains."""
        return self.rules == GAINS

    @cached_property
    def degree(self) -> float:
        """Power of the reward in the factor; infinite for a logarithm."""
        return math.inf if self.logarithmic else float("reward" in self.quantities)


FACTORS = {
    "reward": Definition("reward", rules=(AT_MOST,)),
    "weight": Definition("target", "own"),
    "balanced_weight": Definition("target", "mixture", rules=SHRINKS),
    "period_weight": Definition("target", "period_mixture"),
    "log_gain": Definition("target", "own", rules=GAINS),
    "balanced_log_gain": Definition("target", "mixture", rules=GAINS),
    "ratio": Definition("logger", "mixture"),
    "others_weight": Definition("logger", "others", rules=WITHIN),
    "period_ratio": Definition("logger", "period_mixture"),
    "inverse_ratio": Definition("mixture", "logger", at_zero=UNSUPPORTED),
    "inverse_period": Definition("mixture", "period", at_zero=UNSUPPORTED),
    "unsupported": Definition("", "logger", at_zero=1.0),
    "propensity": Definition("own"),
    "overlap": Definition("least", "own"),
    "predicted_reward": Definition("predicted_reward"),
    "predicted_value": Definition("predicted_value"),
    "residual": Definition("reward", minus="predicted_reward"),
}


@dataclass(frozen=True, order=True)
class Factor:
    """One row column.

    Attributes:
        name: Name of its definition in `FACTORS`.
        logger: Logger, or period, that the definition names; or empty.
        target: Target of the column, empty until bound.
        rule: One of the rules of the definition, or empty.
        bound: Bound of that rule.
        zero: Reward from which gains count.
        measure: Column or expression that is used as the reward; empty for the log's own.
    """

    name: str
    logger: str = ""
    target: str = ""
    rule: str = ""
    bound: float = 0.0
    zero: float = 0.0
    measure: str = ""

    @property
    def definition(self) -> Definition:
        """Definition of the column."""
        return FACTORS[self.name]

    def bind(
        self, target: str | None = None, measure: str = "", most: float | None = None
    ) -> Factor:
        """Return the factor of one target and of one measure; what is not named stays.

        With `most`, the reward turns into 1 up to this number, and into 0 above it.
        """
        if most is not None and self.name == "reward":
            return replace(self, rule=AT_MOST, bound=most, measure=measure or self.measure)
        made = self.definition
        if target is None or made.scope != "target":
            target = self.target
        if not made.measured:
            measure = ""
        if target == self.target and measure in {"", self.measure}:
            return self
        return replace(self, target=target, measure=measure or self.measure)


@dataclass(frozen=True, eq=False)
class Term:
    """A product of row columns.

    Terms of the same factors are one object: terms are looked up thousands of times, and
    Python finds an object faster than its content.

    Attributes:
        factors: Row columns in sorted order, so that equal products are equal terms.
    """

    factors: tuple[Factor, ...]

    def __new__(cls, factors: tuple[Factor, ...]) -> Self:
        with _terms_lock:
            term = _known_terms.get(factors)
            if term is None:
                term = _known_terms[factors] = super().__new__(cls)
        return term

    def __lt__(self, other: Term) -> bool:
        return self.key < other.key

    def __reduce__(self) -> tuple[type[Term], tuple[object, ...]]:
        return Term, (self.factors,)  # so that a copy is the same object

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Sort key of plain values, which compare quickly."""
        return tuple(
            (f.name, f.logger, f.target, f.rule, f.bound, f.zero, f.measure)
            for f in self.factors
        )

    @cached_property
    def is_cube(self) -> bool:
        """True for the third or a higher power of one column."""
        return len(self.factors) >= 3 and len(set(self.factors)) == 1

    def __mul__(self, other: Term) -> Term:
        return _multiply_terms(self, other)

    def bind(
        self, target: str | None = None, measure: str = "", most: float | None = None
    ) -> Term:
        """Return the term of one target among several, of one measure or threshold."""
        return Term(tuple(sorted(f.bind(target, measure, most) for f in self.factors)))


_known_terms: WeakValueDictionary[tuple[Factor, ...], Any] = WeakValueDictionary()
_terms_lock = Lock()


@lru_cache(MOST_CACHED)
def _multiply_terms(left: Term, right: Term) -> Term:
    """Return the product; the same object each time, which is found quickly."""
    return Term(tuple(sorted(left.factors + right.factors)))


REWARD = Term((Factor("reward"),))
OVERLAP = Term((Factor("overlap"),))
OVERLAP_REWARD = Term((Factor("overlap"), Factor("reward")))
WEIGHT = Term((Factor("weight"),))
BALANCED_WEIGHT = Term((Factor("balanced_weight"),))
PERIOD_WEIGHT = Term((Factor("period_weight"),))
PROPENSITY = Term((Factor("propensity"),))
WEIGHTED_REWARD = REWARD * WEIGHT
PERIOD_REWARD = REWARD * PERIOD_WEIGHT
BALANCED_REWARD = REWARD * BALANCED_WEIGHT
PREDICTED_REWARD = Term((Factor("predicted_reward"),))
PREDICTED_VALUE = Term((Factor("predicted_value"),))
RESIDUAL = Term((Factor("residual"),))
PERIOD_RESIDUAL = PERIOD_WEIGHT * RESIDUAL


@lru_cache(MOST_CACHED)
def ratio(logger: str) -> Term:
    """Return logger / mixture, whose expectation over all rows is 1."""
    return Term((Factor("ratio", logger),))


@lru_cache(MOST_CACHED)
def others_weight(logger: str, bound: float) -> Term:
    """Return logger / mixture of the others where at most a bound, elsewhere 0."""
    return Term((Factor("others_weight", logger, rule="switch", bound=bound),))


@lru_cache(MOST_CACHED)
def others_play(logger: str, bound: float) -> Term:
    """Return 1 where the others play the action at least 1 / bound as often, elsewhere 0."""
    return Term((Factor("others_weight", logger, rule="within", bound=bound),))


@lru_cache(MOST_CACHED)
def second_moment(logger: str) -> Term:
    r"""Return the term that estimates one logger's second moment from all rows.

    The expectation of $\delta^2 \bar\pi^2 / (\pi_i \pi_{avg})$ over the mixture is
    $E_i[(w_i \delta)^2]$.
    """
    return BALANCED_REWARD * BALANCED_REWARD * Term((Factor("inverse_ratio", logger),))


@lru_cache(MOST_CACHED)
def weight_moment(logger: str) -> Term:
    r"""Return the same without rewards; its expectation over the mixture is $E_i[w_i^2]$."""
    return BALANCED_WEIGHT * BALANCED_WEIGHT * Term((Factor("inverse_ratio", logger),))


@lru_cache(MOST_CACHED)
def period_moment(period: str) -> Term:
    r"""Return the term whose expectation is $E_x \sum_y \bar\pi^2 / \pi_d$ of one period."""
    return BALANCED_WEIGHT * BALANCED_WEIGHT * Term((Factor("inverse_period", period),))


@lru_cache(MOST_CACHED)
def residual_moment(logger: str) -> Term:
    r"""Return the term whose expectation is $E_i[w_i^2 (\delta - \hat q)^2]$."""
    return RESIDUAL * RESIDUAL * weight_moment(logger)


@lru_cache(MOST_CACHED)
def unsupported_weight(logger: str) -> Term:
    """Return the term whose mean is the target's share of actions the logger never plays."""
    return BALANCED_WEIGHT * Term((Factor("unsupported", logger),))


@dataclass(frozen=True)
class Needs:
    """Moments to compute from the rows.

    Attributes:
        means: Terms with a mean.
        groups: Groups of terms; every pair within a group has a scatter.
        extremes: Terms with a smallest and a largest value.
        tails: Terms with a tail, their few thousand largest values.
        histograms: Terms with a histogram.
        slices: Terms with a sum for each slice of the rows (`moments.tallies`).
        powers: The reward and its products, with sums of their absolute powers.
    """

    means: tuple[Term, ...] = ()
    groups: tuple[tuple[Term, ...], ...] = ()
    extremes: tuple[Term, ...] = ()
    tails: tuple[Term, ...] = ()
    histograms: tuple[Term, ...] = ()
    slices: tuple[Term, ...] = ()
    powers: tuple[Term, ...] = ()

    def __or__(self, other: Needs) -> Needs:
        return unite([self, other])

    @property
    def modelled(self) -> bool:
        """True if a term uses predictions of a reward model."""
        return any(f.definition.modelled for t in self.terms for f in t.factors)

    @property
    def mixed(self) -> bool:
        """True if a term uses the mixture of all loggers."""
        return any("mixture" in f.definition.quantities for t in self.terms for f in t.factors)

    def bind(
        self, target: str | None = None, measure: str = "", most: float | None = None
    ) -> Needs:
        """Return the needs of one target among several, of one measure or threshold."""

        def bound(terms: tuple[Term, ...]) -> tuple[Term, ...]:
            return tuple(t.bind(target, measure, most) for t in terms)

        return Needs(
            bound(self.means),
            tuple(map(bound, self.groups)),
            bound(self.extremes),
            bound(self.tails),
            bound(self.histograms),
            bound(self.slices),
            bound(self.powers),
        )

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """All terms, those with a scatter first; each part is sorted.

        The order is the same in every run, and so is the text of the query.
        """
        single = (self.means, self.extremes, self.tails, self.histograms)
        others = {t for terms in (*single, self.slices, self.powers) for t in terms}
        return (*self.scattered, *_unique(others - set(self.scattered)))

    @cached_property
    def scattered(self) -> tuple[Term, ...]:
        """Terms with a scatter, sorted."""
        return _unique(t for group in self.groups for t in group)

    @cached_property
    def pairs(self) -> list[tuple[Term, Term]]:
        """Pairs of terms with a scatter, each once, sorted."""
        pairs = {
            pair
            for group in self.groups
            for pair in combinations_with_replacement(_unique(group), 2)
        }
        return sorted(pairs, key=lambda pair: (pair[0].key, pair[1].key))


NO_NEEDS = Needs()


def unite(needs: Iterable[Needs]) -> Needs:
    """Return the union of all needs."""
    parts = tuple(needs)
    return Needs(
        _unique(t for n in parts for t in n.means),
        tuple(dict.fromkeys(group for n in parts for group in n.groups)),
        _unique(t for n in parts for t in n.extremes),
        _unique(t for n in parts for t in n.tails),
        _unique(t for n in parts for t in n.histograms),
        _unique(t for n in parts for t in n.slices),
        _unique(t for n in parts for t in n.powers),
    )


def _unique(terms: Iterable[Term]) -> tuple[Term, ...]:
    return tuple(sorted(set(terms), key=lambda term: term.key))
