"""Open Bandit: dictionaries of the Pipeline, and folders of the Dataset, become logs.

The Pipeline (OBP) has dense arrays, rows times actions times positions, and one propensity per
row.  An evaluation needs one number per row and logger: the probability of the logged action,
which `from_obp` extracts.

The Dataset (Saito et al., 2020) has one folder for each policy that chose fashion items,
``random`` and ``bts``, and in it one folder for each campaign.  The propensity of a row is
that of its own policy; for ``random`` it is known for every row, 1 over the number of items.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from poolwise.errors import MissingColumnError, SourceError, UsageError, did_you_mean
from poolwise.formats.labelled import list_column
from poolwise.log.log import Log
from poolwise.log.policy import SUM_TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from poolwise.types import AnyArray, FloatArray, IntArray

BanditFeedback: TypeAlias = Mapping[str, Any]  # arrays and counts, as in OBP
TARGET = "target_prob"
STRATA = ("stratum_idx", "strata")  # OBP renamed these keys; the older names come second
AVERAGES = ("pscore_avg", "pscore_star")

ITEMS: Mapping[str, int] = {"all": 80, "men": 34, "women": 46}  # of each campaign
UNIFORM = "random"  # the policy that plays every item with the same probability
PROPENSITY = "propensity_score"
ROLES = {
    "item_id": "action",
    "position": "context",
    "click": "reward",
    PROPENSITY: "propensity",
}
CONTEXT = ("position", "user_feature")  # beginnings of the names of context columns


def from_obp(
    bandit_feedback: BanditFeedback,
    *,
    action_dist: ArrayLike | Mapping[str, ArrayLike] | None = None,
    behavior: Mapping[Any, ArrayLike] | None = None,
) -> Log:
    """Turn the `bandit_feedback` of Open Bandit Pipeline into a log.

    `stratum_idx` labels the loggers; without it there is one logger, "log". The
    cross-propensities come from `behavior` or, with two loggers, from `pscore_avg`, since
    the mixture and the probability under one logger determine the other. With more loggers,
    `pscore_avg` becomes the log's `mixture`; without it, only own propensities are known,
    and balanced is rejected.

    Args:
        bandit_feedback: The dictionary, of one logger or several.
        action_dist: Probabilities of the target, shape (rows, actions) or (rows, actions,
            positions). They become the column `target_prob`; a mapping of names to
            arrays becomes a column for each name.
        behavior: For each value of `stratum_idx`, that logger's probabilities in *every*
            row, in the same shapes or already of the logged action, shape (rows,).
    """
    rows = _Feedback(bandit_feedback)
    crossed, columns = _columns(rows, behavior)
    context = rows.context()
    targets = rows.targets(action_dist)
    taken = [name for name in targets if name in {*columns, *context}]
    if taken:
        raise UsageError(f"a target must not have the name of a column: rename {taken[0]!r}")
    return Log(
        pa.table({**columns, **context, **targets}),
        logger="logger",
        action="action",
        reward="reward",
        propensity="propensity",
        propensities={label: f"propensity_{label}" for label in crossed} or None,
        context=tuple(context),
        mixture="mixture" if "mixture" in columns else None,
    )


def _columns(
    rows: _Feedback, behavior: Mapping[Any, ArrayLike] | None
) -> tuple[list[str], dict[str, AnyArray]]:
    """Return the loggers with cross-propensities, and the columns of roles."""
    labels, own = rows.labels(), rows.own_propensity()
    crossed = _cross_propensities(rows, labels, own, behavior)
    columns = {
        "logger": labels,
        "action": rows.action,
        "reward": rows.vector("reward"),
        "propensity": own,
        **{f"propensity_{label}": values for label, values in crossed.items()},
    }
    average = rows.find_first(AVERAGES)
    if average is not None and not crossed:
        columns["mixture"] = rows.vector(average)
    return list(crossed), columns


class _Feedback:
    """Reads arrays of the dictionary, and rejects those of a wrong shape or range."""

    def __init__(self, feedback: BanditFeedback) -> None:
        if not isinstance(feedback, Mapping):
            raise UsageError(
                f"bandit_feedback must be a dictionary, got {type(feedback).__name__}"
            )
        self.values = {key: value for key, value in feedback.items() if value is not None}
        missing = [k for k in ("n_actions", "action", "reward") if k not in self.values]
        if missing:
            raise UsageError(f"bandit_feedback has no {', '.join(missing)}: is it from OBP?")
        self.count = len(np.asarray(feedback["action"]))
        rounds = feedback.get("n_rounds", self.count)
        if rounds != self.count:
            raise UsageError(f"n_rounds is {rounds}, but there are {self.count} actions")
        self.actions = int(feedback["n_actions"])
        self.action = self._indices("action", self.actions)

    def vector(self, name: str) -> FloatArray:
        return _read_numbers(name, self.values[name], (self.count,))

    def _indices(self, name: str, size: int) -> IntArray:
        values = self.vector(name)
        if (values != np.floor(values)).any() or (values < 0).any() or (values >= size).any():
            raise UsageError(f"{name} must hold whole numbers from 0 to {size - 1}")
        return values.astype(np.int64)

    def find_first(self, names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in self.values), None)

    def labels(self) -> AnyArray:
        """Return the label of each row's logger."""
        name = self.find_first(STRATA)
        if name is None:
            return np.full(self.count, "log")
        return self._indices(name, 2**31).astype(str)

    def own_propensity(self) -> FloatArray:
        if "pscore" in self.values:
            return self.vector("pscore")
        if "pi_b" in self.values:
            return self.at_action("pi_b", self.values["pi_b"])
        raise UsageError("bandit_feedback must have pscore or pi_b")

    def at_action(self, name: str, values: ArrayLike) -> FloatArray:
        """Return the probability of the logged action at its position, one per row."""
        array = np.asarray(values)
        if array.ndim == 1:
            return _read_numbers(name, array, (self.count,))
        if array.ndim == 2:
            array = array[:, :, None]
        dense = _read_numbers(name, array, (self.count, self.actions, *array.shape[2:3]))
        invalid = (np.abs(dense.sum(axis=1) - 1) > SUM_TOLERANCE).any(axis=1)
        if invalid.any():
            count = int(invalid.sum())
            raise UsageError(f"{name} does not sum to 1 over the actions in {count:,} rows")
        return dense[np.arange(self.count), self.action, self._position(name, dense.shape[2])]

    def targets(
        self, action_dist: ArrayLike | Mapping[str, ArrayLike] | None
    ) -> dict[str, FloatArray]:
        """Return the probability of the logged action under each target, by name."""
        if not isinstance(action_dist, Mapping | None):
            action_dist = {TARGET: action_dist}
        named = (action_dist or {}).items()
        return {name: self.at_action(f"action_dist[{name!r}]", v) for name, v in named}

    def _position(self, name: str, positions: int) -> IntArray:
        if "position" in self.values:
            return self._indices("position", positions)
        if positions > 1:
            raise UsageError(
                f"bandit_feedback must have `position`, since {name} has {positions} positions"
            )
        return np.zeros(self.count, dtype=np.int64)

    def context(self) -> dict[str, pa.Array | AnyArray]:
        """Return the context as one column of lists, and the position if there is one."""
        columns: dict[str, pa.Array | AnyArray] = {}
        if "context" in self.values:
            matrix = np.asarray(self.values["context"], dtype=np.float64)
            if matrix.ndim != 2 or len(matrix) != self.count:
                raise UsageError(
                    f"context must have shape ({self.count}, d), got {matrix.shape}"
                )
            columns["context"] = list_column(matrix)
        if "position" in self.values:
            columns["position"] = self._indices("position", 2**31)
        return columns


