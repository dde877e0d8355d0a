"""The facts about a leaf that its page shows at once: nothing is read for them."""

from typing import Any

from leafwise.core.leaf import Leaf, shape_text
from leafwise.core.path import Path, escape
from leafwise.core.tree import Tree
from leafwise.render.phrases import bytes_text
from leafwise.web.pictures import layout_of, layouts_of


def facts_json(t: Tree, leaf: Leaf) -> dict[str, Any]:
    """One leaf of a tree, as its page shows it."""
    [data] = Tree(t.columns, 0, [leaf.row]).json()["leaves"]
    names, reason = layouts_of(leaf)
    return {
        "path": data["path"],
        "code": escape(_code(t, leaf)),
        "label": f"{shape_text(leaf.shape)} {leaf.dtype}",
        "shape": data["shape"],
        "dtype": leaf.dtype,
        "size": leaf.size,
        "bytes": leaf.nbytes,
        "facts": [{"name": name, "value": escape(str(value))} for name, value in _facts(leaf)],
        "names": [_name_json(name) for name in data["names"]],
        "views": [layout_of(leaf, name).facts() for name in names],
        "no_view": escape(reason) or None,
    }


def _code(t: Tree, leaf: Leaf) -> str:
    """The expression that reaches a leaf: in a file, from what torch.load, load_file, np.load or lw.open return."""
    if not t.is_file:
        return leaf.path.code("model")
    entries = leaf.path.entries
    is_wrapped = bool(entries) and entries[0].hidden and entries[0].name == "content"  # by the object of an opened file
    return Path(entries[is_wrapped:]).code("checkpoint")


def _name_json(name: dict[str, Any]) -> dict[str, Any]:
    op = name["op"] if name["op"] == "same" else escape(f"{name['op']}: {name['view']}")
    return {
        "path": name["path"], "role": name["role"], "owner": escape(name["owner"] or ""), "axes": name["axes"], "op": op
    }  # fmt: skip


def _facts(leaf: Leaf) -> list[tuple[str, Any]]:
    axes = f" ({', '.join(leaf.axes)})" if leaf.axes else ""
    exact = f"{leaf.nbytes:,}"
    facts: list[tuple[str, Any]] = [
        ("elements", f"{leaf.size:,}"),
        ("bytes", f"{bytes_text(leaf.nbytes)} ({exact})" if leaf.nbytes >= 1024 else exact),
        ("role", f"{leaf.role or 'not known'}{axes}"),
        ("kind", leaf.kind if leaf.persistent else f"{leaf.kind}, not saved"),
    ]
    if leaf.owner:
        facts.append(("owner", leaf.owner))
    if leaf.section != "weights":
        facts.append(("section", leaf.section))
    if leaf.trainable is not None:
        facts.append(("trainable", "yes" if leaf.trainable else "no"))
    facts.append(("device", leaf.device))
    if leaf.sharding is not None:
        facts += [("sharding", leaf.sharding), ("bytes here", bytes_text(leaf.local_nbytes))]
    return facts
