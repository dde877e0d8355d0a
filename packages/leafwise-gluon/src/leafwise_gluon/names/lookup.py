"""Names that a module of the front end does not define itself: they are looked up when they are used."""

from collections.abc import Callable, Sequence
from typing import Any

from leafwise_gluon import dialect
from leafwise_gluon.base import absent
from leafwise_gluon.dialect import Version
from leafwise_gluon.names.implementations import implementation, modules_for
from leafwise_gluon.names.inventory import inventory
from leafwise_gluon.names.table import instead_of


def names_of(*modules: str) -> Callable[[str], Any]:
    """A `__getattr__` for a module that replaces modules of MXNet. It gives a name that MXNet has there and the front
    end has elsewhere; for one that the front end does not have, its error is the row of the table."""

    def __getattr__(name: str) -> Any:  # noqa: N807
        value, why_not = find(modules, name, (dialect.version(),))
        if why_not:
            raise absent(why_not, name)
        return value

    return __getattr__


def find(modules: Sequence[str], name: str, versions: Sequence[Version]) -> tuple[Any, str]:
    """What the front end has for a name that one of these modules of MXNet has, in the first of these versions that has
    it; with an empty text, or with the reason why there is nothing."""
    why_not = f"module {modules[0]!r} has no attribute {name!r}"
    for version in versions:
        for module in modules:
            entry = inventory(version).get(module, {}).get(name)
            if entry is None or entry.kind == "other module":
                continue
            replaced = modules_for(entry.home) if entry.kind == "module" else implementation(version, module, name)
            if replaced:
                return replaced[0], ""
            path = f"{entry.path}.*" if entry.kind == "module" else entry.path
            why_not = f"the Gluon front end does not support {module}.{name}; {instead_of(path)}"
    return None, why_not
