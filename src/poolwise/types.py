"""Types: the arrays that all packages pass to each other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
AnyArray: TypeAlias = NDArray[Any]  # labels and columns have the type that the log has
LabelList: TypeAlias = Sequence[Hashable] | AnyArray
