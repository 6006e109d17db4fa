"""Policy: a learned policy as an object that is evaluated, saved, and asked for decisions.

A `LinearPolicy` is a softmax of linear scores, or plays the best of them.  A `LearnedMixture`
plays one of several, each learned without one fold of the rows.  Both are saved as JSON,
which is checked when it is read: opening a file runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from poolwise.errors import MissingColumnError, PolicyError, UsageError
from poolwise.files import JSON, refuse_output, write_whole
from poolwise.learning.features import read_encoding, refuse_labels
from poolwise.learning.fit import Trees, greedy, read_trees, softmax
from poolwise.learning.logged import LoggedDistribution
from poolwise.log.adapters import Mixture, Table, as_policy
from poolwise.log.eligible import Eligible, mark_listed, restrict_policy
from poolwise.log.policy import Batch, draw_index, get_index, is_distribution, pick
from poolwise.rows.score import to_batch

if TYPE_CHECKING:
    from collections.abc import Hashable
    from os import PathLike

    from numpy.typing import NDArray

    from poolwise.learning.features import Encoding
    from poolwise.log.policy import Distribution, PolicyLike
    from poolwise.types import AnyArray, FloatArray

KIND, WITH_TREES, VERSION = "poolwise.linear", "poolwise.trees", 1
MALFORMED = (  # what JSON of another form raises where it is read
    AttributeError,
    LookupError,
    MemoryError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
LEAST_PROBABILITY = 1e-6  # probability of an anchor below which its score falls no further


class Decisions(NamedTuple):
    """Actions that a policy drew, and their probabilities, to be logged as propensities."""

    action: AnyArray
    probability: FloatArray


class Deciding:
    """A policy that can be asked for decisions, and saved."""

    def decide(self: Any, rows: Any, *, seed: int | None = None) -> Decisions:  # noqa: ANN401
        """Draw one action per row.

        Args:
            rows: A pyarrow, pandas or Polars frame, a list of dictionaries, or a `Batch`.
            seed: Seed of the draws; by default they differ in each call.
        """
        parts: Sequence[Any] = self.policies if isinstance(self, Mixture) else (self,)
        names = dict.fromkeys(name for part in parts for name in part.columns)
        whole = any(part.base is not None for part in parts)
        prob = self.distribution(_batch(rows, tuple(names), whole=whole))
        index = draw_index(prob, np.random.default_rng(seed))
        return Decisions(np.array([*self.actions])[index], pick(prob, index))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the policy as a JSON file, whole or not at all."""
        refuse_output(path, JSON)
        text = json.dumps(policy_data(self), indent=1, allow_nan=False)
        write_whole(path, text.encode())


def _batch(rows: Any, columns: tuple[str, ...], *, whole: bool) -> Batch:  # noqa: ANN401
    """Return a frame, or a list of dictionaries, as a batch: some columns, or the whole."""
    import pyarrow as pa

    if isinstance(rows, Batch):
        return rows
    if isinstance(rows, list):
        rows = pa.Table.from_pylist(rows) if rows else {name: [] for name in columns}
    table = rows.to_arrow() if hasattr(rows, "to_arrow") else pa.table(rows)
    names = table.schema.names
    absent = {name: "features" for name in columns if name not in names}
    if absent:
        raise MissingColumnError(absent, names)
    columns = tuple(names) if whole else columns
    chosen = table.select(list(columns)).combine_chunks()
    (batch,) = chosen.to_batches() or [pa.RecordBatch.from_pylist([], schema=chosen.schema)]
    return to_batch(batch, None, columns)


