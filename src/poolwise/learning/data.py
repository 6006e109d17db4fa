"""Data: the rows to learn from, in memory and in an order that follows from their content.

Rows come from the log's stream of scored rows.  Above a limit, a seeded sample of them is
taken; whole clusters where the log has clusters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from poolwise.errors import NO_ROWS, LogError, UsageError, did_you_mean
from poolwise.learning.features import Labels, RawColumn, codes_of, raw_column
from poolwise.learning.objectives import Sample
from poolwise.learning.policy import LEAST, base_scores
from poolwise.learning.split import (
    Hashes,
    label_bits,
    mix,
    number_bits,
    row_hashes,
    start,
)
from poolwise.log.eligible import listed
from poolwise.log.policy import AnyArray, Distribution, FloatArray, IntArray, index_of, pick

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from poolwise.rows.learn import LearnerRows

ROUNDING = 1e-9  # that carries a probability above 1
LARGEST = 2**64 - 2**11  # the largest hash that a float holds


@dataclass(frozen=True, eq=False)
class LearningRows:
    """Rows to learn from.

    Attributes:
        columns: Features as they are in the log.
        actions: Labels of the actions.
        loggers: Labels of the loggers.
        action: Index of the logged action; -1 for one that is not listed.
        logger: Index of the logger.
        reward: Rewards.
        own: Propensity under the row's own logger.
        cross: Propensity under each logger, shape (n, loggers); no columns if unknown.
        base: Log-probabilities of every action under loggers that have them.
        hashes: Hashes of the rows' content, or of their clusters.
        clustered: True if rows of one cluster share a hash.
        among: Whether each action could be played in each row, shape (n, actions); None if
            all could.
        mixture: Probability under the mixture of the log, where it is logged or was
            estimated.
    """

    columns: Mapping[str, RawColumn]
    actions: tuple[Hashable, ...]
    loggers: tuple[str, ...]
    action: IntArray
    logger: IntArray
    reward: FloatArray
    own: FloatArray
    cross: FloatArray
    base: Mapping[str, FloatArray]
    hashes: Hashes
    clustered: bool = False
    among: NDArray[np.bool] | None = None
    mixture: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def crossed(self) -> bool:
        """True if every logger's propensity is known, or there is one logger."""
        return bool(self.cross.shape[1])

    @property
    def groups(self) -> IntArray:
        """Groups that every fold has its share of: loggers, or all clusters together."""
        return np.zeros(len(self), np.int64) if self.clustered else self.logger

    def sample(self, rows: IntArray, predicted: FloatArray) -> Sample:
        """Return some rows as an objective reads them, with the mixture of these rows."""
        logger, cross = self.logger[rows], self.cross[rows]
        counts = np.bincount(logger, minlength=len(self.loggers))
        below = self.own if self.mixture is None else self.mixture
        mixture = cross @ (counts / len(rows)) if self.crossed else below[rows]
        ratios = cross / mixture[:, None]
        return Sample(self.action[rows], self.reward[rows], mixture, logger, predicted, ratios)

    def sorted(self) -> LearningRows:
        """Return the rows in the order of their hashes, which their content decides."""
        order = np.argsort(self.hashes, kind="stable")
        columns = {
            name: values.take(order) if isinstance(values, Labels) else values[order]
            for name, values in self.columns.items()
        }
        names = ("action", "logger", "reward", "own", "cross", "hashes")
        arrays = {name: getattr(self, name)[order] for name in names}
        base = {name: scores[order] for name, scores in self.base.items()}
        known = {
            name: values[order]
            for name in ("among", "mixture")
            if (values := getattr(self, name)) is not None
        }
        return replace(self, columns=columns, base=base, **known, **arrays)


@dataclass(frozen=True, eq=False)
class _Piece:
    """Rows of one batch that are in the sample; `actions` and `columns` are not joined yet."""

    action: IntArray
    logger: IntArray
    reward: FloatArray
    own: FloatArray
    cross: FloatArray
    unit: Hashes
    columns: Mapping[str, RawColumn]
    base: Mapping[str, FloatArray]
    lists: AnyArray | None
    mixture: FloatArray | None


