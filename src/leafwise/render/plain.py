"""Results as plain data, for JSON."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leafwise.core.leaf import Leaf, Name
    from leafwise.core.tree import Tree


def tree_json(tree: "Tree") -> dict[str, Any]:
    """Everything that the walk found: counts, nodes, leaves with all their names, plain values."""
    return {
        "path": str(tree.path),
        "counts": tree.counts._asdict(),
        "nodes": [
            {"path": str(node.path), "type": node.type}
            | ({} if node.same_as is None else {"same_as": str(node.same_as)})
            for node in tree.nodes
        ],
        "leaves": [_leaf(leaf) for leaf in tree],
        "shared_memory": [
            {"reason": shared.reason, "paths": [str(leaf.path) for leaf in shared.leaves]}
            for shared in tree.shared_memory
        ],
        "values": {str(path): _value(value) for path, value in tree.scalars.items()},
    }


def _leaf(leaf: "Leaf") -> dict[str, Any]:
    names = leaf.names
    return {
        "path": str(names[0].path),
        "names": [_name(name) for name in names],
        "kind": leaf.kind,
        "persistent": leaf.persistent,
        "trainable": leaf.trainable,
        "shape": None if leaf.shape is None else list(leaf.shape),
        "dtype": leaf.dtype,
        "device": leaf.device,
        "size": leaf.size,
        "bytes": leaf.nbytes,
    }


def _name(name: "Name") -> dict[str, Any]:
    data = {
        "path": str(name.path),
        "owner": name.owner,
        "role": name.role,
        "axes": None if name.axes is None else list(name.axes),
        "op": str(name.op),
    }
    return data | ({"view": name.op.describe().strip()} if name.op != "same" else {})


def _value(value: Any) -> Any:
    """A plain value as it is, where JSON has it; anything else by its type."""
    if value is None or isinstance(value, str | int | bool):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has no inf and no nan
    if isinstance(value, list | tuple):
        return [_value(item) for item in value]
    return f"<{type(value).__name__}>"
