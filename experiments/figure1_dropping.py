"""Figure 1 of the paper: can dropping log 1 lower the variance of the naive estimator?

Writes a CSV file and a chart (SVG and PNG) below ``--out``; finished cells are stored
there, so that an interrupted run continues where it stopped.

    python experiments/figure1_dropping.py --data DIR --out DIR
"""

from __future__ import annotations

from poolwise.paper.run import figure_command

if __name__ == "__main__":
    figure_command(1)
