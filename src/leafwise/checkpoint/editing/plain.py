"""Changes to the plain values of a checkpoint, and to the types of its nodes."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from leafwise.checkpoint.collecting import cannot_be_a_name
from leafwise.checkpoint.editing.arguments import NamePattern
from leafwise.checkpoint.editing.contents import Contents
from leafwise.checkpoint.editing.steps import Steps
from leafwise.core.path import escape
from leafwise.errors import QueryError
from leafwise.files.plain_values import copied
from leafwise.files.record import NodeType


def matching_values(contents: Contents, query: Any) -> list[str]:
    """The plain values, and the objects that cannot be stored, that a glob matches. Other queries are for leaves."""
    if not isinstance(query, str):
        return []
    pattern = NamePattern(query)
    return [name for name in (*contents.scalars, *contents.objects) if pattern.matches(name)]


def drop_values(contents: Contents, names: Iterable[str]) -> None:
    for name in names:
        contents.scalars.pop(name, None)
        contents.objects.pop(name, None)


def set_value(contents: Contents, name: Any, value: Any, steps: Steps) -> None:
    """Sets a plain value, which may be inside a dict or a list."""
    if not isinstance(name, str):
        raise QueryError(f'set= takes a dict such as {{"epoch": 0}}, and {name!r} is not a name')
    try:
        value = copied(value)
    except (TypeError, ValueError) as error:
        raise QueryError(f"cannot set {escape(name)}: leafwise does not save {error}") from error
    names = {*contents.arrays, *contents.ties}
    if name in names or any(other.startswith(f"{name}.") for other in names):
        steps.problems.append(f"cannot set {escape(name)}: there are arrays at this name; drop them first")
        return
    if reason := cannot_be_a_name(name):
        steps.problems.append(f"cannot set {escape(name)!r}: {reason}")
        return
    place = _inside(contents.scalars, name)
    if place is not None:
        outer, container, key = place
        before = _item(container, key)
        container[key] = value
        contents.scalars[outer] = contents.scalars[outer]
    else:
        before = contents.scalars.get(name, _NOTHING)
        for other in [other for other in contents.scalars if other.startswith(f"{name}.")]:
            del contents.scalars[other]
        contents.scalars[name] = value
    contents.objects.pop(name, None)
    shown = "" if before is _NOTHING else f"{_short(before)} → "
    steps.add("set", f"{name} = {shown}{_short(value)}", [name], values=1)


def delete_values(contents: Contents, query: Any, steps: Steps) -> None:
    """Deletes plain values, by glob or by name, also inside a dict or a list."""
    if not isinstance(query, str):
        raise QueryError(f"delete= takes names of plain values or globs, not {query!r}")
    names = matching_values(contents, query)
    place = None if names else _inside(contents.scalars, query)
    if names:
        drop_values(contents, names)
    elif place is not None and _item(place[1], place[2]) is not _NOTHING:
        del place[1][place[2]]
        names = [query]
    else:
        arrays = [name for name in contents.names() if NamePattern(query).matches(name)]
        if arrays:
            steps.problems.append(f"delete= {query!r} matches arrays, not plain values; use drop=")
        else:
            steps.matched_nothing("delete", query)
        return
    steps.add("delete", query, names, values=len(names))


_NOTHING = object()


def _inside(scalars: dict[str, Any], name: str) -> tuple[str, Any, Any] | None:
    """The container inside a plain value that a name leads to: the name of the plain value, the container, which is a
    copy and can be changed, and the key in it."""
    outer = name
    while "." in outer:
        outer = outer.rpartition(".")[0]
        if outer in scalars and isinstance(scalars[outer], dict | list):
            scalars[outer] = container = deepcopy(scalars[outer])
            *way, last = name[len(outer) + 1 :].split(".")
            for entry in way:
                container = _item(container, _key(container, entry))
                if not isinstance(container, dict | list):
                    return None
            key = _key(container, last)
            return (
                None if isinstance(container, list) and _item(container, key) is _NOTHING else (outer, container, key)
            )
    return None


def _key(container: Any, entry: str) -> Any:
    if isinstance(container, list):
        return int(entry) if entry.isdecimal() else -1
    if entry not in container and entry.isdecimal() and int(entry) in container:
        return int(entry)
    return entry


def _item(container: Any, key: Any) -> Any:
    if isinstance(container, list):
        return container[key] if 0 <= key < len(container) else _NOTHING
    return container.get(key, _NOTHING) if isinstance(container, Mapping) else _NOTHING


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def prune_nodes(contents: Contents) -> None:
    """Removes what the types of nodes say about items that are gone. A list with gaps cannot be rebuilt as a list."""
    below: dict[str, set[str]] = {}
    for name in (*contents.names(), *contents.scalars):
        prefix = ""
        for entry in name.split("."):
            below.setdefault(prefix, set()).add(entry)
            prefix = f"{prefix}.{entry}" if prefix else entry
    for name, kind in list(contents.nodes.items()):
        items = below.get(name, set())
        was_empty = name in contents.empty_nodes
        if not items and not was_empty:
            del contents.nodes[name]
        elif kind.keys is not None:
            keys = tuple((key, original) for key, original in kind.keys if key in items)
            contents.nodes[name] = NodeType(kind.type, keys)
        elif kind.type in ("list", "tuple") and items != set(map(str, range(len(items)))):
            del contents.nodes[name]
