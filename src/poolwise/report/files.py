"""Files that are whole or absent, and charts as pictures."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolwise.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.report.marks import Chart

WIDTH = 640  # of a picture, where no page says how wide it may be


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its place and move it there, so that it is never half there."""
    beside = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        beside = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        beside.chmod(0o644)  # mkstemp lets nobody else read
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)


def save_charts(charts: Mapping[str, Chart], folder: Path) -> list[Path]:
    """Each chart as SVG and as PNG, under its name."""
    import vl_convert

    written = []
    for name, chart in charts.items():
        spec: dict[str, Any] = {**chart.to_dict(), "background": "white"}
        spec["width"] = WIDTH
        svg, png = (folder / f"{name}.{kind}" for kind in ("svg", "png"))
        write_whole(svg, vl_convert.vegalite_to_svg(spec).encode())
        write_whole(png, vl_convert.vegalite_to_png(spec, scale=2))
        written += [svg, png]
    return written
