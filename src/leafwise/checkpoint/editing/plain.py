"""Changes to the plain values of a checkpoint, and to the types of its nodes."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from leafwise.checkpoint.editing.arguments import NamePattern
from leafwise.checkpoint.editing.contents import Contents
from leafwise.checkpoint.editing.result import Steps
from leafwise.checkpoint.plain_values import names_below, prefixes_of
from leafwise.checkpoint.saving.collecting import cannot_be_a_name
from leafwise.core.home import MANY_VALUES
from leafwise.core.path import escape
from leafwise.errors import QueryError
from leafwise.files.plain_encoding import copied
from leafwise.files.record import NodeType


def matching_values(contents: Contents, query: Any) -> list[str]:
    """The plain values, and the objects that cannot be stored, that a glob matches; also items of dicts and lists.
    Other queries are for leaves."""
    if not isinstance(query, str):
        return []
    pattern = NamePattern(query)
    matched = [name for name in contents.objects if pattern.matches(name)]
    for name, value in contents.scalars.items():
        matched += [below for below, _, _ in _items_below(name, None, name, value) if pattern.matches(below)]
    # What is inside of something that matches matches, too, and need not be listed.
    chosen = set(matched)
    return [name for name in matched if not any(prefix in chosen for prefix in prefixes_of(name))]


def drop_values(contents: Contents, names: Iterable[str]) -> None:
    """Removes plain values, objects, and items of dicts and lists."""
    inside: dict[str, set[str]] = {}
    for name in names:
        if name in contents.scalars or name in contents.objects:
            contents.scalars.pop(name, None)
            contents.objects.pop(name, None)
        else:
            outer = next((prefix for prefix in prefixes_of(name) if prefix in contents.scalars), None)
            if outer is not None:  # otherwise all of it is gone already
                inside.setdefault(outer, set()).add(name)
    for outer, below in inside.items():
        if outer in contents.scalars:
            contents.scalars[outer] = value = deepcopy(contents.scalars[outer])
            # From the last to the first, so that the positions in a list stay right.
            for name, container, key in reversed(list(_items_below(outer, None, outer, value))):
                if name in below and container is not None:
                    del container[key]


def kept_value(name: str, value: Any, kept: Collection[str]) -> Any:
    """The part of a plain value that is kept: all of it, or the items of a dict with these names. `NOTHING` if none
    is."""
    if name in kept:
        return value
    if isinstance(value, dict):
        items = {key: kept_value(f"{name}.{key}", item, kept) for key, item in value.items()}
        items = {key: item for key, item in items.items() if item is not NOTHING}
        return type(value)(items) if items else NOTHING
    below = [other for other, _, _ in _items_below(name, None, name, value)]
    return value if any(other in kept for other in below) else NOTHING


def _items_below(name: str, container: Any, key: Any, value: Any) -> Iterator[tuple[str, Any, Any]]:
    """A plain value, and all items of dicts and lists in it: each with its name, its container and its key there."""
    yield name, container, key
    if type(value) in (dict, list) and len(value) <= MANY_VALUES:
        for inner, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _items_below(f"{name}.{inner}", value, inner, item)


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
        container, key = place
        before = _item(container, key)
        container[key] = value
    elif outer := next((prefix for prefix in prefixes_of(name) if prefix in contents.scalars), ""):
        what = type(contents.scalars[outer]).__name__
        steps.problems.append(f"cannot set {escape(name)}: {escape(outer)} is a {what}, which has no such item")
        return
    else:
        before = contents.scalars.get(name, NOTHING)
        for other in [other for other in contents.scalars if other.startswith(f"{name}.")]:
            del contents.scalars[other]
        contents.scalars[name] = value
    contents.objects.pop(name, None)
    shown = "" if before is NOTHING else f"{_short(before)} → "
    steps.add("set", f"{name} = {shown}{_short(value)}", [name], values=1)


def delete_values(contents: Contents, queries: Iterable[Any], steps: Steps) -> None:
    """Deletes plain values, by glob or by name, also inside of dicts and lists."""
    gone: dict[str, None] = {}
    for query in queries:
        if not isinstance(query, str):
            raise QueryError(f"delete= takes names of plain values or globs, not {query!r}")
        names = matching_values(contents, query)
        if names:
            gone |= dict.fromkeys(names)
            steps.add("delete", query, names, values=len(names))
        elif any(NamePattern(query).matches(name) for name in contents.names()):
            steps.problems.append(f"delete= {query!r} matches arrays, not plain values; use drop=")
        else:
            steps.matched_nothing("delete", query)
    drop_values(contents, gone)


NOTHING = object()


def _inside(scalars: dict[str, Any], name: str) -> tuple[Any, Any] | None:
    """The container inside a plain value that a name leads to, which is a copy and can be changed, and the key in it.
    Dicts on the way that do not exist are made."""
    outer = name
    while "." in outer:
        outer = outer.rpartition(".")[0]
        if outer in scalars and isinstance(scalars[outer], dict | list):
            scalars[outer] = container = deepcopy(scalars[outer])
            *way, last = name[len(outer) + 1 :].split(".")
            for entry in way:
                key = _key(container, entry)
                if isinstance(container, dict):
                    container.setdefault(key, {})
                container = _item(container, key)
                if not isinstance(container, dict | list):
                    return None
            key = _key(container, last)
            return None if isinstance(container, list) and _item(container, key) is NOTHING else (container, key)
    return None


def _key(container: Any, entry: str) -> Any:
    if isinstance(container, list):
        return int(entry) if entry.isdecimal() else -1
    if entry not in container and entry.isdecimal() and int(entry) in container:
        return int(entry)
    return entry


def _item(container: Any, key: Any) -> Any:
    if isinstance(container, list):
        return container[key] if 0 <= key < len(container) else NOTHING
    return container.get(key, NOTHING) if isinstance(container, Mapping) else NOTHING


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def prune_nodes(contents: Contents) -> None:
    """Removes what the types of nodes say about items that are gone. A list with gaps cannot be rebuilt as a list."""
    below = names_below((*contents.names(), *contents.scalars))
    for name, kind in list(contents.nodes.items()):
        items = set(below.get(name, ()))
        if not items and name not in contents.empty_nodes:
            del contents.nodes[name]
        elif kind.keys is not None:
            keys = tuple((key, original) for key, original in kind.keys if key in items)
            contents.nodes[name] = NodeType(kind.type, keys)
        elif kind.type in ("list", "tuple") and items != set(map(str, range(len(items)))):
            del contents.nodes[name]