@dataclass(eq=False)
class Reader:
    """Collects rows, batch by batch.

    Attributes:
        features: Columns to learn from.
        loggers: Labels of the loggers.
        policies: Policies that give the probability of every action, by name.
        share: Share of the rows that are taken.
        seed: Seed of the sample and of the folds.
        clustered: True if rows come with a hash of their cluster.
        eligible: Column with the list of actions that could be played, if any.
        usable: Rows without faults, batch by batch.
        taken: Those among them that are in the sample.
        counts: Usable rows of each logger.
    """

    features: tuple[str, ...]
    loggers: tuple[str, ...]
    policies: Mapping[str, Distribution]
    share: float
    seed: int
    clustered: bool
    eligible: str | None = None
    usable: list[NDArray[np.bool]] = field(default_factory=list)
    taken: list[NDArray[np.bool]] = field(default_factory=list)
    _pieces: list[_Piece] = field(default_factory=list)
    _labels: dict[str, dict[Hashable, int]] = field(default_factory=dict)
    _actions: dict[Hashable, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.loggers), np.int64)

    def add(self, rows: LearnerRows) -> None:
        """Take usable rows of a batch that are in the sample."""
        own, cross = probabilities(rows, self.loggers)
        logger = index_of(self.loggers, rows.label)
        unit = mix(start(len(rows), self.seed), rows.fold)
        unit = unit if self.clustered else mix(unit, logger)
        usable = np.isfinite(rows.reward) & (logger >= 0) & (own > 0) & (own <= 1 + ROUNDING)
        usable &= np.isfinite(cross).all(axis=1) & _labelled(rows.batch.action)
        mixture = None if rows.mixture is None else np.exp(rows.mixture)
        if mixture is not None:
            usable &= (mixture > 0) & (mixture <= 1 + ROUNDING)
        taken = usable & (unit <= np.uint64(self.share * LARGEST))
        self.counts += np.bincount(logger[usable], minlength=len(self.loggers))
        self.usable.append(usable)
        self.taken.append(taken)
        chosen = np.flatnonzero(taken)
        self._pieces.append(
            _Piece(
                action=codes_of(rows.batch.action[chosen].tolist(), self._actions),
                logger=logger[chosen],
                reward=rows.reward[chosen],
                own=own[chosen],
                cross=cross[chosen],
                unit=unit[chosen],
                columns={name: self._raw(rows, name, chosen) for name in self.features},
                base={
                    name: _scores(policy, rows)[chosen].astype(np.float32)
                    for name, policy in self.policies.items()
                },
                lists=None if self.eligible is None else rows.batch[self.eligible][chosen],
                mixture=None if mixture is None else mixture[chosen],
            )
        )

    def _raw(self, rows: LearnerRows, name: str, chosen: IntArray) -> RawColumn:
        return raw_column(name, rows.batch[name][chosen], self._labels.setdefault(name, {}))

    def rows(self, wanted: Sequence[Hashable] | None) -> LearningRows:
        """Return all rows that were taken, in the order in which they were read."""
        pieces, played = self._pieces, tuple(self._actions)
        if not sum(len(piece.reward) for piece in pieces):
            raise LogError([NO_ROWS])
        actions = _actions(played, wanted)
        logged = np.concatenate([p.action for p in pieces])
        rows = LearningRows(
            columns={name: self._column(name) for name in self.features},
            actions=actions,
            loggers=self.loggers,
            action=index_of(actions, played)[logged],
            logger=np.concatenate([p.logger for p in pieces]),
            reward=np.concatenate([p.reward for p in pieces]),
            own=np.concatenate([p.own for p in pieces]),
            cross=np.concatenate([p.cross for p in pieces]),
            base={
                name: _reordered(
                    np.concatenate([p.base[name] for p in pieces]), policy, actions
                )
                for name, policy in self.policies.items()
            },
            hashes=np.concatenate([p.unit for p in pieces]),
            clustered=self.clustered,
            among=self._among(actions, played, logged),
            mixture=self._mixture(),
        )
        self._pieces.clear()
        if self.clustered:
            return rows
        bits = _bits(rows, label_bits(logged, played))
        return replace(rows, hashes=row_hashes(bits, len(rows), self.seed))

    def _among(
        self, actions: Sequence[Hashable], played: Sequence[Hashable], logged: IntArray
    ) -> NDArray[np.bool] | None:
        """Return the actions that could be played in each row; reject lists without its own."""
        if self.eligible is None:
            return None
        lists = [p.lists for p in self._pieces if p.lists is not None]
        among = np.concatenate([listed(part, actions) for part in lists])
        index = index_of(actions, played)[logged]
        lacking = int((pick(among, index, 1.0) == 0).sum())
        if lacking:
            raise UsageError(
                f"the list of {self.eligible!r} must contain the logged action, and "
                f"{lacking:,} rows lack it: correct the lists"
            )
        return among

    def _mixture(self) -> FloatArray | None:
        parts = [piece.mixture for piece in self._pieces if piece.mixture is not None]
        return np.concatenate(parts) if parts else None

    def _column(self, name: str) -> RawColumn:
        parts = [piece.columns[name] for piece in self._pieces]
        numbers = [part for part in parts if not isinstance(part, Labels)]
        if not numbers:
            codes = np.concatenate([p.codes for p in parts if isinstance(p, Labels)])
            return Labels(codes, list(self._labels[name]))
        if len(numbers) < len(parts) or len({part.shape[1] for part in numbers}) > 1:
            raise UsageError(f"a feature must have one type, and {name!r} has several")
        return np.concatenate(numbers)


