"""Data: the rows to learn from, in memory and in an order that follows from their content.

Rows come from the log's stream of scored rows.  Above a limit, a seeded sample of them is
taken; whole clusters where the log has clusters.

Their order follows from a hash of their content and a seed, so that the same rows give the same
folds and, to the last bit, the same sums, from any source and in any order.  Rows of one
cluster share a fold.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poolwise.errors import NO_ROWS, LogError, UsageError, did_you_mean
from poolwise.learning.features import RawColumn, TextColumn, code_labels, raw_column
from poolwise.learning.logged import LoggedDistribution, as_key
from poolwise.learning.objectives import Sample
from poolwise.learning.policy import LEAST_PROBABILITY, as_scores
from poolwise.log.eligible import mark_listed
from poolwise.log.policy import get_index, pick

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from poolwise.log.policy import Batch, Distribution
    from poolwise.rows.learners import LearnerRows
    from poolwise.types import AnyArray, FloatArray, IntArray

Hashes = NDArray[np.uint64]
HASH_FACTOR = np.uint64(0xBF58476D1CE4E5B9)  # odd, with well mixed bits
PROBABILITY_ROUNDING = 1e-9  # that carries a probability above 1
LARGEST = 2**64 - 2**11  # the largest hash that a float holds


def mix(hashes: Hashes, values: AnyArray) -> Hashes:
    """Return new hashes that depend on the old ones and on 64-bit values."""
    mixed: Hashes = hashes ^ values.astype(np.uint64)
    for shift in (np.uint64(31), np.uint64(29)):
        mixed = (mixed + HASH_FACTOR) * HASH_FACTOR
        mixed ^= mixed >> shift
    return mixed


def number_bits(values: FloatArray) -> Hashes:
    """Return the bits of numbers, equal for equal numbers and for all NaN."""
    doubles = np.where(np.isnan(values), np.nan, np.asarray(values, np.float64) + 0.0)
    bits: Hashes = doubles.view(np.uint64)
    return bits


def label_bits(codes: IntArray, labels: Sequence[Hashable]) -> Hashes:
    """Return a hash of each row's label."""
    digests = [hashlib.blake2b(repr(label).encode(), digest_size=8) for label in labels]
    hashes = [int.from_bytes(digest.digest()) for digest in digests]
    return np.array([*hashes, 0], dtype=np.uint64)[codes]


def start(rows: int, seed: int) -> Hashes:
    """Return the hashes of rows without content."""
    return mix(np.zeros(rows, np.uint64), np.full(rows, seed % 2**63))


def row_hashes(parts: Iterable[Hashes], rows: int, seed: int) -> Hashes:
    """Return distinct hashes of rows; equal rows differ by their number."""
    hashes = start(rows, seed)
    for part in parts:
        hashes = mix(hashes, part)
    order = np.argsort(hashes, kind="stable")
    ranked = hashes[order]
    first = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]]) if rows else order
    sizes = np.diff(np.r_[first, rows])
    numbers = np.empty(rows, np.int64)
    numbers[order] = np.arange(rows) - np.repeat(first, sizes)
    return mix(hashes, numbers)


def positions(hashes: Hashes, groups: IntArray) -> IntArray:
    """Return the position of each row in its group, in the order of the hashes.

    Rows with equal hashes share a position.
    """
    position = np.empty(len(hashes), np.int64)
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        _, position[rows] = np.unique(hashes[rows], return_inverse=True)
    return position


def assign_folds(hashes: Hashes, groups: IntArray, folds: int) -> IntArray:
    """Return the fold of each row: each fold has its share of each group.

    >>> assign_folds(np.array([9, 5, 5, 7], np.uint64), np.zeros(4, np.int64), 2).tolist()
    [0, 0, 0, 1]
    """
    return positions(hashes, groups) % folds