def _read_numbers(name: str, values: object, shape: tuple[int, ...]) -> FloatArray:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} must hold numbers: {error}") from error
    if array.shape != shape:
        raise UsageError(f"{name} must have shape {shape}, got {array.shape}")
    if not np.isfinite(array).all():
        count = int((~np.isfinite(array)).sum())
        raise UsageError(f"{name} must hold finite numbers; {count:,} values are not finite")
    return array


def _cross_propensities(
    rows: _Feedback,
    labels: AnyArray,
    own: FloatArray,
    behavior: Mapping[Any, ArrayLike] | None,
) -> dict[str, FloatArray]:
    """Return the probability of each logged action under every logger, if known."""
    present = sorted(set(labels.tolist()))
    if behavior is not None:
        by_label = {str(key): values for key, values in behavior.items()}
        missing = [label for label in present if label not in by_label]
        if missing:
            raise UsageError(f"behavior must have every logger, lacks {', '.join(missing)}")
        return {k: rows.at_action(f"behavior[{k!r}]", v) for k, v in by_label.items()}
    average = rows.find_first(AVERAGES)
    if average is None or len(present) != 2:  # the mixture and one give the other
        return {}
    return other_of_two(labels, own, rows.vector(average))


def other_of_two(
    labels: AnyArray, own: FloatArray, average: FloatArray
) -> dict[str, FloatArray]:
    r"""Return both loggers' probabilities, from a row's own and the mixture's.

    $$\pi_{other} = (\pi_{avg} - \alpha_{own} \pi_{own}) / \alpha_{other},
      \qquad \alpha_i = n_i / n$$

    OBP mixes by the requested shares, which differ from those of the rows by up to 1/n; the
    result may leave [0, 1] by as much, and is clipped.

    >>> both = other_of_two(np.array(["0", "1"]), np.array([0.2, 0.6]), np.array([0.5, 0.4]))
    >>> both["0"].round(3).tolist(), both["1"].round(3).tolist()
    ([0.2, 0.2], [0.8, 0.6])
    """
    names, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
    share = counts / len(labels)
    other = (average - share[index] * own) / share[1 - index]
    invalid = np.maximum(-other, other - 1) > 1 / counts.min() + 1e-6
    if invalid.any():
        raise UsageError(
            f"pscore_avg cannot be the mixture of the two loggers in {int(invalid.sum()):,} of "
            f"{len(own):,} rows: the other logger's probability would be "
            f"{other[invalid][0]:.6g}. Pass `behavior`, the probabilities of each logger."
        )
    other = other.clip(0.0, 1.0)
    return {
        str(name): np.where(index == k, own, other) for k, name in enumerate(names.tolist())
    }


