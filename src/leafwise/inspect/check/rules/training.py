"""Rules about training: gradients that are missing or not wanted, and what the optimizer steps."""

from leafwise.inspect.check.evidence import Looked
from leafwise.inspect.check.rules.registry import Found, error, note, rule, told, warning


@rule("LW401", "gradient missing")
def gradient_missing(looked: Looked) -> Found:
    """A trainable leaf without a gradient, where others have one. Only noted: parts of a model may sit out a batch."""
    if not looked.gradients:
        return
    for seen in looked.leaves:
        if seen.kind == "parameter" and seen.spec.trainable and not seen.has_grad and seen.spec.size:
            yield note(
                seen,
                f"trainable, and without a gradient where {len(looked.gradients):,} others have one; is it used by "
                f"forward(), or was it detached? If it is meant, lw.freeze(model, {seen.spelled})",
            )


@rule("LW402", "gradient on a frozen leaf")
def gradient_on_frozen(looked: Looked) -> Found:
    """A frozen leaf that still has a gradient: an optimizer that has it would step it."""
    for seen in looked.leaves:
        if seen.kind == "parameter" and seen.spec.trainable is False and seen.pulls:
            yield warning(
                seen,
                "frozen, and has a gradient from before, which an optimizer would step; set .grad = None, "
                "or zero_grad() after freezing",
            )


@rule("LW411", "not in the optimizer")
def not_in_optimizer(looked: Looked) -> Found:
    """A trainable leaf that no optimizer steps. Only noted where one steps an array of its shape in another precision,
    and of a whole model in a dict of several, as an average is."""
    apart: dict[str, int] = {}
    for seen in looked.leaves if looked.stepped else ():
        if seen.kind != "parameter" or not seen.spec.trainable or looked.stepped.steps(seen):
            continue
        part = looked.stepped.part_apart(seen)
        if part is not None:
            apart[part] = apart.get(part, 0) + 1
        elif any(spec.shape == seen.shape and spec.dtype != seen.spec.dtype for spec in looked.stepped.elsewhere):
            yield note(seen, "trainable, and stepped, if at all, as a copy in another precision; write that back to it")
        else:
            yield warning(
                seen,
                "trainable, and no optimizer steps it; lw.groups(model) lists every leaf, or "
                f"lw.freeze(model, {seen.spelled}) if that is meant",
            )
    for part, count in apart.items():
        yield note(
            part, f"no optimizer steps any of its {count:,} trainable leaves; right for an average of another model"
        )


@rule("LW412", "in the optimizer twice")
def in_optimizer_twice(looked: Looked) -> Found:
    """A leaf that the optimizer steps more than once a step, or two over one memory. Noted where several optimizers
    have it: they may take turns."""
    for one in looked.stepped.wrongly:
        if one.problem in ("twice", "shared memory"):
            yield error(one.path, one.message)
    for seen in looked.leaves:
        if (times := looked.stepped.times(seen)) > 1:
            yield note(seen, f"{times} optimizers step it; right where they take turns")


@rule("LW413", "frozen, in the optimizer")
def frozen_in_optimizer(looked: Looked) -> Found:
    """A frozen leaf that the optimizer has. Noted, since it steps nothing without a gradient; a warning where there is
    one."""
    for seen in looked.leaves if looked.stepped else ():
        if seen.kind == "parameter" and seen.spec.trainable is False and looked.stepped.steps(seen):
            yield told(
                "warning" if seen.pulls else "note",
                seen,
                "frozen, and in the optimizer"
                + (", which steps it by its old gradient" if seen.pulls else "")
                + "; make the optimizer from lw.groups(model), which leaves it out",
            )


@rule("LW414", "stale in the optimizer")
def stale_in_optimizer(looked: Looked) -> Found:
    """What the optimizer steps although the model has it no longer: an error where a leaf of its shape is not stepped.
    Otherwise noted, since an optimizer may step more than one model, and what is in none."""
    for one in looked.stepped.wrongly:
        if one.problem == "stale" and one.like:
            yield error(one.path, one.message)
        elif one.problem == "stale":
            place = one.message.partition(" is no parameter")[0]
            yield note(
                one.path, f"{place} is in the optimizer, and not in what is checked; right if it belongs elsewhere"
            )
