r"""Summary: a log as its moments, to keep, to add up and to evaluate later.

Moments of two groups of rows add up exactly.  But weights against the mixture
$\pi_{avg} = \sum_i (n_i / n) \pi_i$ change with every row that is added: the parts must have
been weighted with the counts of the *whole*, fixed beforehand.  What does not rest on the
mixture (naive, and weighted or self-normalised from own propensities) adds up always.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolwise.engines.saved import Question, SavedRows, of_mixture, question, same_shares
from poolwise.engines.saved_file import DAMAGED, read_moments, write_moments
from poolwise.errors import Finding, RefusedError, SourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from poolwise.log.log import Log
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.moments import Moments, MomentsByLogger


@dataclass(frozen=True, eq=False)
class Summary:
    """Moments of each logger's rows, and the question that they answer.

    A summary is an engine: ``pw.evaluate(log, targets, engine=summary)`` evaluates it, with
    the log it was made from or any with the same roles.  Two summaries add up with ``+``.

    Attributes:
        moments: Moments of each logger.
        question: Fingerprints of the roles and targets.
        manifest: Rows (or shares) of each logger that fixed the mixture; empty where no
            moment rests on one.
    """

    moments: MomentsByLogger
    question: Question
    manifest: Mapping[str, float]

    @property
    def rows(self) -> dict[str, int]:
        """Rows of each logger that are in it."""
        return {logger: m.count for logger, m in self.moments.items()}

    @property
    def crossed(self) -> bool:
        """Whether moments that rest on the mixture are in it."""
        return bool(self.manifest)

    @contextmanager
    def open(self, log: Log, targets: Mapping[str, PolicyLike]) -> Iterator[SavedRows]:
        """Serve an evaluation, if it asks what this is an answer to."""
        self._refuse_other(question(log, targets))
        if log.crossed:
            self._refuse_mixture(question(log, targets).mixture)
        lost = self.question.mixture and not self.crossed
        yield SavedRows(self.moments, log.on_fault == "drop", (LOST,) if lost else ())

    def _refuse_other(self, asked: Question) -> None:
        if asked.roles != self.question.roles:
            raise UsageError(
                "these moments were made of another log: its logger, reward, rules "
                "(`on_fault`) or `log_probabilities` are not those of the log given here"
            )
        ours = self.question.targets
        strange = [name for name, mark in asked.targets.items() if ours.get(name) != mark]
        if strange:
            known = ", ".join(map(repr, ours))
            raise UsageError(
                f"these moments say nothing of target {', '.join(map(repr, strange))}: they "
                f"were made for {known}, as defined then"
            )

    def _refuse_mixture(self, asked: str) -> None:
        if not self.crossed:
            raise RefusedError("mixture-left-out", f"{LOST} {NARROW}")
        if asked != self.question.mixture:
            raise UsageError(
                "these moments were made with other `propensities` than those given here: give "
                "the same, or summarise the log again"
            )
        if not same_shares(self.rows, self.manifest):
            raise RefusedError(
                "other-counts",
                f"the mixture was fixed for {_listed(self.manifest)}, but the rows here are "
                f"{_listed(self.rows)}: weights against the mixture would be wrong. Add the "
                "parts that are missing, or summarise the rows again with counts=these. "
                f"{NARROW}",
            )

    def narrowed(self, log: Log) -> Log:
        """The log as if only own propensities were known: what serves any moments."""
        if not log.crossed:
            return log
        unknown = dict.fromkeys(map(str, log.propensities or {}))
        own = "propensity" if log.propensity is None else log.propensity  # nobody reads it
        return replace(log, propensities=unknown, propensity=own)

    def __add__(self, other: Summary) -> Summary:
        """Both logs together; exact, or without what would not be."""
        ours, theirs = self.question, other.question
        if (ours.roles, ours.targets) != (theirs.roles, theirs.targets):
            raise UsageError(
                "these summaries cannot be added: they answer different questions (other "
                "targets, another reward or logger, or other rules)"
            )
        mixed = self.crossed and other.crossed and ours.mixture == theirs.mixture
        if not (mixed and same_shares(self.manifest, other.manifest)):
            return _together(self._own(), other._own(), {})
        return _together(self, other, self.manifest)

    def _own(self) -> Summary:
        """Without the moments that rest on the mixture."""
        kept = {logger: _own_terms(m) for logger, m in self.moments.items()}
        return replace(self, moments=kept, manifest={})

    def save(self, path: str | Path) -> None:
        """Write a Parquet file with one line per logger; whole, or not at all."""
        header = {
            "roles": self.question.roles,
            "targets": dict(self.question.targets),
            "mixture": self.question.mixture,
            "manifest": dict(self.manifest),
        }
        write_moments(Path(path), self.moments, header)

    @classmethod
    def load(cls, path: str | Path) -> Summary:
        """Read what `save` wrote."""
        moments, header = read_moments(Path(path))
        try:
            asked = Question(
                str(header["roles"]), _texts(header["targets"]), str(header["mixture"])
            )
            manifest = {str(k): float(v) for k, v in header["manifest"].items()}
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as reason:
            raise SourceError(f"{str(path)!r}", DAMAGED) from reason
        terms = next(iter(moments.values())).terms
        if bool(manifest) != any(map(of_mixture, terms)) or not set(moments) <= {
            *(manifest or moments)
        }:
            raise SourceError(f"{str(path)!r}", DAMAGED)
        return cls(moments, asked, manifest)


def _texts(value: Mapping[str, Any]) -> dict[str, str]:
    return {str(k): str(v) for k, v in value.items()}


def _own_terms(moments: Moments) -> Moments:
    return moments.select({t: t for t in moments.terms if not of_mixture(t)})


def _together(left: Summary, right: Summary, manifest: Mapping[str, float]) -> Summary:
    """The sum; loggers in the order of the manifest, or else of their names."""
    first, second = left.moments, right.moments
    if _terms(left) != _terms(right):
        raise UsageError(
            "these summaries cannot be added: they were made for different estimators, or by "
            "different versions of poolwise"
        )
    every = [*(manifest or sorted({*first, *second}))]
    found = {}
    for logger in every:
        parts = [part[logger] for part in (first, second) if logger in part]
        if parts:
            found[logger] = parts[0] if len(parts) == 1 else _sum(*parts)
    mixture = left.question.mixture or right.question.mixture
    return Summary(found, replace(left.question, mixture=mixture), manifest)


def _sum(left: Moments, right: Moments) -> Moments:
    """Both together; of tails and histograms, which not every engine has, what both have."""
    tails = [t for t in left.tails if t in right.tails]
    seen = [t for t in left.histograms if t in right.histograms]
    first, second = (
        replace(
            m,
            tails={t: m.tails[t] for t in tails},
            histograms={t: m.histograms[t] for t in seen},
        )
        for m in (left, right)
    )
    return first + second


def _terms(summary: Summary) -> set[Any]:
    return {m.terms for m in summary.moments.values()}


def _listed(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{i!r} {n:,.12g}" for i, n in counts.items())


NARROW = (
    "What needs no mixture (naive, and weighted or self-normalised with own propensities) "
    "can be had now: evaluate summary.narrowed(log) in place of the log."
)
LOST = Finding(
    "mixture-left-out",
    "These moments were added from parts that had been weighted against different mixtures; "
    "what rests on the mixture (balanced, calibrated, self-normalised, pooled divergences) "
    "cannot be added and was left out.",
    "Count the rows of all parts first, and summarise each part with counts=the totals.",
)
