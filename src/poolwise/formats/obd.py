"""Open Bandit Dataset: its folders of CSV files become a log.

The data (Saito et al., 2020) has one folder for each policy that chose fashion items,
``random`` and ``bts``, and in it one folder for each campaign.  The propensity of a row is
that of its own policy; of ``random`` it is known for every row, 1 over the number of items.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from poolwise.errors import MissingColumnError, SourceError, UsageError, nearest
from poolwise.log.log import Log

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ITEMS: Mapping[str, int] = {"all": 80, "men": 34, "women": 46}  # of each campaign
KNOWN = "random"  # the policy that plays every item alike
ROLES = {"item_id": "action", "position": "context", "click": "reward"}
PROPENSITY = "propensity_score"
CONTEXT = ("position", "user_feature")  # how context columns begin


def from_obd(
    path: str | Path,
    *,
    campaign: str | None = None,
    loggers: Sequence[str] = (),
    context: Sequence[str] | None = None,
) -> Log:
    """Read the Open Bandit Dataset, as published, into a log.

    Loggers are called as their folders: ``random``, ``bts``.  Only own propensities are
    known; those of ``random`` are the same for every item, so that the other logger alone
    has to be guessed where the log gets `estimate_mixture`.

    Args:
        path: The folder that holds ``random`` and ``bts``, or one CSV file within it.
        campaign: "all", "men" or "women"; not needed where the folder has one only.
        loggers: Policies to read; by default all that are there.
        context: Columns of the context; by default the position and the user's features.

    Raises:
        SourceError: There are no such files, or they lack columns.
    """
    files = _one_file(Path(path)) if Path(path).is_file() else _files(Path(path), campaign)
    chosen = _chosen(files, loggers)
    header = _common_header(list(chosen.values()))
    items = ITEMS.get(next(iter(chosen.values())).stem)
    others: dict[str, str | None] = dict.fromkeys(chosen)
    if items and KNOWN in others:
        others[KNOWN] = f"1.0 / {items}"
    seen = [c for c in header if c.startswith(CONTEXT)] if context is None else list(context)
    return Log(
        {label: str(file) for label, file in chosen.items()},
        action="item_id",
        reward="click",
        propensity=PROPENSITY,
        propensities=others if any(others.values()) else None,
        context=tuple(seen),
        reward_range=(0.0, 1.0),
    )


def uniform_item(campaign: str) -> str:
    """The target that shows every item of a campaign alike, as an expression.

    >>> uniform_item("men")
    '1.0 / 34'
    """
    if campaign not in ITEMS:
        raise UsageError(f"the campaigns are {', '.join(ITEMS)}, not {campaign!r}")
    return f"1.0 / {ITEMS[campaign]}"


def _one_file(path: Path) -> dict[str, Path]:
    """A file by its policy: the folder above that of the campaign."""
    folder = path.resolve().parent
    label = folder.parent.name if folder.name == path.stem else folder.name
    return {label: path}


def _files(folder: Path, campaign: str | None) -> dict[str, Path]:
    """The file of each policy for one campaign."""
    found = {(p.parts[-3], p.stem): p for p in sorted(folder.glob("*/*/*.csv"))}
    found = {key: p for key, p in found.items() if p.parent.name == p.stem}
    campaigns = sorted({name for _, name in found})
    if not found:
        raise SourceError(str(folder), "it has no files such as random/men/men.csv")
    if campaign is None and len(campaigns) > 1:
        raise UsageError(f"say which `campaign`: the folder has {', '.join(campaigns)}")
    wanted = campaigns[0] if campaign is None else campaign
    if wanted not in campaigns:
        raise UsageError(f"there is no campaign {wanted!r}: there are {', '.join(campaigns)}")
    return {policy: p for (policy, name), p in found.items() if name == wanted}


def _chosen(files: Mapping[str, Path], loggers: Sequence[str]) -> dict[str, Path]:
    if isinstance(loggers, str):
        raise UsageError("`loggers` is a list of names, not one name")
    for name in loggers:
        if name not in files:
            close = nearest(name, files)
            hint = f"; did you mean {close!r}?" if close else ""
            raise UsageError(f"there is no logger {name!r}{hint} There are {', '.join(files)}.")
    return {name: files[name] for name in loggers or files}


def _common_header(files: Sequence[Path]) -> list[str]:
    """Columns that all files have; each must have those that play a role."""
    headers = [_header(path) for path in files]
    common = [c for c in headers[0] if all(c in header for header in headers)]
    missing = {
        c: role for c, role in {**ROLES, PROPENSITY: "propensity"}.items() if c not in common
    }
    if missing:
        raise MissingColumnError(missing, common)
    return common


def _header(path: Path) -> list[str]:
    import csv

    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return next(csv.reader(lines), [])
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(str(path), str(error)) from error
