"""New names for the arrays and plain values of a checkpoint."""

from collections.abc import Callable
from typing import Any

from leafwise.checkpoint.editing.contents import Contents
from leafwise.checkpoint.editing.references import References
from leafwise.checkpoint.editing.result import Steps
from leafwise.checkpoint.saving.collecting import METADATA, cannot_be_a_name
from leafwise.checkpoint.saving.write_arguments import is_text
from leafwise.core.pairing.families import common_end
from leafwise.core.pairing.name_groups import Changes, merged_by_number
from leafwise.core.pairing.row_matching import Renaming, is_auto
from leafwise.core.path import escape
from leafwise.errors import QueryError
from leafwise.files.record import NodeType

NewName = Callable[[str], "str | None"]


def renaming(rename: Any) -> Renaming:
    """The function of `rename=`."""
    if is_auto(rename):
        raise QueryError(
            'rename="auto" needs a model to compare with; pass the renames of a plan: rename=lw.plan(model, '
            "source).renames"
        )
    return Renaming(rename)


def apply_renames(contents: Contents, new_name: NewName, references: References, steps: Steps) -> None:
    """Renames everything, and adds a problem for each name that would be used twice."""

    def renamed(name: str) -> str:
        new = references.new_name(name, new_name)
        if references.parameter_of(name) is not None and (own := new_name(name)) not in (name, new, None):
            steps.problems.append(
                f"{escape(name)} cannot be called {own!r}: the state of an optimizer has the names of its parameters; "
                "rename the parameter"
            )
        return name if new is None else new  # what rename= leaves out has been dropped before

    values = [name for name in contents.scalars if name != METADATA]
    names = {name: renamed(name) for name in (*contents.names(), *values)}
    users: dict[str, list[str]] = {}
    for old, new in names.items():
        users.setdefault(new, []).append(old)
    for new, old_names in users.items():
        if len(old_names) > 1:
            both = " and ".join(map(escape, old_names[:3])) + (" and others" if len(old_names) > 3 else "")
            steps.problems.append(f"{both} would be called {escape(new)!r}; give them different names in rename=")
        elif (reason := cannot_be_a_name(new)) and not (new in old_names and _may_stay(new)):
            steps.problems.append(f"cannot write {new!a}: the format does not allow this name; {reason}")
    changed = {old: new for old, new in names.items() if old != new}
    _add_steps(changed, contents, steps)

    def now(name: str) -> str:
        return names.get(name, name)

    contents.arrays = {now(name): array for name, array in contents.arrays.items()}
    contents.ties = {now(name): tied._replace(of=now(tied.of)) for name, tied in contents.ties.items()}
    references.renamed(contents.scalars, new_name)
    contents.scalars = {now(name): value for name, value in contents.scalars.items()}
    contents.nodes = _renamed_nodes(contents.nodes, names)


def _may_stay(name: str) -> bool:
    """Whether a name that another program wrote may stay: leafwise itself makes no name with an empty entry."""
    return bool(name) and is_text(name) and name.partition(".")[0] != METADATA


def _renamed_nodes(nodes: dict[str, NodeType], names: dict[str, str]) -> dict[str, NodeType]:
    """The types of nodes under their new names. A node has a new name if everything below it is renamed with it; the
    type of one whose items are renamed one by one cannot be kept. `names` are the new names of arrays and values."""
    kept: dict[str, NodeType] = {}
    for node, kind in nodes.items():
        prefix = f"{node}." if node else ""
        below = {old: new for old, new in names.items() if old.startswith(prefix)}
        ends = {
            new[: -len(old) + len(prefix)] if new.endswith(old[len(prefix) :]) else None for old, new in below.items()
        }
        new_prefix = ends.pop() if len(ends) == 1 else None if ends else prefix
        if new_prefix is not None and new_prefix.rstrip(".") not in kept:
            kept[new_prefix.rstrip(".")] = kind
    return kept


def _add_steps(changed: dict[str, str], contents: Contents, steps: Steps) -> None:
    """One step for all names that change in the same way, or differ only in numbers."""
    changes: Changes = {}
    for pair in changed.items():
        changes.setdefault(difference(*pair), []).append(pair)
    for before, after, pairs in merged_by_number(changes):
        names = [old for old, _ in pairs]
        values = sum(name in contents.scalars for name in names)
        what = f"{names[0]} → {changed[names[0]]}" if len(names) == 1 else f"{before} → {after}"
        steps.add("rename", what, names, values=values)


def difference(old: str, new: str) -> tuple[str, str]:
    """Two names with the entries that they have in common, at the beginning and at the end, replaced by stars.

    >>> difference("bert.encoder.0.weight", "backbone.encoder.0.weight")
    ('bert.**', 'backbone.**')
    >>> difference("layers.0.norm.gamma", "layers.0.norm.weight"), difference("module.a.b", "a.b")
    (('**.gamma', '**.weight'), ('module.**', '**'))
    """
    a, b = old.split("."), new.split(".")
    begin = common_end(a[::-1], b[::-1])
    end = common_end(a[begin:], b[begin:])
    before, after = ["**"] * bool(begin), ["**"] * bool(end)
    parts = (entries[begin : len(entries) - end] for entries in (a, b))
    first, second = (".".join([*before, *part, *after]) for part in parts)
    return first, second
