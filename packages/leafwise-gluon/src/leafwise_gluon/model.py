"""`mxnet.model`: the arrays of a model that was saved with its graph. The graph itself cannot be run."""

from typing import Any

from leafwise_gluon import saved_arrays
from leafwise_gluon.arrays.choosing import wrap_by_mode

__all__ = ["load_params"]


def load_params(prefix: str, epoch: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments and the auxiliary states, such as running means, in the file `prefix-0000.params`."""
    arguments: dict[str, Any] = {}
    states: dict[str, Any] = {}
    for name, tensor in saved_arrays.load_named(f"{prefix}-{epoch:04d}.params").items():
        kind, _, rest = name.partition(":")
        if kind == "arg":
            arguments[rest] = wrap_by_mode(tensor)
        if kind == "aux":
            states[rest] = wrap_by_mode(tensor)
    return arguments, states
