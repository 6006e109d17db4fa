"""State of a watch: all blocks so far as histograms, in one file that is replaced as a whole.

The file holds the question that the watch was begun with, each block's name, rows and a hash
of its rows, and the histograms from which every bet can be settled again.  A state never holds
a row.  Reading executes nothing from a file, and rejects a damaged one with one message.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poolwise.errors import SourceError, UsageError
from poolwise.files import ARCHIVE_ERRORS, Kind, read_arrays, write_whole
from poolwise.intervals.betting import Bets
from poolwise.log.problems import UTC
from poolwise.moments.blocks import BLOCK_BINS, Blocks, ClusterMarks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.types import FloatArray

HORIZONS = (2.0, 8.0, 32.0, 128.0)  # times the rows of the first block
VERSION = 2  # bets of format 1 had one size, and none waited
STATE = Kind("a state", (".npz",))
DAMAGED_STATE = "the state is damaged: restore a copy, or begin a new state with all rows"
INDEPENDENT = ClusterMarks()
Asked = dict[str, Any]  # of plain values, by name


@dataclass(frozen=True)
class Block:
    """One block of a watch, and the bounds at its end.

    Attributes:
        name: Its period, or its number.
        rows: Rows of each logger.
        mark: Hash of its rows, in any order.
        clusters: Its clusters, if rows are not independent.
        value: Lower and upper bound of the target's value, over all block ends so far.
        difference: Those of the difference to the policy it is compared with, if any.
    """

    name: str
    rows: Mapping[str, int]
    mark: str
    clusters: ClusterMarks = INDEPENDENT
    value: tuple[float, float] | None = None
    difference: tuple[float, float] | None = None

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(self.rows.values())


@dataclass(frozen=True, eq=False)
class State:
    """Blocks of a watch.

    Attributes:
        question: The question that the watch was begun with.
        blocks: All blocks, in order.
        histograms: Values of each payoff; groups are the blocks.
        shifts: Shift of each payoff and block.
    """

    question: Asked
    blocks: tuple[Block, ...] = ()
    histograms: tuple[Blocks, ...] = ()
    shifts: tuple[FloatArray, ...] = ()

    def __add__(self, other: State) -> State:
        """Append the blocks of another state, which must come after these.

        The bounds at its block ends are left out: bets on them depend on these blocks too.
        """
        refuse_other(self.question, other.question)
        refuse_repeated(self.blocks, other.blocks)
        if not self.blocks:
            return other
        pairs = zip(self.histograms, other.histograms, strict=True)
        number = len(self.blocks)
        later = (replace(b, value=None, difference=None) for b in other.blocks)
        shifts = zip(self.shifts, other.shifts, strict=True)
        return State(
            self.question,
            (*self.blocks, *later),
            tuple(ours + theirs.moved(number) for ours, theirs in pairs),
            tuple(np.concatenate(both) for both in shifts),
        )

    def save(self, path: str | Path) -> None:
        """Write the file whole, or leave the old one as it is."""
        blocks = [asdict(block) for block in self.blocks]
        header = {"format": VERSION, "question": self.question, "blocks": blocks}
        arrays = {"header": np.array(json.dumps(header)), **self._arrays()}
        file = BytesIO()
        np.savez_compressed(file, checksum=np.array(_checksum(arrays)), **arrays)
        write_whole(path, file.getvalue())

    def _arrays(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {}
        for k, (histogram, shifts) in enumerate(zip(self.histograms, self.shifts, strict=True)):
            arrays |= {f"keys_{k}": histogram.keys, f"sums_{k}": histogram.sums}
            arrays[f"shifts_{k}"] = shifts
        return arrays

    @classmethod
    def load(cls, path: str | Path) -> State:
        """Read a file that `save` wrote."""
        try:
            arrays = read_arrays(Path(path).read_bytes())
            if str(arrays.pop("checksum")) != _checksum(arrays):
                raise SourceError(f"{str(path)!r}", DAMAGED_STATE)
            header = json.loads(str(arrays.pop("header")))
            if header["format"] != VERSION:
                raise SourceError(
                    f"{str(path)!r}",
                    f"the state must have format {VERSION}, got {header['format']!r}: read it "
                    "with the version of poolwise that wrote it",
                )
            return _decode_state(header, arrays)
        except OSError as reason:
            raise SourceError(f"{str(path)!r}", reason.strerror or DAMAGED_STATE) from reason
        except ARCHIVE_ERRORS as reason:
            raise SourceError(f"{str(path)!r}", DAMAGED_STATE) from reason


def _decode_state(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> State:
    """Return the state of a header and arrays; raise ValueError if they do not agree."""
    blocks = tuple(_block(line) for line in header["blocks"])
    number = len(arrays) // 3
    histograms = tuple(Blocks(arrays[f"keys_{k}"], arrays[f"sums_{k}"]) for k in range(number))
    shifts = tuple(arrays[f"shifts_{k}"] for k in range(number))
    state = State(dict(header["question"]), blocks, histograms, shifts)
    for histogram, shift in zip(histograms, shifts, strict=True):
        groups = histogram.keys // BLOCK_BINS
        if len(shift) != len(blocks) or not (groups < len(blocks)).all():
            raise ValueError("blocks")
    return state


def _block(line: Mapping[str, Any]) -> Block:
    bounds = {
        name: None if line[name] is None else (float(line[name][0]), float(line[name][1]))
        for name in ("value", "difference")
    }
    rows = {str(label): int(count) for label, count in line["rows"].items()}
    clusters = ClusterMarks(
        int(line["clusters"]["rows"]), tuple(map(str, line["clusters"]["marks"]))
    )
    return Block(str(line["name"]), rows, str(line["mark"]), clusters, **bounds)


def _checksum(arrays: Mapping[str, Any]) -> str:
    digest = sha256()
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def stamp(path: Path) -> str:
    """Return a hash of a file; empty if there is none."""
    return sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def refuse_other(begun: Asked, asked: Asked) -> None:
    """Raise UsageError if a state was begun with another question."""
    begun = {"timezone": UTC} | begun  # of states that were begun before logs had a time zone
    names = [name for name in begun | asked if begun.get(name) != asked.get(name)]
    if names:
        pairs = "; ".join(f"{n} {begun.get(n)!r}, not {asked.get(n)!r}" for n in names)
        raise UsageError(
            f"the state was begun with another question: {pairs}. Ask the same question, or "
            "begin a new state with all rows"
        )


def refuse_repeated(before: Sequence[Block], after: Sequence[Block]) -> None:
    """Raise UsageError if blocks were added before, share clusters, or are out of order."""
    names, marks = {b.name for b in before}, {b.mark: b.name for b in before}
    for block in after:
        if block.name in names:
            raise UsageError(
                f"the rows of {block.name!r} were added before: a period is added once, with "
                "all its rows"
            )
        if block.mark in marks:
            raise UsageError(
                f"the rows of {block.name!r} are those of {marks[block.mark]!r}, which were "
                "added before: rows count once"
            )
        known = {b.name: b.clusters.shared(block.clusters) for b in before}
        name = max(known, key=lambda n: known[n], default="")
        if name and known[name]:
            raise UsageError(
                "bets require that the rows of a cluster are in one block, and some clusters "
                f"have rows in {name!r} and in {block.name!r}: name a finer cluster, such as a "
                "user on one day"
            )
    if before and after and not in_order([before[-1].name, *(b.name for b in after)]):
        raise UsageError(
            "periods must be added in their order, numbers by size and text by its characters: "
            f"the state ends with {before[-1].name!r}, and the rows begin with "
            f"{after[0].name!r}. Bets on later periods were placed already: begin a new state "
            "with all rows"
        )


def in_order(names: Sequence[str]) -> bool:
    """Test if periods ascend: by size if all are numbers, else by their characters.

    >>> in_order(["9", "10"]), in_order(["2024-05-09", "2024-05-10"]), in_order(["b", "a"])
    (True, True, False)
    """
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return list(names) == sorted(names)
    return numbers == sorted(numbers)


def with_bounds(state: State) -> State:
    """Return the state with the bounds at block ends that have none yet."""
    blocks = list(state.blocks)
    for k, block in enumerate(blocks):
        if block.value is None:
            part = replace(state, blocks=tuple(blocks[: k + 1]))
            blocks[k] = replace(
                block, value=_bound_value(part), difference=_bound_difference(part)
            )
    return replace(state, blocks=tuple(blocks))


def _make_bets(state: State, payoff: int, error: float) -> Bets:
    """Return the bets on one payoff, up to the last block of the state."""
    number = len(state.blocks)
    planned, sizes = state.question["planned"], [b.clusters.rows for b in state.blocks]
    rows = [state.blocks[0].count * h for h in HORIZONS] if planned is None else [planned]
    horizons = tuple(count / sizes[0] for count in rows)
    shifts = state.shifts[payoff][:number]
    blocks = state.histograms[payoff].until(number)
    return Bets(blocks, error, number, 1, shifts, horizons, cluster_rows=tuple(sizes))


def _bound_value(state: State, payoff: int = 0, share: float = 1.0) -> tuple[float, float]:
    """Return the bounds of a target's value; `share` of the error is spent on them."""
    smallest, largest = state.question["reward_range"]
    base = min(smallest, 0.0)
    error = share * (1 - state.question["level"]) / 2
    low, high = (_make_bets(state, payoff + k, error).lower() for k in (0, 1))
    return (
        max(smallest, base + (largest - base) * low),
        min(largest, largest - (largest - base) * high),
    )


def _bound_difference(state: State) -> tuple[float, float] | None:
    """Return the bounds of the difference to the other policy, if there is one.

    That to a logger is bet on directly.  Weights of another target have no bound, so its value
    and that of the target are bounded at half the error each.
    """
    other = state.question["better_than"]
    if not other:
        return None
    if other in state.question["targets"]:
        (low, high), (least, most) = _bound_value(state, 0, 0.5), _bound_value(state, 2, 0.5)
        return low - most, high - least
    smallest, largest = state.question["reward_range"]
    width = largest - min(smallest, 0.0)
    error = (1 - state.question["level"]) / 2
    lower, upper = (_make_bets(state, k, error).lower(-1.0, 1.0) for k in (2, 3))
    return width * lower, -width * upper
