"""Estimators, by the names that tables and the command line use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolwise.estimators.control import Calibrated, SelfNormalised
from poolwise.estimators.ips import Balanced, Naive, Weighted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.estimators.base import Estimator

BY_NAME: Mapping[str, type[Estimator]] = {
    "calibrated": Calibrated,
    "naive": Naive,
    "balanced": Balanced,
    "weighted": Weighted,
    "self-normalised": SelfNormalised,
}
