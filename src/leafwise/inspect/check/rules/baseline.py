"""Rules about training as a whole: what did not change against the same model before it, and what should not have."""

from leafwise.inspect.check.evidence import Looked
from leafwise.inspect.check.rules.registry import Found, rule, told, warning


@rule("LW601", "unchanged")
def unchanged(looked: Looked) -> Found:
    """A trainable leaf that holds the same bits as in `against=`: it was not trained, or is still at its initial
    values. Only noted where nobody says what is trainable, as in a file, and where its gradient is all zero."""
    same = [seen for seen in looked.leaves if seen.path in looked.changes and _is_same(looked, seen.path)]
    trained = [seen for seen in same if seen.kind == "parameter" and seen.is_float and seen.spec.trainable is not False]
    if trained and all(_is_same(looked, path) for path in looked.changes):
        yield warning("", f"nothing has changed: all of {len(looked.changes):,} leaves are as in against=")
        return
    for seen in trained:
        yield told(
            "warning" if seen.spec.trainable and (seen.pulls or not seen.has_grad) else "note",
            seen,
            f"all of {seen.spec.size:,} values are as they were; is it used by forward(), and in the optimizer? If it "
            f"is meant, lw.freeze(model, {seen.spelled})",
        )


@rule("LW602", "frozen, changed")
def frozen_changed(looked: Looked) -> Found:
    """A frozen parameter that holds other values than in `against=`."""
    for seen in looked.leaves:
        if seen.kind == "parameter" and seen.spec.trainable is False and seen.path in looked.changes:
            change = looked.changes[seen.path]
            if "changed" in change.kinds and change.comparison is not None:
                share, away = change.comparison.share, change.comparison.relative_l2
                yield warning(
                    seen,
                    f"frozen, and {share:.2%} of {seen.spec.size:,} values changed, by {away:.2g} of its norm; was it "
                    "frozen after training began, or does something write to it?",
                )


def _is_same(looked: Looked, path: str) -> bool:
    return not {"changed", "transposed"} & set(looked.changes[path].kinds)
