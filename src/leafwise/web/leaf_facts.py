"""The facts about a leaf that its page shows at once: nothing is read for them."""

from typing import Any

from leafwise.core.leaf import Leaf, shape_text
from leafwise.core.path import escape
from leafwise.core.tree import Tree
from leafwise.render.phrases import bytes_text
from leafwise.web.pictures import layout_of, layouts_of


class LeafFacts:
    """One leaf of a tree, as the page shows it."""

    def __init__(self, t: Tree, leaf: Leaf) -> None:
        self._tree, self._leaf = t, leaf

    def json(self) -> dict[str, Any]:
        leaf = self._leaf
        data = self._rendered()
        names, reason = layouts_of(leaf)
        return {
            "path": data["path"],
            "code": escape(leaf.path.code("model")),
            "label": f"{shape_text(leaf.shape)} {leaf.dtype}",
            "shape": data["shape"],
            "dtype": leaf.dtype,
            "size": leaf.size,
            "bytes": leaf.nbytes,
            "facts": [{"name": name, "value": escape(str(value))} for name, value in self._facts(data)],
            "names": [
                {
                    "path": name["path"],
                    "role": name["role"],
                    "owner": escape(name["owner"] or ""),
                    "axes": name["axes"],
                    "op": name["op"] if name["op"] == "same" else f"{name['op']}: {escape(name['view'])}",
                }
                for name in data["names"]
            ],
            "views": [layout_of(leaf, name).facts() for name in names],
            "no_view": escape(reason) or None,
        }

    def _rendered(self) -> dict[str, Any]:
        """The leaf in the JSON of its tree."""
        columns, row = self._tree.columns, self._leaf.row
        [data] = Tree(columns, 0, [row]).json()["leaves"]
        return dict(data)

    def _facts(self, data: dict[str, Any]) -> list[tuple[str, Any]]:
        leaf = self._leaf
        axes = f" ({', '.join(leaf.axes)})" if leaf.axes else ""
        facts: list[tuple[str, Any]] = [
            ("elements", f"{leaf.size:,}"),
            ("bytes", f"{bytes_text(leaf.nbytes)} ({leaf.nbytes:,})" if leaf.nbytes >= 1024 else f"{leaf.nbytes:,}"),
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
        if data["sharding"] is not None:
            facts += [("sharding", leaf.sharding), ("bytes here", bytes_text(leaf.local_nbytes))]
        return facts
