"""Saving the values of parameters as MXNet does."""

from collections.abc import Mapping

from leafwise_gluon import saved_arrays
from leafwise_gluon.modes import is_np_array, is_np_shape
from leafwise_gluon.parameter import Parameter


def save_values(parameters: Mapping[str, Parameter], path: str, is_v1: bool, deduplicate: bool) -> None:
    """Writes a file of values by name."""
    if deduplicate:
        last = {id(parameter): name for name, parameter in parameters.items()}
        first_to_last = dict.fromkeys(last[id(parameter)] for parameter in parameters.values())
        parameters = {name: parameters[name] for name in first_to_last}
    tensors = {name: parameter.mean() for name, parameter in parameters.items()}
    if is_np_array() and not is_v1:
        saved_arrays.save_npz(path, tensors)
    else:
        saved_arrays.save_list(path, tensors, numpy_shapes=is_np_shape())
