"""The command line of the reproduction: ``python -m reproduction [WHAT]``.

A mistake of the user becomes one message on stderr and exit status 2, as in ``poolwise``.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from poolwise.cli.terminal import console
from poolwise.errors import PoolwiseError
from reproduction.run import EXPERIMENTS, OUT, run

if TYPE_CHECKING:
    from collections.abc import Sequence

NEEDED = {"pooch", "sklearn"}  # imported by data sets and CRFs; the toy needs neither


def main(arguments: Sequence[str] | None = None) -> None:
    """Recompute one part of the paper, or all of it."""
    parser = ArgumentParser(
        prog="python -m reproduction",
        description="Recompute the numbers of Agarwal et al. (KDD 2017), claim by claim.",
    )
    parser.add_argument(
        "what", nargs="?", default="toy", help=f"part of the paper: {', '.join(EXPERIMENTS)}"
    )
    parser.add_argument(
        "--data", type=Path, help="folder of the data sets; by default $POOLWISE_DATA"
    )
    parser.add_argument(
        "--out", type=Path, help=f"folder for tables and charts; by default {OUT.as_posix()}"
    )
    chosen = parser.parse_args(arguments)
    try:
        run(chosen.what, chosen.data, chosen.out, console=console())
    except PoolwiseError as error:
        parser.exit(2, f"reproduction: {error}\n")
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in NEEDED:
            raise
        advice = "run: pip install --group reproduce"
        parser.exit(2, f"reproduction: {package} is not installed; {advice}\n")
    except KeyboardInterrupt:
        sys.exit(130)  # `run` has said how to continue


if __name__ == "__main__":
    main()
