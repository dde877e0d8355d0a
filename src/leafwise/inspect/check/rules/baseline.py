"""Rules that compare a model with itself before training: leaves that did not change, or should not have changed."""

from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.rules.registry import Reports, report, rule, warning


@rule("LW601", "unchanged")
def unchanged(evidence: Evidence) -> Reports:
    """A trainable leaf with the same bits as in `against=`: it was not trained, or still has its initial values. Only a
    note if it is not known what is trainable, as in a file, or if its gradient is all zero."""
    same = [leaf for leaf in evidence.leaves if leaf.path in evidence.changes and _is_same(evidence, leaf.path)]
    trained = [leaf for leaf in same if leaf.kind == "parameter" and leaf.is_float and leaf.spec.trainable is not False]
    if trained and all(_is_same(evidence, path) for path in evidence.changes):
        yield warning("", f"nothing has changed: all {len(evidence.changes):,} leaves are the same as in against=")
        return
    for leaf in trained:
        hint = (
            "was it in the optimizer?"
            if evidence.tree.is_file
            else "is it used in forward(), and is it in the optimizer? If this is intended: "
            f"lw.freeze(model, {leaf.path_literal})"
        )
        yield report(
            "warning" if leaf.spec.trainable and (leaf.has_nonzero_grad or not leaf.has_grad) else "note",
            leaf,
            f"all {leaf.spec.size:,} values are the same as in against=; {hint}",
        )


@rule("LW602", "frozen, changed")
def frozen_changed(evidence: Evidence) -> Reports:
    """A frozen parameter whose values differ from those in `against=`."""
    for leaf in evidence.leaves:
        if leaf.kind == "parameter" and leaf.spec.trainable is False and leaf.path in evidence.changes:
            change = evidence.changes[leaf.path]
            if "changed" in change.kinds and change.comparison is not None:
                share, distance = change.comparison.share, change.comparison.relative_l2
                yield warning(
                    leaf,
                    f"frozen, but {share:.2%} of {leaf.spec.size:,} values changed, by {distance:.2g} of its norm; was "
                    "it frozen only after training began, or does something else write to it?",
                )


def _is_same(evidence: Evidence, path: str) -> bool:
    return not {"changed", "transposed"} & set(evidence.changes[path].kinds)
