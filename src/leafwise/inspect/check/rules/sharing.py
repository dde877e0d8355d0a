"""Rules about sharing: ties that came undone or are split, and what looks as if it should be one."""

from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.findings import Level
from leafwise.inspect.check.leaf_evidence import LeafEvidence
from leafwise.inspect.check.rules.registry import Reports, error, report, rule, warning


@rule("LW301", "tie undone")
def tie_undone(evidence: Evidence) -> Reports:
    """A tie that was declared, by `lw.tie` or `lw.keep_ties`, and holds no longer."""
    for undone in evidence.tree.undone:
        if not _split(evidence, str(undone.path), str(undone.source)):
            yield error(str(undone.path), f"{undone}; {undone.repair()}")


@rule("LW302", "tie split")
def tie_split(evidence: Evidence) -> Reports:
    """A tie whose names are on different devices, or have different dtypes: a declared one, or a table and a head that
    hold the same numbers."""
    declared = set()
    for undone in evidence.tree.undone:
        if split := _split(evidence, str(undone.path), str(undone.source)):
            declared.add(str(undone.path))
            yield error(str(undone.path), f"declared tied to {undone.source}, and split: {split}; {undone.repair()}")
    for table, head in evidence.tables_and_heads:
        split = _placement_difference(table, head)
        if split and head.path not in declared and evidence.value_kinds(table, head) & {"same", "cast"}:
            yield warning(
                head.path,
                f"the same numbers as {table.path}, and split: {split}; put both on one device in one dtype, then "
                f"lw.tie(model, {head.path_literal}, to={table.path_literal})",
            )


def _split(evidence: Evidence, path: str, source: str) -> str:
    by_path = evidence.by_path
    return _placement_difference(by_path[path], by_path[source]) if path in by_path and source in by_path else ""


def _placement_difference(first: LeafEvidence, second: LeafEvidence) -> str:
    pairs = ((first.spec.device, second.spec.device), (first.spec.dtype, second.spec.dtype))
    return ", ".join(f"{a} and {b}" for a, b in pairs if a != b)


@rule("LW303", "equal, not tied")
def equal_untied(evidence: Evidence) -> Reports:
    """Leaves that hold the same bits, perhaps transposed, and are not tied. A warning for a table and a head of one
    shape; otherwise noted, since layers that are copies of each other begin so."""
    pairs = {(table.number, head.number) for table, head in evidence.tables_and_heads}
    for first, copies in evidence.equal_leaves:
        for copy, transposed in copies.items():
            level: Level = "warning" if {(first.number, copy.number), (copy.number, first.number)} & pairs else "note"
            message = f"the same {first.spec.size:,} values as {first.path}{', transposed' * transposed}, and not tied"
            yield report(level, copy, message + _tie_hint(evidence, first, copy, ", transpose=True" * transposed))


@rule("LW304", "shared memory, separate gradients")
def shared_memory(evidence: Evidence) -> Reports:
    """Distinct parameters over one memory, each with a gradient of its own: a step of one is a step of both."""
    for shared in evidence.tree.shared_memory:
        if "separate" not in shared.reason:
            continue
        first, *rest = (evidence.by_number[leaf.number] for leaf in shared.leaves)
        for leaf in rest:
            same = first.shape == leaf.shape and "same" in evidence.value_kinds(first, leaf)
            hint = (
                _tie_hint(evidence, first, leaf, "") if same else "; make one of them a view of the other: see lw.tie"
            )
            yield warning(leaf, f"lies over the memory of {first.path}, with a gradient of its own{hint}")


def _tie_hint(evidence: Evidence, first: LeafEvidence, second: LeafEvidence, options: str) -> str:
    """What to type to tie two leaves; empty where that is impossible."""
    if evidence.tree.is_file or {first.kind, second.kind} != {"parameter"}:
        return ""
    return f"; if they should be one: lw.tie(model, {second.path_literal}, to={first.path_literal}{options})"
