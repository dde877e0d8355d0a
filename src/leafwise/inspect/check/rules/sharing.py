"""Rules about sharing: ties that came undone or are split, and what looks as if it should be one."""

from leafwise.inspect.check.evidence import Looked
from leafwise.inspect.check.findings import Level
from leafwise.inspect.check.leaf_evidence import Seen
from leafwise.inspect.check.rules.registry import Found, error, rule, told, warning


@rule("LW301", "tie undone")
def tie_undone(looked: Looked) -> Found:
    """A tie that was declared, by `lw.tie` or `lw.keep_ties`, and holds no longer."""
    for undone in looked.tree.undone:
        if not _split(looked, str(undone.path), str(undone.source)):
            yield error(str(undone.path), f"{undone}; {undone.repair()}")


@rule("LW302", "tie split")
def tie_split(looked: Looked) -> Found:
    """A tie whose names are on different devices, or have different dtypes: a declared one, or a table and a head that
    hold the same numbers."""
    declared = set()
    for undone in looked.tree.undone:
        if split := _split(looked, str(undone.path), str(undone.source)):
            declared.add(str(undone.path))
            yield error(str(undone.path), f"declared tied to {undone.source}, and split: {split}; {undone.repair()}")
    for table, head in looked.tables_and_heads:
        split = _apart(table, head)
        if split and head.path not in declared and looked.compared(table, head) & {"same", "cast"}:
            yield warning(
                head.path,
                f"the same numbers as {table.path}, and split: {split}; put both on one device in one dtype, then "
                f"lw.tie(model, {head.spelled}, to={table.spelled})",
            )


def _split(looked: Looked, path: str, source: str) -> str:
    by_path = looked.by_path
    return _apart(by_path[path], by_path[source]) if path in by_path and source in by_path else ""


def _apart(one: Seen, other: Seen) -> str:
    pairs = ((one.spec.device, other.spec.device), (one.spec.dtype, other.spec.dtype))
    return ", ".join(f"{a} and {b}" for a, b in pairs if a != b)


@rule("LW303", "equal, not tied")
def equal_untied(looked: Looked) -> Found:
    """Leaves that hold the same bits, perhaps transposed, and are not tied. A warning for a table and a head of one
    shape; otherwise noted, since layers that are copies of each other begin so."""
    pairs = {(table.leaf, head.leaf) for table, head in looked.tables_and_heads}
    for first, others in looked.equal:
        for other, turned in others.items():
            level: Level = "warning" if {(first.leaf, other.leaf), (other.leaf, first.leaf)} & pairs else "note"
            said = f"the same {first.spec.size:,} values as {first.path}{', transposed' * turned}, and not tied"
            yield told(level, other, said + _tie(looked, first, other, ", transpose=True" * turned))


@rule("LW304", "shared memory, separate gradients")
def shared_memory(looked: Looked) -> Found:
    """Distinct parameters over one memory, each with a gradient of its own: a step of one is a step of both."""
    for shared in looked.tree.shared_memory:
        if "separate" not in shared.reason:
            continue
        first, *others = (looked.by_leaf[leaf.number] for leaf in shared.leaves)
        for other in others:
            same = first.shape == other.shape and "same" in looked.compared(first, other)
            yield warning(
                other,
                f"lies over the memory of {first.path}, with a gradient of its own"
                + (_tie(looked, first, other, "") if same else "; make one of them a view of the other: see lw.tie"),
            )


def _tie(looked: Looked, first: Seen, other: Seen, how: str) -> str:
    """What to type to make two leaves one, where that can be."""
    if looked.tree.is_file or {first.kind, other.kind} != {"parameter"}:
        return ""
    return f"; if they should be one: lw.tie(model, {other.spelled}, to={first.spelled}{how})"
