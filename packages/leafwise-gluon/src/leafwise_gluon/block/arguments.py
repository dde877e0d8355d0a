"""The structure of the arguments of a hybridized block: MXNet fixes it at the first call."""

import threading
from typing import Any

import torch

from leafwise_gluon.arrays.legacy import NDArray


class Compiled(threading.local):
    """Whether a hybridized block is being called: the blocks in it are part of its graph, and check nothing."""

    inside = False


COMPILED = Compiled()


def structure(value: Any, where: str = "input") -> Any:
    """Nested lists with 0 for arrays and -1 for None."""
    if isinstance(value, NDArray | torch.Tensor):
        return 0
    if value is None:
        return -1
    if not isinstance(value, list | tuple):
        raise ValueError(
            f"When hybridized, the input of HybridBlock {where} must be (nested) list of Symbol or NDArray, "
            f"but got {value} of type {type(value)}"
        )
    return [structure(entry, where) for entry in value]


def as_lists(result: Any) -> Any:
    """The results of a compiled graph: tuples become lists."""
    return [as_lists(entry) for entry in result] if isinstance(result, list | tuple) else result


def check_structure(given: list[Any], first: list[Any]) -> None:
    """Raises if the arguments do not have the structure of the first call; one may leave out None at the end."""
    shorter, longer = sorted((given, first), key=len)
    rest = longer[len(shorter) :]
    if longer[: len(shorter)] != shorter or any(entry != -1 for entry in rest):
        raise ValueError(
            "The argument structure of HybridBlock does not match the cached version. "
            f"Stored format = {given}, input format = {first}"
        )
