"""A toy framework: layers, and weights that contain NumPy arrays."""

from typing import Any

import numpy as np


class Weight:
    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values, np.float32)


class Layer:
    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)
