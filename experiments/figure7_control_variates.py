"""Figure 7, not in the paper: control variates against the best of all other estimators.

Writes a CSV file and a chart (SVG and PNG) below ``--out``; finished cells are stored
there, so that an interrupted run continues where it stopped.

    python experiments/figure7_control_variates.py --data DIR --out DIR
"""

from __future__ import annotations

from poolwise.paper.run import figure_command

if __name__ == "__main__":
    figure_command(7)
