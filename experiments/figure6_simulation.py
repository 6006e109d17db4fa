"""Section 7.1 of the paper: simulated means and variances against the exact ones.

Writes a CSV file and a chart (SVG and PNG) below ``--out``; finished cells are stored
there, so that an interrupted run continues where it stopped.

    python experiments/figure6_simulation.py --data DIR --out DIR
"""

from __future__ import annotations

from poolwise.paper.run import figure_command

if __name__ == "__main__":
    figure_command(6)