def held_out(hashes: Hashes, groups: IntArray, share: float) -> NDArray[np.bool]:
    """Mark a share of the rows of each group, spread evenly in the order of the hashes.

    >>> held_out(np.arange(6, dtype=np.uint64), np.zeros(6, np.int64), 0.5).tolist()
    [False, True, False, True, False, True]
    """
    position = positions(hashes, groups)
    held: NDArray[np.bool] = np.floor((position + 1) * share) > np.floor(position * share)
    return held


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
        fields = vars(self).items()
        arrays: dict[str, Any] = {n: v[order] for n, v in fields if isinstance(v, np.ndarray)}
        columns = {name: values[order] for name, values in self.columns.items()}
        base = {name: scores[order] for name, scores in self.base.items()}
        return replace(self, columns=columns, base=base, **arrays)


class _Piece(NamedTuple):
    """Rows of one batch that are in the sample; their labels are codes of the collector."""

    arrays: Mapping[str, AnyArray]  # fields of `LearningRows`
    columns: Mapping[str, RawColumn]
    base: Mapping[str, FloatArray]  # log-probabilities
    lists: AnyArray | None


@dataclass(eq=False)
class Collector:
    """Collects rows, batch by batch.

    Attributes:
        features: Columns to learn from.
        loggers: Labels of the loggers.
        policies: Policies that give the probability of every action, by name.  A column that
            does not hold distributions is removed.
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
    policies: dict[str, Distribution]
    share: float
    seed: int
    clustered: bool
    eligible: str | None = None
    usable: list[NDArray[np.bool]] = field(default_factory=list)
    taken: list[NDArray[np.bool]] = field(default_factory=list)
    _pieces: list[_Piece] = field(default_factory=list)
    _labels: dict[str, dict[Hashable, int]] = field(default_factory=dict)
    _actions: dict[Hashable, int] = field(default_factory=dict)
    _keys: dict[str, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.loggers), np.int64)

    def add(self, rows: LearnerRows) -> None:
        """Take usable rows of a batch that are in the sample."""
        own, cross = probabilities(rows, self.loggers)
        logger = get_index(self.loggers, rows.label)
        unit = mix(start(len(rows), self.seed), rows.fold)
        unit = unit if self.clustered else mix(unit, logger)
        usable = (
            np.isfinite(rows.reward)
            & (logger >= 0)
            & (own > 0)
            & (own <= 1 + PROBABILITY_ROUNDING)
        )
        usable &= np.isfinite(cross).all(axis=1) & _has_label(rows.batch.action)
        mixture = None if rows.mixture is None else np.exp(rows.mixture)
        if mixture is not None:
            usable &= (mixture > 0) & (mixture <= 1 + PROBABILITY_ROUNDING)
        taken = usable & (unit <= np.uint64(self.share * LARGEST))
        self.counts += np.bincount(logger[usable], minlength=len(self.loggers))
        self.usable.append(usable)
        self.taken.append(taken)
        chosen = np.flatnonzero(taken)
        arrays = {"logger": logger, "reward": rows.reward, "own": own, "cross": cross}
        arrays |= {"hashes": unit} | ({} if mixture is None else {"mixture": mixture})
        arrays = {name: values[chosen] for name, values in arrays.items()}
        arrays["action"] = code_labels(rows.batch.action[chosen].tolist(), self._actions)
        columns = {name: self._raw(rows, name, chosen) for name in self.features}
        base = self._scores(rows.batch.take(chosen))
        lists = None if self.eligible is None else rows.batch[self.eligible][chosen]
        self._pieces.append(_Piece(arrays, columns, base, lists))

    def _scores(self, batch: Batch) -> dict[str, FloatArray]:
        """Return the log-probability of every action under policies that give it."""
        found = {}
        for name, policy in list(self.policies.items()):
            if not isinstance(policy, LoggedDistribution):
                found[name] = policy.distribution(batch)
            elif policy.is_whole(batch):
                found[name] = policy.read(batch, self._keys.setdefault(name, {}))
            else:
                del self.policies[name]
        return {name: as_scores(prob).astype(np.float32) for name, prob in found.items()}

    def _raw(self, rows: LearnerRows, name: str, chosen: IntArray) -> RawColumn:
        return raw_column(name, rows.batch[name][chosen], self._labels.setdefault(name, {}))

    def rows(self, wanted: Sequence[Hashable] | None) -> LearningRows:
        """Return all rows that were taken, in the order in which they were read."""
        pieces, played = self._pieces, tuple(self._actions)
        if not sum(len(piece.arrays["action"]) for piece in pieces):
            raise LogError([NO_ROWS])
        arrays = {n: np.concatenate([p.arrays[n] for p in pieces]) for n in pieces[0].arrays}
        logged, actions = arrays.pop("action"), _actions(played, wanted)
        action = get_index(actions, played)[logged]
        rows = LearningRows(
            columns={name: self._column(name) for name in self.features},
            actions=actions,
            loggers=self.loggers,
            action=action,
            base={name: self._base(name, actions) for name in self.policies},
            clustered=self.clustered,
            among=self._among(actions, action),
            **arrays,
        )
        self._pieces.clear()
        if self.clustered:
            return rows
        bits = _bits(rows, label_bits(logged, played))
        return replace(rows, hashes=row_hashes(bits, len(rows), self.seed))

    def _base(self, name: str, actions: Sequence[Hashable]) -> FloatArray:
        """Return the log-probabilities of some actions under a policy, in all rows."""
        policy = self.policies[name]
        if isinstance(policy, LoggedDistribution):
            keys = self._keys[name]
            index = np.array([keys.get(as_key(action), -1) for action in actions])
        else:
            index = get_index(list(policy.actions), list(actions))
        return np.concatenate([_reorder(piece.base[name], index) for piece in self._pieces])

    def _among(self, actions: Sequence[Hashable], action: IntArray) -> NDArray[np.bool] | None:
        """Return the actions that could be played in each row; reject lists without its own."""
        if self.eligible is None:
            return None
        lists = [piece.lists for piece in self._pieces if piece.lists is not None]
        among = np.concatenate([mark_listed(part, actions) for part in lists])
        lacking = int((pick(among, action, 1.0) == 0).sum())
        if lacking:
            raise UsageError(
                f"the list of {self.eligible!r} must contain the logged action, and "
                f"{lacking:,} rows lack it: correct the lists"
            )
        return among

    def _column(self, name: str) -> RawColumn:
        parts = [piece.columns[name] for piece in self._pieces]
        numbers = [part for part in parts if not isinstance(part, TextColumn)]
        if not numbers:
            codes = np.concatenate([p.codes for p in parts if isinstance(p, TextColumn)])
            return TextColumn(codes, list(self._labels[name]))
        if len(numbers) < len(parts) or len({part.shape[1] for part in numbers}) > 1:
            raise UsageError(f"a feature must have one type, and {name!r} has several")
        return np.concatenate(numbers)


def _has_label(action: AnyArray) -> NDArray[np.bool]:
    """Mark rows whose action is not missing."""
    if action.dtype.kind != "O":
        return np.ones(len(action), dtype=bool)
    return np.fromiter((label is not None for label in action.tolist()), bool, len(action))


def _reorder(scores: FloatArray, index: IntArray) -> FloatArray:
    """Return some columns of scores; the least score for a column that they lack."""
    width = scores.shape[1]
    least = np.full((len(scores), 1), math.log(LEAST_PROBABILITY), scores.dtype)
    found: FloatArray = np.hstack([scores, least])
    return found[:, np.where((index < 0) | (index >= width), width, index)]


def _actions(
    seen: tuple[Hashable, ...], wanted: Sequence[Hashable] | None
) -> tuple[Hashable, ...]:
    """Return the actions to learn over; reject one that no logger played."""
    if wanted is None:
        try:
            return tuple(sorted(seen))  # type: ignore[type-var]
        except TypeError:
            return tuple(sorted(seen, key=str))
    unseen = [a for a, k in zip(wanted, get_index(seen, list(wanted)), strict=True) if k < 0]
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
        if isinstance(values, TextColumn):
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
        played = pick(cross, get_index(loggers, rows.label), math.nan)
        own = np.where(np.isnan(own), played, own)
    elif len(loggers) == 1:
        cross = own[:, None]
    return own, cross