@dataclass(frozen=True, eq=False)
class LinearPolicy(Deciding):
    r"""A softmax of linear scores, or the best of them; trees may add to them.

    $$\pi(a \mid x) \propto \exp(\phi(x)' \theta_a + f_a(x) + b_a(x))$$

    Attributes:
        actions: Labels in the order of the coefficients.
        encoding: Turns columns of the log into features.
        coefficients: Shape (features, actions).
        greedy: Always play the best action; ties are split evenly.
        epsilon: Fraction of the rows on which the policy plays any action, with equal
            probability.
        anchor: Name of the logger that learning started at.
        base: Policy whose log-probabilities $b$ are added to the scores, if any.
        trees: Trees whose scores $f$ are added, if any.
        eligible: Column with the list of actions that can be played; None for all.
    """

    actions: tuple[Hashable, ...]
    encoding: Encoding
    coefficients: FloatArray
    greedy: bool = True
    epsilon: float = 0.0
    anchor: str = ""
    base: Distribution | None = None
    trees: Trees | None = None
    eligible: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that a row must have."""
        lists = () if self.eligible is None else (self.eligible,)
        logged = self.base.columns if isinstance(self.base, LoggedDistribution) else ()
        return tuple(dict.fromkeys([*self.encoding.columns, *lists, *logged]))

    def distribution(self, batch: Batch) -> FloatArray:
        return self.play(self.encoding.encode(batch), self.fixed(batch))

    def fixed(self, batch: Batch) -> FloatArray | None:
        """Return scores that are added: those of the base, minus infinity if not eligible."""
        base = self.base
        scores = None if base is None else base_scores(base, batch, self.actions)
        if self.eligible is None:
            return scores
        among = mark_listed(batch[self.eligible], self.actions)
        empty = np.flatnonzero(~among.any(axis=1))
        if len(empty):
            reason = f"has no action in the list of {self.eligible!r}, in {len(empty):,} rows"
            raise PolicyError("learned", reason, empty[:5].tolist())
        return mask_scores(scores, among)

    def play(self, features: FloatArray, base: FloatArray | None) -> FloatArray:
        """Return the probability of every action from features and the scores of the base."""
        with np.errstate(over="ignore", invalid="ignore"):
            scores: FloatArray = features @ self.coefficients
        lost = np.flatnonzero(~np.isfinite(scores).all(axis=1))
        if len(lost):
            reason = f"has scores outside the range of doubles, in {len(lost):,} rows"
            raise PolicyError("learned", reason, lost[:5].tolist())
        scores = scores if self.trees is None else scores + self.trees.scores(features)
        scores = scores if base is None else scores + base
        prob = greedy(scores) if self.greedy else softmax(scores)
        return prob if not self.epsilon else add_exploration(prob, self.epsilon, base)

    def prob(self, batch: Batch) -> FloatArray:
        return pick(self.distribution(batch), batch.index_in(self.actions))


def add_exploration(
    prob: FloatArray, epsilon: float, base: FloatArray | None = None
) -> FloatArray:
    """Return probabilities with a share of uniform exploration among what can be played."""
    among = np.ones(prob.shape) if base is None else np.isfinite(base)
    mixed: FloatArray = (1 - epsilon) * prob + epsilon * among / among.sum(axis=1)[:, None]
    return mixed


def mask_scores(scores: FloatArray | None, among: NDArray[np.bool]) -> FloatArray:
    """Return scores, 0 by default, that exclude actions which cannot be played."""
    return np.where(among, np.float32(0.0) if scores is None else scores, np.float32(-np.inf))


def base_scores(base: Distribution, batch: Batch, actions: Sequence[Hashable]) -> FloatArray:
    """Return the log-probabilities of a policy, in the order of some actions."""
    index = get_index(list(base.actions), list(actions))
    prob = np.asarray(base.distribution(batch), dtype=np.float64)
    return as_scores(np.where(index >= 0, prob[:, index], 0.0))


def as_scores(prob: FloatArray) -> FloatArray:
    """Return logarithms of probabilities, which fall no further than the least."""
    scores: FloatArray = np.log(np.maximum(prob, LEAST_PROBABILITY, dtype=np.float64))
    return scores


@dataclass(frozen=True)
class LearnedMixture(Deciding, Mixture):
    """Plays one of several linear policies, drawn anew for each row.

    Its value is the mean of theirs, which rows of the folds that each one did not learn from
    estimate.
    """


def policy_data(policy: object) -> dict[str, Any]:
    """Return a learned policy as JSON data."""
    parts: Sequence[Any] = policy.policies if isinstance(policy, Mixture) else (policy,)
    shares = policy.shares if isinstance(policy, Mixture) else (1.0,)
    first = parts[0]
    if not all(isinstance(action, str | int | float) for action in first.actions):
        raise UsageError("a policy file needs actions that are text or numbers")
    return {
        "kind": WITH_TREES if any(part.trees for part in parts) else KIND,
        "version": VERSION,
        "actions": list(first.actions),
        "epsilon": first.epsilon,
        "eligible": first.eligible,
        "parts": [_part(part, share) for part, share in zip(parts, shares, strict=True)],
    }


def _part(part: LinearPolicy, share: float) -> dict[str, Any]:
    return {
        "share": share,
        "greedy": part.greedy,
        "anchor": part.anchor,
        "base": base_data(part.base, part.eligible),
        "encoding": part.encoding.to_dict(),
        "coefficients": part.coefficients.tolist(),
        **({"trees": part.trees.to_dict()} if part.trees else {}),
    }


def load_policy(
    path: str | PathLike[str],
    *,
    loggers: Mapping[str, PolicyLike] | None = None,
    trust: bool = False,
) -> LinearPolicy | LearnedMixture:
    """Read a learned policy from a JSON file, and check it.

    Args:
        path: The file.
        loggers: Loggers by label. They are needed if the anchor is a policy in Python,
            which a file cannot hold.
        trust: Load trees too. LightGBM reads them, and does not protect against malicious
            files.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    try:
        data = json.loads(content)
        return _policy(data, loggers or {}, trust=trust)
    except (*MALFORMED, PolicyError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{path} is not a policy that can be used: {what}") from None


def _policy(
    data: Any,  # noqa: ANN401 - JSON
    loggers: Mapping[str, PolicyLike],
    *,
    trust: bool,
) -> LinearPolicy | LearnedMixture:
    """Return the policy of JSON data; a ValueError says what is wrong with it."""
    if not isinstance(data, Mapping) or data.get("kind") not in {KIND, WITH_TREES}:
        raise ValueError(f"its kind must be {KIND!r} or {WITH_TREES!r}")
    if data["version"] != VERSION:
        raise ValueError(
            f"its version must be {VERSION}, got {data['version']!r}: learn it again, or use "
            "the version of poolwise that wrote it"
        )
    if data["kind"] == WITH_TREES and not trust:
        raise ValueError(
            "its trees are read by LightGBM, which a damaged file can crash: pass trust=True "
            "(--trust) if you know its author"
        )
    epsilon = float(data["epsilon"])
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon must be in [0, 1], got {epsilon:g}")
    parts = [_read_part(data, part, epsilon, loggers) for part in data["parts"]]
    if not parts:
        raise ValueError("it has no parts")
    shares = [float(part["share"]) for part in data["parts"]]
    return parts[0] if len(parts) == 1 else LearnedMixture(parts, shares)


def _read_part(
    data: Mapping[str, Any],
    part: Mapping[str, Any],
    epsilon: float,
    loggers: Mapping[str, PolicyLike],
) -> LinearPolicy:
    encoding, actions = read_encoding(part["encoding"]), tuple(data["actions"])
    coefficients = np.array(part["coefficients"], dtype=np.float64)
    refuse_labels("its actions", actions)
    if not actions or len(set(actions)) < len(actions):
        raise ValueError("its actions must be distinct")
    if coefficients.shape != (encoding.size, len(actions)):
        shape = f"{encoding.size} x {len(actions)}"
        raise ValueError(f"its coefficients must be {shape}, got {coefficients.shape}")
    if not np.isfinite(coefficients).all():
        raise ValueError("its coefficients must be finite")
    anchor, trees = str(part["anchor"]), None
    if "trees" in part:
        if data["kind"] != WITH_TREES:
            raise ValueError(f"its kind must be {WITH_TREES!r}, since it has trees")
        trees = read_trees(part["trees"], encoding.size - 1, len(actions))
    return LinearPolicy(
        actions,
        encoding,
        coefficients,
        greedy=bool(part["greedy"]),
        epsilon=epsilon,
        anchor=anchor,
        base=_base(data, part["base"], anchor, loggers),
        trees=trees,
        eligible=None if data["eligible"] is None else str(data["eligible"]),
    )


def base_data(base: Distribution | None, eligible: str | None) -> bool | dict[str, Any]:
    """Return the base of a policy as JSON data; True if a file cannot hold it."""
    if isinstance(base, LoggedDistribution):
        return {"column": base.column, "logs": base.logs}
    if isinstance(base, Eligible) and base.column == eligible:
        base = base.policy
    if isinstance(base, Table):
        columns, actions, rows = base.to_rows()
        with suppress(ValueError):
            for labels in (actions, *(key for key, _ in rows)):
                refuse_labels("labels", labels)
            return {"columns": columns, "actions": actions, "rows": rows}
    return base is not None


def _base(
    data: Mapping[str, Any], given: object, anchor: str, loggers: Mapping[str, PolicyLike]
) -> Distribution | None:
    """Return the base of JSON data: a column, or a policy that is passed again."""
    if not given:
        return None
    if isinstance(given, Mapping):
        lists = None if data["eligible"] is None else str(data["eligible"])
        if "column" in given:
            column, logs = str(given["column"]), bool(given["logs"])
            return LoggedDistribution(column, tuple(data["actions"]), lists, logs)
        actions = given["actions"]
        refuse_labels("actions of its base", actions)
        rows = {tuple(key): dict(zip(actions, row, strict=True)) for key, row in given["rows"]}
        columns = tuple(map(str, given["columns"]))
        table = Table(rows, columns) if columns else Table(rows[()])
        return cast("Distribution", restrict_policy(table, lists))
    base = as_policy(loggers[anchor]) if anchor in loggers else None
    if base is None or not is_distribution(base):
        raise ValueError(
            f"it adds to the scores of {anchor!r}, which a file cannot hold: pass that policy, "
            f"as loggers={{{anchor!r}: policy}} or --propensities {anchor}=module:attribute"
        )
    return base
