"""The names of a checkpoint as PyTorch writes them into a distributed checkpoint.

leafwise names the state of an optimizer after the path of the parameter from the root, as in
`optimizer.state.model.0.weight.exp_avg`; PyTorch after its path in the model: `optimizer.state.0.weight.exp_avg`.
PyTorch also records, for each name, the keys of the nested dicts and lists that lead to it.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

Keys = tuple[str | int, ...]  # of nested dicts, and positions in lists

_GROUPS = "param_groups."
_FIRST_GROUP = f"{_GROUPS}0.params"


def flat_name(keys: Keys) -> str:
    """The name that keys have in a distributed checkpoint.

    >>> flat_name(("optimizer", "param_groups", 0, "lr"))
    'optimizer.param_groups.0.lr'
    """
    return ".".join(map(str, keys))


class TorchNames:
    """The keys under which PyTorch stores arrays and plain values. `keyed` are the nodes that are directly in a dict or
    a list: only these are keys of their own."""

    def __init__(self, names: Collection[str], values: Mapping[str, Any], keyed: Collection[str]) -> None:
        self._keyed = set(keyed)
        self._models: dict[str, str] = {}  # prefix of an optimizer → prefix of the model whose parameters it steps
        self._parameters: dict[str, set[str]] = {}  # prefix of an optimizer → the names of its parameters
        self._values = values
        for name in values:
            if f".{name}".endswith(f".{_FIRST_GROUP}"):
                self._add_optimizer(name.removesuffix(_FIRST_GROUP), set(names))

    def _add_optimizer(self, prefix: str, names: set[str]) -> None:
        parameters: list[str] = []
        number = 0
        while isinstance(group := self._values.get(f"{prefix}{_GROUPS}{number}.params"), list | tuple):
            parameters += map(str, group)
            number += 1
        self._parameters[prefix] = set(parameters)
        self._keyed.add(prefix.removesuffix("."))
        above = prefix.removesuffix(".").rpartition(".")[0]
        above = f"{above}." if above else ""
        owners = {name[len(above) :].partition(".")[0] for name in parameters if name.startswith(above)}
        if prefix and len(owners) == 1 and names.issuperset(parameters):
            model = f"{above}{owners.pop()}"
            if all(name.startswith(f"{model}.") for name in parameters):
                self._models[prefix] = f"{model}."
                self._keyed.add(model)

    def of_array(self, name: str) -> Keys:
        """The keys of an array."""
        for prefix, parameters in self._parameters.items():
            state = f"{prefix}state."
            if name.startswith(state):
                parameter, dot, own = name[len(state) :].rpartition(".")
                while dot and parameter not in parameters:
                    parameter, dot, last = parameter.rpartition(".")
                    own = f"{last}.{own}"
                if dot:
                    return (*self._keys(prefix), "state", self._seen_from_model(prefix, parameter), *_numbered(own))
            if name.startswith(prefix + _GROUPS):
                return (*self._keys(prefix), *_numbered(name[len(prefix) :]))
        return self._keys(name)

    def of_values(self) -> Iterator[tuple[Keys, Any]]:
        """The plain values with their keys, those in dicts one by one."""
        for name, value in self._values.items():
            prefix = next((prefix for prefix in self._parameters if name.startswith(prefix)), None)
            if prefix is None:
                yield from _flattened(self._keys(name), value)
                continue
            if name.startswith(prefix + _GROUPS) and name.endswith(".params") and isinstance(value, list | tuple):
                value = [self._seen_from_model(prefix, str(parameter)) for parameter in value]
                # PyTorch stores the names twice if the optimizer was given them, and does not load without these.
                yield (*self.of_array(name)[:-1], "param_names"), value
            yield from _flattened(self.of_array(name), value)

    def _seen_from_model(self, prefix: str, parameter: str) -> str:
        return parameter.removeprefix(self._models.get(prefix, ""))

    def _keys(self, name: str) -> Keys:
        """The keys of a name outside of optimizers: cut after each node that is in a dict or a list."""
        keys: list[str | int] = []
        prefix = begin = ""
        entries = name.removesuffix(".").split(".") if name else []
        for number, entry in enumerate(entries):
            prefix = f"{prefix}.{entry}" if number else entry
            begin = f"{begin}.{entry}" if begin else entry
            if prefix in self._keyed or number + 1 == len(entries):
                keys.append(begin)
                begin = ""
        return tuple(keys)


def _numbered(name: str) -> Iterator[str | int]:
    """The entries of a name, where whole numbers are positions in lists."""
    return (int(entry) if entry.isascii() and entry.isdigit() else entry for entry in name.split("."))


def _flattened(keys: Keys, value: Any) -> Iterator[tuple[Keys, Any]]:
    """Values as PyTorch stores them: those in dicts, and in lists that contain dicts, one by one."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flattened((*keys, str(key)), item)
    elif type(value) is list and _contains_dicts(value):
        for number, item in enumerate(value):
            yield from _flattened((*keys, number), item)
    else:
        yield keys, value


def _contains_dicts(value: Any) -> bool:
    return isinstance(value, Mapping) or (type(value) is list and any(map(_contains_dicts, value)))
