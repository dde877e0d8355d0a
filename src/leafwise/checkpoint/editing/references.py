"""Optimizers that refer to parameters by name, as in files that leafwise wrote: their state follows the parameters."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

_GROUP = re.compile(r"(?:(.*)\.)?param_groups\.\d+\.params")


class References:
    """The parameters that optimizers in a checkpoint refer to by name, and their state."""

    def __init__(self, scalars: Mapping[str, Any], names: Iterable[str]) -> None:
        self._groups: dict[str, str] = {}  # key of a list of parameters → the name of its optimizer
        self.parameters: set[str] = set()
        known = set(names)
        for key, value in scalars.items():
            match = _GROUP.fullmatch(key)
            if match and isinstance(value, list) and value and all(isinstance(name, str) for name in value):
                self._groups[key] = match[1] or ""
                self.parameters.update(known.intersection(value))
        self._prefixes = {f"{optimizer}.state." if optimizer else "state." for optimizer in self._groups.values()}

    def parameter_of(self, name: str) -> tuple[str, str, str] | None:
        """For the name of an optimizer's state: the prefix before the parameter, the parameter, and the rest."""
        for prefix in self._prefixes:
            if name.startswith(prefix):
                parameter = name[len(prefix) :]
                while parameter and parameter not in self.parameters:
                    parameter = parameter.rpartition(".")[0]
                if parameter:
                    return prefix, parameter, name[len(prefix) + len(parameter) :]
        return None

    def states_of(self, parameters: Collection[str], names: Iterable[str]) -> list[str]:
        """The names of the state of some parameters."""
        if not self.parameters.intersection(parameters):
            return []
        return [name for name in names if (parts := self.parameter_of(name)) is not None and parts[1] in parameters]

    def without(self, scalars: dict[str, Any], dropped: Collection[str]) -> None:
        """Removes parameters from the lists of the optimizers."""
        for key in self._groups:
            if key in scalars:
                scalars[key] = [name for name in scalars[key] if name not in dropped]

    def renamed(self, scalars: dict[str, Any], new_name: Callable[[str], str | None]) -> None:
        """Renames the parameters in the lists of the optimizers."""
        for key in self._groups:
            if key in scalars:
                scalars[key] = [new_name(name) or name if name in self.parameters else name for name in scalars[key]]

    def new_name(self, name: str, new_name: Callable[[str], str | None]) -> str | None:
        """The new name of an array or a plain value: the state of a parameter follows the parameter."""
        parts = self.parameter_of(name)
        if parts is None:
            return new_name(name)
        prefix, parameter, rest = parts
        place = new_name(prefix.removesuffix("."))
        parameter_now = new_name(parameter)
        return None if place is None or parameter_now is None else f"{place}.{parameter_now}{rest}".lstrip(".")
