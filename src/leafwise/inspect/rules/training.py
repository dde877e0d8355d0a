"""Rules about training: gradients that are missing or not wanted, and what the optimizer steps."""

from leafwise.inspect.looking import Looked
from leafwise.inspect.rules.registry import Found, error, note, rule, told, warning
from leafwise.share.find import HeldWrongly, held_wrongly


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
                f'forward(), or was it detached? If it is meant, lw.freeze(model, "{seen.path}")',
            )


@rule("LW402", "gradient on a frozen leaf")
def gradient_on_frozen(looked: Looked) -> Found:
    """A frozen leaf that still has a gradient: an optimizer that has it would step it."""
    for seen in looked.leaves:
        if seen.kind == "parameter" and seen.spec.trainable is False and seen.has_grad:
            yield warning(
                seen,
                "frozen, and has a gradient from before, which an optimizer would step; set .grad = None, "
                "or zero_grad() after freezing",
            )


@rule("LW411", "not in the optimizer")
def not_in_optimizer(looked: Looked) -> Found:
    """A trainable leaf that no optimizer steps."""
    if not looked.optimizers:
        return
    for seen in looked.leaves:
        if seen.kind == "parameter" and seen.spec.trainable and not looked.is_held(seen):
            yield warning(
                seen,
                "trainable, and no optimizer steps it; lw.groups(model) lists every leaf, or "
                f'lw.freeze(model, "{seen.path}") if that is meant',
            )


@rule("LW412", "in the optimizer twice")
def in_optimizer_twice(looked: Looked) -> Found:
    """A leaf that the optimizer steps more than once a step, or two over one memory."""
    for one in _held_wrongly(looked):
        if one.problem in ("twice", "shared memory"):
            yield error(one.path, one.message)


@rule("LW413", "frozen, in the optimizer")
def frozen_in_optimizer(looked: Looked) -> Found:
    """A frozen leaf that the optimizer has. Noted, since it steps nothing without a gradient; a warning where there is
    one."""
    if not looked.optimizers:
        return
    for seen in looked.leaves:
        if seen.kind == "parameter" and seen.spec.trainable is False and looked.is_held(seen):
            yield told(
                "warning" if seen.has_grad else "note",
                seen,
                "frozen, and in the optimizer"
                + (", which steps it by its old gradient" if seen.has_grad else "")
                + "; make the optimizer from lw.groups(model), which leaves it out",
            )


@rule("LW414", "stale in the optimizer")
def stale_in_optimizer(looked: Looked) -> Found:
    """What the optimizer steps although the model has it no longer."""
    for one in _held_wrongly(looked):
        if one.problem == "stale":
            yield error(one.path, one.message)


def _held_wrongly(looked: Looked) -> list[HeldWrongly]:
    if looked.columns.node_objects[0] in looked.optimizers:
        return []  # the tree of an optimizer alone has no parameters to compare with
    return [found for one in looked.optimizers for found in held_wrongly(looked.tree, one)]
