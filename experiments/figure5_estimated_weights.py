"""Figure 5 of the paper: how many rows it takes to estimate the weights.

Writes a CSV file and a chart (SVG and PNG) below ``--out``; finished cells are kept
there, so that a run which was stopped goes on where it was.

    python experiments/figure5_estimated_weights.py --data DIR --out DIR
"""

from __future__ import annotations

from poolwise.paper.run import figure_command

if __name__ == "__main__":
    figure_command(5)
