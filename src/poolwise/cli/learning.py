"""Options of `poolwise learn`, and the files that it writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from poolwise.learning.learned import Learned
    from poolwise.log.log import Log


@dataclass(frozen=True, kw_only=True)
class LearnOptions:
    """Options of learning, and the files that it writes."""

    features: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN,COLUMN", help="Columns to learn from; by default --context."
        ),
    ] = None
    anchor: Annotated[
        str, typer.Option(help="Logger to start at: its label, best, or none for uniform.")
    ] = "best"
    folds: Annotated[
        int | None, typer.Option(help="Folds, 5 by default: a mixture of as many policies.")
    ] = None
    holdout: Annotated[
        float | None, typer.Option(help="Share of rows to hold out, in place of folds.")
    ] = None
    trees: Annotated[
        bool, typer.Option("--trees", help="Add gradient-boosted trees to the anchor's scores.")
    ] = False
    epsilon: Annotated[
        float, typer.Option(help="Share of rows on which the policy explores.")
    ] = 0.0
    seed: Annotated[int, typer.Option(help="Seed of the folds and of the sample.")] = 0
    most_rows: Annotated[
        int, typer.Option("--rows", help="Learn from a sample of about so many rows.")
    ] = 1_000_000
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the policy, as JSON.")
    ] = None
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report, one HTML page.")
    ] = None
    require: Annotated[
        Literal["better"] | None,
        typer.Option(help="Exit with status 1 unless the policy is better than every logger."),
    ] = None

    def check_outputs(self, log: Log) -> None:
        """Reject output paths that cannot be written, before reading rows."""
        from poolwise.cli.terminal import refuse_new_folder
        from poolwise.rows.guard import files_of
        from poolwise.rows.output import HTML, JSON, refuse_output

        for path, kind in ((self.out, JSON), (self.html, HTML)):
            if path is not None:
                refuse_output(path, kind, files_of(log))
                refuse_new_folder(path)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `learn`."""
        return {
            "features": [name for text in self.features or () for name in text.split(",")],
            "anchor": None if self.anchor == "none" else self.anchor,
            "folds": self.folds,
            "holdout": self.holdout,
            "trees": self.trees,
            "epsilon": self.epsilon,
            "seed": self.seed,
            "rows": self.most_rows,
        }

    def save(self, learned: Learned, command: str) -> None:
        """Write the policy and the report."""
        for path in (self.out, self.html):
            if path is not None:
                learned.save(path, command=command)
