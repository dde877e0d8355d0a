"""Rules about sharing: ties that are undone or split, and leaves that look as if they should be tied."""

from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.findings import Level
from leafwise.inspect.check.leaf_evidence import LeafEvidence
from leafwise.inspect.check.rules.registry import Reports, error, report, rule, warning


@rule("LW301", "tie undone")
def tie_undone(evidence: Evidence) -> Reports:
    """A tie that `lw.tie` or `lw.keep_ties` declared and that no longer holds."""
    for undone in evidence.tree.undone:
        if not _split(evidence, str(undone.path), str(undone.source)):
            yield error(str(undone.path), f"{undone}; {undone.repair()}")


@rule("LW302", "tie split")
def tie_split(evidence: Evidence) -> Reports:
    """A tie whose names are on different devices or have different dtypes: a declared tie, or an embedding and a head
    with the same values."""
    declared = set()
    for undone in evidence.tree.undone:
        if split := _split(evidence, str(undone.path), str(undone.source)):
            declared.add(str(undone.path))
            yield error(str(undone.path), f"declared tied to {undone.source}, but they have {split}; {undone.repair()}")
    for table, head in evidence.tables_and_heads:
        split = _placement_difference(table, head)
        if split and head.path not in declared and evidence.value_kinds(table, head) & {"same", "cast"}:
            hint = (
                "cast one of them, and tie them in the model this file was saved from"
                if evidence.tree.is_file
                else "put both on one device in one dtype, then "
                f"lw.tie(model, {head.path_literal}, to={table.path_literal})"
            )
            yield warning(head.path, f"has the same values as {table.path}, but they have {split}; {hint}")


def _split(evidence: Evidence, path: str, source: str) -> str:
    by_path = evidence.by_path
    return _placement_difference(by_path[path], by_path[source]) if path in by_path and source in by_path else ""


def _placement_difference(first: LeafEvidence, second: LeafEvidence) -> str:
    pairs = (("devices", first.spec.device, second.spec.device), ("dtypes", first.spec.dtype, second.spec.dtype))
    return " and ".join(f"different {what} ({a} and {b})" for what, a, b in pairs if a != b)


@rule("LW303", "equal, not tied")
def equal_untied(evidence: Evidence) -> Reports:
    """Leaves with the same bits, possibly transposed, that are not tied. A warning for an embedding and a head of the
    same shape; otherwise only a note, since layers that are copies of each other start that way."""
    pairs = {(table.number, head.number) for table, head in evidence.tables_and_heads}
    for first, copies in evidence.equal_leaves:
        for copy, transposed in copies.items():
            level: Level = "warning" if {(first.number, copy.number), (copy.number, first.number)} & pairs else "note"
            values = f"{first.spec.size:,} values as {first.path}{', transposed' * transposed}"
            message = f"has the same {values}, but is not tied to it"
            yield report(level, copy, message + _tie_hint(evidence, first, copy, ", transpose=True" * transposed))


@rule("LW304", "shared memory, separate gradients")
def shared_memory(evidence: Evidence) -> Reports:
    """Distinct parameters in the same memory, each with its own gradient: a step of one changes both."""
    for shared in evidence.tree.shared_memory:
        if "separate" not in shared.reason:
            continue
        first, *rest = (evidence.by_number[leaf.number] for leaf in shared.leaves)
        for leaf in rest:
            same = first.shape == leaf.shape and "same" in evidence.value_kinds(first, leaf)
            hint = (
                _tie_hint(evidence, first, leaf, "") if same else "; tie one of them as a view of the other, see lw.tie"
            )
            yield warning(leaf, f"shares the memory of {first.path}, but has its own gradient{hint}")


def _tie_hint(evidence: Evidence, first: LeafEvidence, second: LeafEvidence, options: str) -> str:
    """What to type to tie two leaves; empty if they cannot be tied here."""
    if evidence.tree.is_file or {first.kind, second.kind} != {"parameter"}:
        return ""
    return f"; if they should be tied: lw.tie(model, {second.path_literal}, to={first.path_literal}{options})"
