"""Presented: what every result can be turned into.

A result says its rows (`to_dicts`), its whole content (`to_dict`) and its tables
(`grids`); frames, JSON, text and HTML follow from these, the same for all.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from poolwise.tables import Grid, as_html, as_text

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

Row = dict[str, object]


class Presented:
    """A result that can be shown to people and given to programs."""

    @property
    def warnings(self) -> list[Row]:
        """All findings, the gravest first."""
        raise NotImplementedError

    @property
    def sentences(self) -> Sequence[str]:
        """What is said below the tables."""
        return ()

    def to_dicts(self) -> list[Row]:
        """Flat dictionaries, numbers as they are."""
        raise NotImplementedError

    def to_dict(self) -> Row:
        """Everything, nested; the names are part of the public face."""
        raise NotImplementedError

    def grids(self) -> list[Grid]:
        """All tables, in the order in which they are read."""
        raise NotImplementedError

    def to_json(self, *, indent: int | None = 2) -> str:
        """The nested dictionary as JSON; what is infinite or unknown becomes null."""
        return json.dumps(finite(self.to_dict()), indent=indent, ensure_ascii=False)

    def to_arrow(self) -> pa.Table:
        """The flat dictionaries as an Arrow table."""
        import pyarrow as pa

        return pa.Table.from_pylist(self.to_dicts())

    def to_pandas(self) -> pd.DataFrame:
        """The flat dictionaries as a pandas frame."""
        import pandas as pd

        return pd.DataFrame(self.to_dicts())

    def to_polars(self) -> pl.DataFrame:
        """The flat dictionaries as a Polars frame."""
        import polars as pl

        return pl.DataFrame(self.to_dicts())

    def __str__(self) -> str:
        return "\n\n".join([as_text(self.grids(), self.warnings), *self.sentences])

    def _repr_html_(self) -> str:
        said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in self.sentences)
        return as_html(self.grids(), self.warnings) + said


def finite(value: object) -> object:
    """Replace what JSON cannot say (infinities) by None, all the way down."""
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
