"""Files that are whole or absent, and charts as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolwise.rows.output import HTML, refuse_folder, refuse_output, telling, whole_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from poolwise.log.log import Log
    from poolwise.report.marks import Chart

WIDTH = 640  # of a picture, where no page says how wide it may be


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its place and move it there, so that it is never half there."""
    with whole_file(path) as beside, telling(path):
        beside.write_bytes(content)


def refuse_report(
    html: Path | None, charts: Path | None, log: Log, moments: Iterable[Path] = ()
) -> None:
    """Refuse places where a report and charts cannot go, before anything is read."""
    if html is not None:
        from poolwise.rows.sources import files_of

        refuse_output(html, HTML, [*files_of(log), *moments])
    if charts is not None:
        refuse_folder(charts)


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
