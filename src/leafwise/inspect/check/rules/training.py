"""Rules about training: gradients that are missing or not wanted, and what the optimizer steps."""

from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.rules.registry import Reports, error, note, report, rule, warning


@rule("LW401", "gradient missing")
def gradient_missing(evidence: Evidence) -> Reports:
    """A trainable leaf without a gradient, where others have one. Only noted: parts of a model may sit out a batch."""
    if not evidence.gradients:
        return
    for leaf in evidence.leaves:
        if leaf.kind == "parameter" and leaf.spec.trainable and not leaf.has_grad and leaf.spec.size:
            yield note(
                leaf,
                f"trainable, and without a gradient where {len(evidence.gradients):,} others have one; is it used by "
                f"forward(), or was it detached? If it is meant, lw.freeze(model, {leaf.path_literal})",
            )


@rule("LW402", "gradient on a frozen leaf")
def gradient_on_frozen(evidence: Evidence) -> Reports:
    """A frozen leaf that still has a gradient: an optimizer that has it would step it."""
    for leaf in evidence.leaves:
        if leaf.kind == "parameter" and leaf.spec.trainable is False and leaf.has_nonzero_grad:
            yield warning(
                leaf,
                "frozen, and has a gradient from before, which an optimizer would step; set .grad = None, "
                "or zero_grad() after freezing",
            )


@rule("LW411", "not in the optimizer")
def not_in_optimizer(evidence: Evidence) -> Reports:
    """A trainable leaf that no optimizer steps. Only noted where one steps an array of its shape in another precision,
    and of a whole model in a dict of several, as an average is."""
    unstepped_parts: dict[str, int] = {}
    for leaf in evidence.leaves if evidence.coverage else ():
        if leaf.kind != "parameter" or not leaf.spec.trainable or evidence.coverage.steps(leaf):
            continue
        part = evidence.coverage.unstepped_part(leaf)
        if part is not None:
            unstepped_parts[part] = unstepped_parts.get(part, 0) + 1
        elif any(
            spec.shape == leaf.shape and spec.dtype != leaf.spec.dtype for spec in evidence.coverage.specs_outside_tree
        ):
            yield note(leaf, "trainable, and stepped, if at all, as a copy in another precision; write that back to it")
        else:
            yield warning(
                leaf,
                "trainable, and no optimizer steps it; lw.groups(model) lists every leaf, or "
                f"lw.freeze(model, {leaf.path_literal}) if that is meant",
            )
    for part, count in unstepped_parts.items():
        yield note(
            part, f"no optimizer steps any of its {count:,} trainable leaves; right for an average of another model"
        )


@rule("LW412", "in the optimizer twice")
def in_optimizer_twice(evidence: Evidence) -> Reports:
    """A leaf that the optimizer steps more than once a step, or two over one memory. Noted where several optimizers
    have it: they may take turns."""
    for problem in evidence.coverage.problems:
        if problem.problem in ("twice", "shared memory"):
            yield error(problem.path, problem.message)
    for leaf in evidence.leaves:
        if (count := evidence.coverage.optimizer_count(leaf)) > 1:
            yield note(leaf, f"{count} optimizers step it; right where they take turns")


@rule("LW413", "frozen, in the optimizer")
def frozen_in_optimizer(evidence: Evidence) -> Reports:
    """A frozen leaf that the optimizer has. Noted, since it steps nothing without a gradient; a warning where there is
    one."""
    for leaf in evidence.leaves if evidence.coverage else ():
        if leaf.kind == "parameter" and leaf.spec.trainable is False and evidence.coverage.steps(leaf):
            yield report(
                "warning" if leaf.has_nonzero_grad else "note",
                leaf,
                "frozen, and in the optimizer"
                + (", which steps it by its old gradient" if leaf.has_nonzero_grad else "")
                + "; make the optimizer from lw.groups(model), which leaves it out",
            )


@rule("LW414", "stale in the optimizer")
def stale_in_optimizer(evidence: Evidence) -> Reports:
    """What the optimizer steps although the model has it no longer: an error where a leaf of its shape is not stepped.
    Otherwise noted, since an optimizer may step more than one model, and what is in none."""
    for problem in evidence.coverage.problems:
        if problem.problem == "stale" and problem.like:
            yield error(problem.path, problem.message)
        elif problem.problem == "stale":
            message = f"{problem.place} is in the optimizer, and not in what is checked; right if it belongs elsewhere"
            yield note(problem.path, message)