def from_obd(
    path: str | Path,
    *,
    campaign: str | None = None,
    loggers: Sequence[str] = (),
    context: Sequence[str] | None = None,
) -> Log:
    """Read the Open Bandit Dataset, as published, into a log.

    Loggers have the names of their folders: ``random``, ``bts``. Only own propensities are
    known. But ``random`` plays every item with the same probability, so `estimate_mixture`
    estimates only the probabilities of the other logger.

    Args:
        path: The folder that holds ``random`` and ``bts``, or one CSV file within it.
        campaign: "all", "men" or "women"; optional if the folder has only one.
        loggers: Policies to read; by default all.
        context: Columns of the context; by default the position and the user's features.

    Raises:
        SourceError: The folder has no such files.
        MissingColumnError: Files lack columns.
    """
    files = _files(Path(path), campaign)
    chosen = _choose_files(files, loggers)
    header = _common_header(list(chosen.values()))
    items = ITEMS.get(next(iter(chosen.values())).stem)
    others: dict[str, str | None] = dict.fromkeys(chosen)
    if items and UNIFORM in others:
        others[UNIFORM] = f"1.0 / {items}"
    if context is None:
        context = [column for column in header if column.startswith(CONTEXT)]
    return Log(
        {label: str(file) for label, file in chosen.items()},
        action="item_id",
        reward="click",
        propensity=PROPENSITY,
        propensities=others if any(others.values()) else None,
        context=tuple(context),
        reward_range=(0.0, 1.0),
    )


def uniform_item(campaign: str) -> str:
    """Return the target that shows all items of a campaign equally often, in SQL.

    >>> uniform_item("men")
    '1.0 / 34'
    """
    if campaign not in ITEMS:
        raise UsageError(f"campaign must be one of {', '.join(ITEMS)}, got {campaign!r}")
    return f"1.0 / {ITEMS[campaign]}"


def _files(folder: Path, campaign: str | None) -> dict[str, Path]:
    """Return the file of each policy for one campaign, or a single file by its policy."""
    if folder.is_file():  # its policy is the folder above that of the campaign
        above = folder.resolve().parent
        return {above.parent.name if above.name == folder.stem else above.name: folder}
    paths = [p for p in sorted(folder.glob("*/*/*.csv")) if p.parent.name == p.stem]
    campaigns = sorted({path.stem for path in paths})
    if not paths:
        raise SourceError(str(folder), "it has no files such as random/men/men.csv")
    if campaign is None and len(campaigns) > 1:
        raise UsageError(f"campaign is required: the folder has {', '.join(campaigns)}")
    campaign = campaigns[0] if campaign is None else campaign
    if campaign not in campaigns:
        raise UsageError(f"campaign must be one of {', '.join(campaigns)}, got {campaign!r}")
    return {path.parts[-3]: path for path in paths if path.stem == campaign}


def _choose_files(files: Mapping[str, Path], loggers: Sequence[str]) -> dict[str, Path]:
    if isinstance(loggers, str):
        raise UsageError(f"loggers must be a list of names, got {loggers!r}")
    for name in loggers:
        if name not in files:
            hint = did_you_mean(name, files)
            raise UsageError(f"loggers are {', '.join(files)}; got {name!r}{hint}")
    return {name: files[name] for name in loggers or files}


def _common_header(files: Sequence[Path]) -> list[str]:
    """Return the columns that all files have; raise if one of the roles is missing."""
    headers = [_header(path) for path in files]
    common = [c for c in headers[0] if all(c in header for header in headers)]
    missing = {column: role for column, role in ROLES.items() if column not in common}
    if missing:
        raise MissingColumnError(missing, common)
    return common


def _header(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return next(csv.reader(lines), [])
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(str(path), str(error)) from error
