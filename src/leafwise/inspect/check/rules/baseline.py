"""Rules about training as a whole: what did not change against the same model before it, and what should not have."""

from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.rules.registry import Reports, report, rule, warning


@rule("LW601", "unchanged")
def unchanged(evidence: Evidence) -> Reports:
    """A trainable leaf that holds the same bits as in `against=`: it was not trained, or is still at its initial
    values. Only noted where nobody says what is trainable, as in a file, and where its gradient is all zero."""
    same = [leaf for leaf in evidence.leaves if leaf.path in evidence.changes and _is_same(evidence, leaf.path)]
    trained = [leaf for leaf in same if leaf.kind == "parameter" and leaf.is_float and leaf.spec.trainable is not False]
    if trained and all(_is_same(evidence, path) for path in evidence.changes):
        yield warning("", f"nothing has changed: all of {len(evidence.changes):,} leaves are as in against=")
        return
    for leaf in trained:
        yield report(
            "warning" if leaf.spec.trainable and (leaf.has_nonzero_grad or not leaf.has_grad) else "note",
            leaf,
            f"all of {leaf.spec.size:,} values are as they were; is it used by forward(), and in the optimizer? If it "
            f"is meant, lw.freeze(model, {leaf.path_literal})",
        )


@rule("LW602", "frozen, changed")
def frozen_changed(evidence: Evidence) -> Reports:
    """A frozen parameter that holds other values than in `against=`."""
    for leaf in evidence.leaves:
        if leaf.kind == "parameter" and leaf.spec.trainable is False and leaf.path in evidence.changes:
            change = evidence.changes[leaf.path]
            if "changed" in change.kinds and change.comparison is not None:
                share, distance = change.comparison.share, change.comparison.relative_l2
                yield warning(
                    leaf,
                    f"frozen, and {share:.2%} of {leaf.spec.size:,} values changed, by {distance:.2g} of its norm; was "
                    "it frozen after training began, or does something write to it?",
                )


def _is_same(evidence: Evidence, path: str) -> bool:
    return not {"changed", "transposed"} & set(evidence.changes[path].kinds)
