"""Figure 5 of the paper: the number of rows that estimated weights need.

Writes a CSV file and a chart (SVG and PNG) below ``--out``; finished cells are stored
there, so that an interrupted run continues where it stopped.

    python experiments/figure5_estimated_weights.py --data DIR --out DIR
"""

from __future__ import annotations

from poolwise.paper.run import figure_command

if __name__ == "__main__":
    figure_command(5)
