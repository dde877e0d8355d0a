"""Results as plain data, for JSON."""

from typing import TYPE_CHECKING, Any

from leafwise.core.path import quote

if TYPE_CHECKING:
    from leafwise.core.leaf import Leaf, SharedMemory, UndoneTie
    from leafwise.core.tree import Tree


def tree_json(tree: "Tree") -> dict[str, Any]:
    """Everything that the walk found: counts, nodes, leaves with all their names, plain values."""
    texts = _Texts(tree)
    columns = tree.columns
    return {
        "path": str(tree.path),
        "counts": tree.counts._asdict(),
        "nodes": [
            {"path": texts.of_node(node), "type": columns.type_name(node)}
            | ({"same_as": texts.of_node(columns.repeats[node])} if node in columns.repeats else {})
            for node in tree.node_numbers()
            if not columns.hidden(node)
        ],
        "leaves": [_leaf(leaf, texts) for leaf in tree],
        "shared_memory": [shared_memory_json(shared) for shared in tree.shared_memory],
        "undone": [undone_json(undone) for undone in tree.undone],
        "values": {str(path): plain_value(value) for path, value in tree.scalars.items()},
    }


def shared_memory_json(shared: "SharedMemory") -> dict[str, Any]:
    return {"reason": shared.reason, "paths": [str(leaf.path) for leaf in shared.leaves]}


def undone_json(undone: "UndoneTie") -> dict[str, Any]:
    return {"path": str(undone.path), "source": str(undone.source), "op": str(undone.op)}


class _Texts:
    """Paths as text, each made from that of the node above; deep trees would else cost the square of their depth."""

    def __init__(self, tree: "Tree") -> None:
        self.columns = tree.columns
        self._texts: dict[int, str] = {}
        for node in tree.node_numbers():
            above = self._texts.get(self.columns.node_parents[node])
            if above is None:
                self._texts[node] = self.columns.node_text(node)
            elif self.columns.hidden(node):
                self._texts[node] = above
            else:
                self._texts[node] = _joined(above, self.columns.node_names[node])

    def of_node(self, node: int) -> str:
        text = self._texts.get(node)
        return self.columns.node_text(node) if text is None else text

    def of_row(self, row: int) -> str:
        return _joined(self.of_node(self.columns.row_nodes[row]), self.columns.row_names[row])


def _joined(above: str, name: str) -> str:
    return f"{above}.{quote(name)}" if above else quote(name)


def _leaf(leaf: "Leaf", texts: _Texts) -> dict[str, Any]:
    columns = texts.columns
    rows = columns.rows_of(leaf.number)
    rows = [leaf.row, *(row for row in rows if row != leaf.row)]
    return {
        "path": texts.of_row(leaf.row),
        "names": [_name(row, texts) for row in rows],
        "kind": leaf.kind,
        "persistent": leaf.persistent,
        "trainable": leaf.trainable,
        "shape": None if leaf.shape is None else list(leaf.shape),
        "dtype": leaf.dtype,
        "device": leaf.device,
        "size": leaf.size,
        "bytes": leaf.nbytes,
    }


def _name(row: int, texts: _Texts) -> dict[str, Any]:
    columns = texts.columns
    role, axes = columns.row_role(row)
    op = columns.row_op(row)
    data = {
        "path": texts.of_row(row),
        "owner": columns.type_name(columns.row_nodes[row]),
        "role": role,
        "axes": None if axes is None else list(axes),
        "op": str(op),
    }
    return data | ({"view": op.describe().strip()} if op != "same" else {})


def plain_value(value: Any) -> Any:
    """A plain value as it is, where JSON has it; anything else by its type."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() < 1024 else f"<int of {value.bit_length()} bits>"
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has no inf and no nan
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    return f"<{type(value).__name__}>"
