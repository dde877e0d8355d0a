"""Loading arrays into parameters by their names, with MXNet's checks."""

from collections.abc import Mapping
from typing import Any

from leafwise.gluon import dialect
from leafwise.gluon.parameter import Parameter
from leafwise.gluon.text import brief_list


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

    `source` says in errors where the arrays come from.
    """
    loaded = {name.removeprefix("arg:").removeprefix("aux:"): array for name, array in arrays.items()}
    if not allow_missing:
        given = {id(parameter) for name, parameter in parameters.items() if name in loaded}
        for name, parameter in parameters.items():
            assert id(parameter) in given, (
                f"Parameter '{name}' is missing in {_quoted(source)}, which contains parameters: {brief_list(loaded)}. "
                "Set allow_missing=True to ignore missing parameters."
            )
    for name, array in loaded.items():
        if name in parameters:
            parameters[name].load_values(array, contexts, cast_dtype, dtype_source)
        elif not ignore_extra:
            kind = "ParameterDict" if dialect.is_v1() else "Dict"
            raise ValueError(
                f"Parameter '{name}' loaded from {_quoted(source)} is not present in {kind}, which contains parameters "
                f"{brief_list(parameters)}. Set ignore_extra=True to ignore. "
            )


def _quoted(source: str) -> str:
    return f"'{source}'"
