"""Rules about the pickles in a file: what would happen if another program loaded it without `weights_only=True`."""

from collections.abc import Iterator

from leafwise.core.capabilities.vetting import Danger, Vetting
from leafwise.core.path import escape
from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.rules.registry import Reports, error, note, rule, warning

_MOST_NAMES = 4  # names of one package that are written out


@rule("LW701", "runs code")
def runs_code(evidence: Evidence) -> Reports:
    """A pickle in the file refers to a function that runs commands or code, imports code, or reaches the network or the
    file system. Whoever loads the file with `torch.load(weights_only=False)` or `pickle.load` calls it."""
    for name, path in _names(evidence, "dangerous"):
        yield error(path, f"loading this file with other programs would call {name}; do not load it")


@rule("LW702", "unknown code")
def unknown_code(evidence: Evidence) -> Reports:
    """A pickle in the file refers to classes or functions that leafwise does not know. Whoever loads the file imports
    their package and calls them."""
    for package, names, path in _by_package(evidence, "unknown"):
        yield warning(path, f"loading this file with other programs would import {package} and call {_listed(names)}")
    for leaf in evidence.leaves:
        if leaf.spec.dtype == "object":
            yield note(leaf, "an array of Python objects, which NumPy only loads with pickle")


@rule("LW703", "harmless objects")
def harmless_objects(evidence: Evidence) -> Reports:
    """A pickle in the file refers to classes that are known to be harmless, but that `torch.load(weights_only=True)`
    refuses unless they are allowed."""
    for package, names, path in _by_package(evidence, "harmless"):
        yield note(path, f"contains objects of {package}: {_listed(names)}; they are harmless")


def _names(evidence: Evidence, wanted: Danger) -> Iterator[tuple[str, str]]:
    """The names of a kind in the pickles of a file, each with the path of an object of that class, if there is one."""
    root = evidence.columns.node_objects[0]
    names = evidence.columns.home(root).capability(Vetting).called_elsewhere(root)
    if not names:
        return
    paths: dict[str, str] = {}
    for path, class_name in evidence.tree.opaque:
        paths.setdefault(class_name, str(path))
    for name, found in names.items():
        if found == wanted:
            yield escape(name), paths.get(name, "")


def _by_package(evidence: Evidence, wanted: Danger) -> Iterator[tuple[str, list[str], str]]:
    """Names by their package, each package with a path of one of its objects."""
    packages: dict[str, list[tuple[str, str]]] = {}
    for name, path in _names(evidence, wanted):
        package = name.partition(".")[0] or "a module with an odd name"
        packages.setdefault(package, []).append((name, path))
    for package, found in packages.items():
        yield package, [name for name, _ in found], next((path for _, path in found if path), "")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