def _labelled(action: AnyArray) -> NDArray[np.bool]:
    """Mark rows whose action is not missing."""
    if action.dtype.kind != "O":
        return np.ones(len(action), dtype=bool)
    return np.fromiter((label is not None for label in action.tolist()), bool, len(action))


def _scores(policy: Distribution, rows: LearnerRows) -> FloatArray:
    scores = base_scores(policy, rows.batch, list(policy.actions))
    assert scores is not None  # noqa: S101 - there is a policy
    return scores


def _reordered(
    scores: FloatArray, policy: Distribution, actions: Sequence[Hashable]
) -> FloatArray:
    """Return the scores in the order of some actions; those of others are the least."""
    least = np.full((len(scores), 1), math.log(LEAST), scores.dtype)
    return np.hstack([scores, least])[:, index_of(list(policy.actions), list(actions))]


def _actions(
    seen: tuple[Hashable, ...], wanted: Sequence[Hashable] | None
) -> tuple[Hashable, ...]:
    """Return the actions to learn over; reject one that no logger played."""
    if wanted is None:
        try:
            return tuple(sorted(seen))  # type: ignore[type-var]
        except TypeError:
            return tuple(sorted(seen, key=str))
    unseen = [a for a, k in zip(wanted, index_of(seen, list(wanted)), strict=True) if k < 0]
    if unseen or not wanted:
        hint = did_you_mean(str(unseen[0]), map(str, seen)) if unseen else ""
        raise UsageError(
            f"actions must be among those of the log, got {unseen or 'none'}{hint}: no row "
            "shows the reward of another action"
        )
    return tuple(dict.fromkeys(wanted))


def _bits(rows: LearningRows, action: Hashes) -> Iterable[Hashes]:
    """Yield the content of rows as 64-bit numbers."""
    yield action
    yield rows.logger.astype(np.uint64)
    yield number_bits(rows.reward)
    yield number_bits(rows.own)
    for values in rows.columns.values():
        if isinstance(values, Labels):
            yield label_bits(values.codes, values.labels)
        else:
            yield from (number_bits(column) for column in values.T)


def probabilities(rows: LearnerRows, loggers: Sequence[str]) -> tuple[FloatArray, FloatArray]:
    """Return the own propensity of each row, and those under every logger.

    A log of one logger has all of them; otherwise unknown ones are a matrix without columns.
    """
    own, known = np.exp(rows.propensity), rows.propensities
    cross = np.empty((len(rows), 0))
    if loggers and all(name in known for name in loggers):
        cross = np.exp(np.stack([known[name] for name in loggers], axis=1))
        played = pick(cross, index_of(loggers, rows.label), math.nan)
        own = np.where(np.isnan(own), played, own)
    elif len(loggers) == 1:
        cross = own[:, None]
    return own, cross
