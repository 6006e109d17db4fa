r"""Summary: moments in place of rows, to save, to add and to evaluate later.

A hash of the roles and targets rejects moments of another log or policy.  Moments of two
groups of rows add exactly, but weights against the mixture
$\pi_{avg} = \sum_i (n_i / n) \pi_i$ depend on every row: parts add only if all of them were
weighted with the same row counts (the manifest).  Terms without the mixture always add.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from poolwise.engines.base import Engine, Rows, refuse_extra
from poolwise.engines.saved_files import (
    DAMAGED_FILE,
    QuestionHashes,
    question,
    read_moments,
    write_moments,
)
from poolwise.errors import Finding, RefusedError, SourceError, UsageError
from poolwise.moments.pool import Pool
from poolwise.rows.learners import NO_EXTRA

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from poolwise.errors import Fault
    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.moments import Moments
    from poolwise.moments.terms import Needs, Term
    from poolwise.rows.learners import Extra

CROSSED = {"mixture", "least", "logger", "others"}  # quantities from cross-propensities
SAME_SHARE = 1e-12  # shares that differ by less give the same weights
NARROWING = (
    "Estimators that do not use the mixture (naive, and weighted or self-normalised with own "
    "propensities) are available now: evaluate summary.narrowed(log) instead of the log."
)
LOST = Finding(
    "mixture-left-out",
    "The added summaries were weighted against different mixtures, so terms that use the "
    "mixture (balanced, calibrated, self-normalised, pooled divergences) were dropped.",
    "Count the rows of all parts first, and summarise each part with counts=the totals.",
)


def same_shares(left: Mapping[str, float], right: Mapping[str, float]) -> bool:
    """Return True if two counts of the loggers give the same mixture.

    >>> same_shares({"a": 200, "b": 100}, {"b": 1, "a": 2})
    True
    >>> same_shares({"a": 201, "b": 100}, {"b": 1, "a": 2})
    False
    """
    totals = sum(left.values()), sum(right.values())
    return all(totals) and all(
        abs(left.get(i, 0) / totals[0] - right.get(i, 0) / totals[1]) <= SAME_SHARE
        for i in {*left, *right}
    )


@dataclass(frozen=True, eq=False)
class SavedRows(Rows):
    """Moments in place of rows.

    Attributes:
        by_logger: Moments of each logger, in the order in which loggers are shown.
        dropped: True if rows that break a rule were dropped, uncounted.
        notes: Findings about the origin of the moments.
        own: True if the moments are those of an only logger, whose propensity is the mixture.
    """

    by_logger: Mapping[str, Moments]
    dropped: bool = False
    notes: tuple[Finding, ...] = ()
    own: bool = False

    @property
    def saved(self) -> bool:
        return True

    @property
    def shaped(self) -> bool:
        return all(m.slices for m in self.by_logger.values())

    @cached_property
    def counts(self) -> dict[str, int]:
        return {logger: m.count for logger, m in self.by_logger.items()}

    def mix_own(self) -> SavedRows | None:
        """Return the same moments, if they were computed with the propensity as the mixture."""
        return self if self.own else None

    def check(self) -> tuple[Fault, ...]:
        """Return no faults where broken rows were dropped."""
        return () if self.dropped else super().check()

    def moments(self, needs: Needs) -> Pool:
        """Return the requested moments, if they were saved."""
        if not all(_has_moments(m, needs) for m in self.by_logger.values()):
            raise RefusedError(
                "not-saved",
                "these estimators need averages that the saved moments do not hold: summarise "
                "the log with the same estimators and targets",
            )
        names = {term: term for term in needs.terms}
        return Pool(self.by_logger).select(names)

    def action_sums(self) -> None:
        """Return None: actions are not saved."""


def _has_moments(m: Moments, needs: Needs) -> bool:
    """Return True if moments hold each requested mean, pair and extreme."""
    try:
        for left, right in needs.pairs:
            m.select_scatter([left, right])
        for term in needs.extremes:
            m.max(term)
    except KeyError:
        return False
    return all(map(m.has, needs.terms))


@dataclass(frozen=True, eq=False)
class Summary(Engine):
    """Moments of each logger's rows, with the question they were computed for.

    A summary is an engine: ``pw.evaluate(log, targets, engine=summary)`` evaluates it, with
    the summarised log or any log with the same roles.  ``+`` adds two summaries.

    Attributes:
        moments: Moments of each logger.
        question: Hashes of the roles and targets.
        manifest: Rows (or shares) of each logger that fixed the mixture; empty where no
            moment uses it.
    """

    moments: Mapping[str, Moments]
    question: QuestionHashes
    manifest: Mapping[str, float]

    @property
    def saved(self) -> bool:
        return True

    @property
    def rows(self) -> dict[str, int]:
        """Rows of each logger."""
        return {logger: m.count for logger, m in self.moments.items()}

    @property
    def crossed(self) -> bool:
        """True if moments that use the mixture are present."""
        return bool(self.manifest)

    @property
    def own(self) -> bool:
        """True if the moments are those of an only logger, whose propensity is the mixture."""
        return self.crossed and not self.question.mixture

    @contextmanager
    def open(
        self, log: Log, targets: Mapping[str, PolicyLike], extra: Extra = NO_EXTRA
    ) -> Iterator[SavedRows]:
        """Return the moments as rows, if the log and targets are those of the summary."""
        refuse_extra(extra)
        requested = question(log, targets)
        self._refuse_other(requested)
        if log.crossed:
            self._refuse_mixture(requested.mixture)
        lost = self.question.mixture and not self.crossed
        notes = (LOST,) if lost else ()
        yield SavedRows(self.moments, log.on_fault == "drop", notes, self.own)

    def _refuse_other(self, requested: QuestionHashes) -> None:
        if requested.roles != self.question.roles:
            raise UsageError(
                "these moments belong to another log: logger, reward, `on_fault` and "
                "`log_probabilities` must be those of the summarised log"
            )
        ours = self.question.targets
        others = [name for name, mark in requested.targets.items() if ours.get(name) != mark]
        if others:
            raise UsageError(
                f"these moments do not cover target {', '.join(map(repr, others))}: they were "
                f"computed for {', '.join(map(repr, ours))}, as defined then"
            )

    def _refuse_mixture(self, requested: str) -> None:
        if not self.crossed:
            raise RefusedError("mixture-left-out", f"{LOST} {NARROWING}")
        if requested != self.question.mixture:
            raise UsageError(
                "these moments were computed with other `propensities`: pass the same ones, or "
                "summarise the log again"
            )
        if not same_shares(self.rows, self.manifest):
            raise RefusedError(
                "other-counts",
                f"the mixture was fixed for {_join_rows(self.manifest)}, but the rows are "
                f"{_join_rows(self.rows)}: weights against the mixture would be wrong. Add the "
                f"missing parts, or summarise the rows again with counts=these. {NARROWING}",
            )

    def narrowed(self, log: Log) -> Log:
        """Return the log with own propensities only, which any moments can serve."""
        if not log.crossed:
            return log
        unknown = dict.fromkeys(log.by_label)
        own = "propensity" if log.propensity is None else log.propensity  # never read
        return replace(log, propensities=unknown, propensity=own)

    def __add__(self, other: Summary) -> Summary:
        """Add the rows of another summary; drop terms that cannot be added exactly."""
        ours, theirs = self.question, other.question
        if (ours.roles, ours.targets) != (theirs.roles, theirs.targets):
            raise UsageError(
                "summaries must have the same logger, reward, rules and targets to be added"
            )
        mixed = self.crossed and other.crossed and ours.mixture == theirs.mixture
        if mixed and same_shares(self.manifest, other.manifest):
            return self._plus(other)
        return self._without_mixture()._plus(other._without_mixture())

    def _without_mixture(self) -> Summary:
        """Drop the moments that use the mixture.

        The summary of an only logger keeps what it would have among several loggers without
        cross-propensities.
        """
        lost = CROSSED if self.own else {"mixture"}
        kept = {
            logger: m.select({t: t for t in m.terms if not _depends_on(t, lost)})
            for logger, m in self.moments.items()
        }
        return replace(self, moments=kept, manifest={})

    def _plus(self, other: Summary) -> Summary:
        """Add moments; loggers keep the order of the manifest, or of their names."""
        ours, theirs = self.moments, other.moments
        if not all(m.slices for m in (*ours.values(), *theirs.values())):
            ours, theirs = _without_cubes(ours), _without_cubes(theirs)
        parts = [*ours.values(), *theirs.values()]
        if any(part.terms != parts[0].terms for part in parts):
            raise UsageError(
                "summaries must be made for the same estimators and by the same version of "
                "poolwise to be added"
            )
        both = Pool(None, (ours, theirs))
        ordered = {i: both[i] for i in self.manifest or sorted(both.loggers) if i in both}
        mixture = self.question.mixture or other.question.mixture
        return Summary(ordered, replace(self.question, mixture=mixture), self.manifest)

    def save(self, path: str | Path) -> None:
        """Write a Parquet file with one line per logger; whole, or not at all."""
        header = {**asdict(self.question), "manifest": dict(self.manifest)}
        write_moments(Path(path), self.moments, header)

    @classmethod
    def load(cls, path: str | Path) -> Summary:
        """Read a file that `save` wrote."""
        moments, header = read_moments(Path(path))
        try:
            targets = {str(k): str(v) for k, v in header["targets"].items()}
            hashes = QuestionHashes(str(header["roles"]), targets, str(header["mixture"]))
            manifest = {str(k): float(v) for k, v in header["manifest"].items()}
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as reason:
            raise SourceError(f"{str(path)!r}", DAMAGED_FILE) from reason
        mixed = any(_depends_on(t, {"mixture"}) for m in moments.values() for t in m.terms)
        if bool(manifest) != mixed or not set(moments) <= {*(manifest or moments)}:
            raise SourceError(f"{str(path)!r}", DAMAGED_FILE)
        return cls(moments, hashes, manifest)


def _without_cubes(moments: Mapping[str, Moments]) -> Mapping[str, Moments]:
    """Drop the cubes of weights, which only skewed intervals use, together with slices."""
    return {
        i: m.select({t: t for t in m.terms if len(t.factors) != 3 or len({*t.factors}) > 1})
        for i, m in moments.items()
    }


def _depends_on(term: Term, quantities: Collection[str]) -> bool:
    """Return True if a term depends on one of some quantities."""
    return any(set(quantities) & set(f.definition.quantities) for f in term.factors)


def _join_rows(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{i!r} {n:,.12g}" for i, n in counts.items())
