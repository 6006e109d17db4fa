"""Open Bandit Dataset: its folders of CSV files become a log.

The data (Saito et al., 2020) has one folder for each policy that chose fashion items,
``random`` and ``bts``, and in it one folder for each campaign.  The propensity of a row is
that of its own policy; for ``random`` it is known for every row, 1 over the number of items.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from poolwise.errors import MissingColumnError, SourceError, UsageError, did_you_mean
from poolwise.log.log import Log

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ITEMS: Mapping[str, int] = {"all": 80, "men": 34, "women": 46}  # of each campaign
UNIFORM = "random"  # the policy that plays every item with the same probability
ROLES = {"item_id": "action", "position": "context", "click": "reward"}
PROPENSITY = "propensity_score"
CONTEXT = ("position", "user_feature")  # beginnings of the names of context columns


def from_obd(
    path: str | Path,
    *,
    campaign: str | None = None,
    loggers: Sequence[str] = (),
    context: Sequence[str] | None = None,
) -> Log:
    """Read the Open Bandit Dataset, as published, into a log.

    Loggers have the names of their folders: ``random``, ``bts``.  Only own propensities are
    known; those of ``random`` are the same for every item, so that `estimate_mixture`
    estimates only those of the other logger.

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
    chosen = _chosen(files, loggers)
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


def _chosen(files: Mapping[str, Path], loggers: Sequence[str]) -> dict[str, Path]:
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
