"""The public modules and names of MXNet, read from one text file a version, which tests/record_names.py writes.

A file has one section a module: its name, then indented lines `kind: names`. A kind is `class`, `function` or
`value` for what the module defines, `from mxnet.x` for what it has from another module, `module` for modules
(`nd=mxnet.ndarray` if the attribute is not the module's own name), and `other module` for modules that are not part of
MXNet.
`hidden` before a kind: `from module import *` does not import these.
"""

import functools
from importlib.resources import files
from typing import NamedTuple

from leafwise_gluon.dialect import Version


class NameEntry(NamedTuple):
    """One name of a module."""

    kind: str  # class, function, value, module or other module
    home: str  # the module that defines it; for a module, its full name
    name: str  # its name there
    hidden: bool  # whether `import *` leaves it out

    @property
    def path(self) -> str:
        return self.home if self.kind in ("module", "other module") else f"{self.home}.{self.name}"


Inventory = dict[str, dict[str, NameEntry]]


@functools.cache
def inventory(version: Version) -> Inventory:
    """The entries of every public module of MXNet, by module and name."""
    text = files(__package__).joinpath(f"mxnet{version}.txt").read_text("utf-8")
    modules: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("    "):
            lines[-1] += line
        elif line.startswith("  "):
            lines.append(line)
        elif not line.startswith("#"):
            lines = modules[line] = []
    known: Inventory = {module: _entries(module, lines) for module, lines in modules.items()}
    for entries in known.values():
        for name, entry in entries.items():
            if entry.kind == "from":
                entries[name] = entry._replace(kind=known[entry.home][name].kind)
    return known


def _entries(module: str, lines: list[str]) -> dict[str, NameEntry]:
    entries = {}
    for line in lines:
        kind, _, names = line.strip().partition(": ")
        hidden = kind.startswith("hidden ")
        kind = kind.removeprefix("hidden ")
        for item in names.split():
            name, _, target = item.partition("=")
            if kind.startswith("from "):
                entries[name] = NameEntry("from", kind.removeprefix("from "), name, hidden)
            elif kind == "module":
                entries[name] = NameEntry(kind, target or f"{module}.{name}", name, hidden)
            elif kind == "other module":
                entries[name] = NameEntry(kind, target or name, name, hidden)
            else:
                entries[name] = NameEntry(kind, module, name, hidden)
    return entries


@functools.cache
def places(version: Version) -> dict[str, list[tuple[str, str]]]:
    """Every module and name under which an object can be reached, by the path at which it is defined."""
    reached: dict[str, list[tuple[str, str]]] = {}
    for module, entries in inventory(version).items():
        for name, entry in entries.items():
            if entry.kind not in ("module", "other module"):
                reached.setdefault(entry.path, []).append((module, name))
    return reached
