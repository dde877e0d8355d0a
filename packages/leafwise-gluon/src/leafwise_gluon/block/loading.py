"""Loading arrays into parameters by their names, with MXNet's checks."""

from collections.abc import Mapping
from typing import Any

import torch

from leafwise_gluon import dialect, saved_arrays
from leafwise_gluon.arrays.values import plain
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.modes import is_np_array
from leafwise_gluon.parameter import Parameter
from leafwise_gluon.text import brief_list


def read_named(path: str) -> dict[str, torch.Tensor]:
    """The arrays of a file by their names. If it cannot be read, that is a ValueError in NumPy mode, as in MXNet."""
    try:
        return saved_arrays.load_named(path)
    except MXNetError as error:
        if is_np_array():
            raise ValueError(str(error)) from error
        raise


def load_into(
    parameters: Mapping[str, Parameter],
    arrays: Mapping[str, Any],
    source: str,
    *,
    contexts: Any = None,
    allow_missing: bool = False,
    ignore_extra: bool = False,
    cast_dtype: bool = False,
    dtype_source: str = "current",
) -> None:
    """Loads arrays into the parameters of the same names. Of a shared parameter, one of its names is enough.

    `source` says in errors where the arrays come from, with quotes as MXNet sets them.
    """
    loaded = {name.removeprefix("arg:").removeprefix("aux:"): array for name, array in arrays.items()}
    if not allow_missing:
        given = {id(parameter) for name, parameter in parameters.items() if name in loaded}
        for name, parameter in parameters.items():
            assert id(parameter) in given, (
                f"Parameter '{name}' is missing in {source}, which contains parameters: {brief_list(loaded)}. "
                "Set allow_missing=True to ignore missing parameters."
            )
    for name in loaded:
        if name not in parameters and not ignore_extra:
            kind = "ParameterDict" if dialect.is_v1() else "Dict"
            raise ValueError(
                f"Parameter '{name}' loaded from {source} is not present in {kind}, which contains parameters "
                f"{brief_list(parameters)}. Set ignore_extra=True to ignore. "
            )
    wanted = {name: (parameters[name], array) for name, array in loaded.items() if name in parameters}
    _check_shared(wanted, source)
    for parameter, array in wanted.values():  # nothing is changed until everything fits
        parameter.check_values(array, contexts, cast_dtype, dtype_source)
    for parameter, array in wanted.values():
        parameter.load_values(array, contexts, cast_dtype, dtype_source)


def _check_shared(wanted: Mapping[str, tuple[Parameter, Any]], source: str) -> None:
    """Raises if there are different values for two names of a shared parameter. MXNet would take the last."""
    first: dict[int, tuple[str, Any]] = {}
    for name, (parameter, array) in wanted.items():
        other, values = first.setdefault(id(parameter), (name, array))
        if other != name and not _equal(plain(values), plain(array)):
            raise refusal(
                f"loading {other} and {name} from {source}, which have different values but are one shared "
                "parameter here",
                "build the network without sharing them",
            )


def _equal(values: Any, other: Any) -> bool:
    first, second = (torch.as_tensor(array).detach() for array in (values, other))
    same_kind = first.shape == second.shape and first.dtype == second.dtype
    return same_kind and bool(((first == second) | ((first != first) & (second != second))).all())
