"""The lines below the outline of a tree: totals, what cannot be read, and the metadata of a file."""

from typing import TYPE_CHECKING, Any

from leafwise.core.parts import bytes_counted_twice, not_understood, unlisted
from leafwise.core.path import listed, plural, quote
from leafwise.core.results.outline import Hint, Span
from leafwise.render.phrases import SECTIONS, bytes_text, value_text
from leafwise.render.subtrees import Subtrees, SubtreeSums

if TYPE_CHECKING:
    from leafwise.core.columns import Columns
    from leafwise.core.memory.sharding import Sharding
    from leafwise.core.tree import Tree

_METADATA = "__metadata__"  # the name of the node of a file's metadata
_METADATA_VALUES = 4  # values of the metadata of a file that are shown
_ALL_METADATA = Hint(f't["{_METADATA}"] shows all', shell=f"leafwise read FILE {_METADATA} shows all")


def footer_of(tree: "Tree", subtrees: Subtrees) -> list[tuple[Span, ...]]:
    """The totals, and remarks on what is not as it should be."""
    counts, names, distinct_facts = subtrees.sums(subtrees.root), len(subtrees.facts), subtrees.distinct_facts
    parts = []
    if counts.parameters or not (counts.buffers or counts.state):
        words = plural(counts.parameters, "parameter", "parameters")
        if counts.trainable and counts.frozen:
            words += f" ({counts.trainable:,} trainable, {counts.frozen:,} frozen)"
        elif counts.trainable or counts.frozen:
            every = counts.trainable + counts.frozen == counts.parameters
            how = "trainable" if counts.trainable else "frozen"
            words += f", all {how}" if every else f" ({counts.trainable + counts.frozen:,} {how})"
        elif any(facts.spec.trainable for facts in distinct_facts):
            words += ", all trainable"  # none has a shape yet
        parts.append(words)
    if counts.buffers:
        parts.append(f"{counts.buffers:,} in buffers")
    sections = counts.bytes_by_section()
    leaves = plural(counts.leaves, "leaf", "leaves")
    if len(sections) == 1 and counts.state:
        leaves += " of optimizer state" if counts.optimizer_leaves else " of other state"
    parts.append(leaves if names == counts.leaves else f"{leaves} under {names:,} names")
    parts += _memory(tree, counts, {facts.spec.split for facts in distinct_facts})
    devices = {facts.spec.device for facts in distinct_facts}
    if len(devices) == 1 and devices != {"cpu"}:
        parts.append(f"on {devices.pop()}")
    footer: list[tuple[Span, ...]] = [(Span(" · ".join(parts)),)]
    if len(sections) > 1:
        sizes = [f"{SECTIONS[section]} {bytes_text(nbytes) or '0 B'}" for section, nbytes in sections.items()]
        footer.append((Span(" · ".join(sizes)),))
    if counts.unknown:
        footer.append(
            (Span(f"{plural(counts.unknown, 'leaf', 'leaves')} without a shape until the first forward pass", "warn"),)
        )
    footer += [(Span(line, "warn"),) for line in _out_of_reach(tree)]
    footer += [(Span(str(undone), "warn"),) for undone in tree.undone[:2]]
    for shared in tree.shared_memory[:2]:
        paths = [str(leaf.path) for leaf in shared.leaves[:4]]
        left_out = f" and {len(shared.leaves) - 4:,} more" if len(shared.leaves) > 4 else ""
        footer.append((Span(f"{shared.reason}: {', '.join(paths)}{left_out}", "warn"),))
    return footer


def _memory(tree: "Tree", counts: SubtreeSums, shardings: "set[Sharding | None]") -> list[str]:
    """The bytes of all leaves, and what this process has of them; and how they are sharded, if all in the same way."""
    counted_twice = bytes_counted_twice(tree)
    in_all = bytes_text(counts.nbytes - counted_twice) or "0 B"
    if shardings <= {None}:
        return [in_all]
    on_ranks = all(sharding is None or sharding.over == "ranks" for sharding in shardings)
    if on_ranks or counts.nbytes_here != counts.nbytes:
        here = bytes_text(counts.nbytes_here - counted_twice) or "0 B"
        in_all += f", {here} {'on this rank' if on_ranks else 'in this process'}"
    return [in_all, *(map(str, shardings) if len(shardings) == 1 else ())]


def _out_of_reach(tree: "Tree") -> list[str]:
    """Parts that cannot be read, one line per reason."""
    columns = tree.columns
    by_reason: dict[str, list[str]] = {}
    for path, reason in unlisted(tree).items():
        by_reason.setdefault(reason, []).append(path or "this")
    for row, reason in not_understood(tree, sharded=True).items():
        by_reason.setdefault(reason, []).append(columns.row_text(row))
    return [f"cannot read {listed(paths, 3)}: {reason}" for reason, paths in by_reason.items()]


def metadata_nodes(tree: "Tree") -> list[int]:
    """The metadata of a file, which is not part of the model: it is drawn in the footer."""
    columns = tree.columns
    if not tree.is_file or tree.root or not tree.is_whole:
        return []
    nodes = (node for node in columns.children(0) if columns.node_names[node] == _METADATA)
    return [node for node in nodes if _values_below(columns, node)]


def metadata_line(columns: "Columns", node: int) -> tuple[Span, ...]:
    """The first values of the metadata, and how many more there are."""
    values = _values_below(columns, node)
    shown = ", ".join(f"{quote(name)} = {value_text(value)}" for name, value in values[:_METADATA_VALUES])
    line = [Span(f"metadata: {shown}", "dim")]
    if len(values) > _METADATA_VALUES:
        line += [Span(f" and {len(values) - _METADATA_VALUES:,} more; ", "dim"), Span(_ALL_METADATA, "dim")]
    return tuple(line)


def _values_below(columns: "Columns", node: int) -> list[tuple[str, Any]]:
    nodes = range(node, columns.node_ends[node])
    return [pair for inner in nodes for pair in columns.own_scalars.get(inner, ())]
