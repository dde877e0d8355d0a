"""Rules about training: missing and unwanted gradients, and the leaves that the optimizer steps."""

from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.rules.registry import Reports, error, note, report, rule, warning


@rule("LW401", "gradient missing")
def gradient_missing(evidence: Evidence) -> Reports:
    """A trainable leaf without a gradient while others have one. Only a note, since a batch may not use every part of a
    model."""
    if not evidence.gradients:
        return
    count = len(evidence.gradients)
    others = f"{count:,} other leaves have one" if count > 1 else "another leaf has one"
    for leaf in evidence.leaves:
        if leaf.kind == "parameter" and leaf.spec.trainable and not leaf.has_grad and leaf.spec.size:
            yield note(
                leaf,
                f"trainable, but has no gradient, while {others}; is it used in forward(), or was it detached? If this "
                f"is intended: lw.freeze(model, {leaf.path_literal})",
            )


@rule("LW402", "gradient on a frozen leaf")
def gradient_on_frozen(evidence: Evidence) -> Reports:
    """A frozen leaf that still has a gradient: an optimizer that contains the leaf would step it."""
    for leaf in evidence.leaves:
        if leaf.kind == "parameter" and leaf.spec.trainable is False and leaf.has_nonzero_grad:
            yield warning(
                leaf,
                "frozen, but still has a gradient from before, so an optimizer would step it; set .grad = None, or "
                "call zero_grad() after freezing",
            )


@rule("LW411", "not in the optimizer")
def not_in_optimizer(evidence: Evidence) -> Reports:
    """A trainable leaf that no optimizer steps. Only a note if an optimizer steps an array of the same shape in another
    precision, or if none steps any leaf of one model in a dict of several, such as an average."""
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
            message = (
                "trainable, but not in the optimizer, which has an array of the same shape in another precision; if "
                "that is its copy, write it back to this leaf after each step"
            )
            yield note(leaf, message)
        else:
            yield warning(
                leaf,
                "trainable, but not in the optimizer; make the optimizer from lw.groups(model), which has every "
                f"trainable leaf. If this is intended: lw.freeze(model, {leaf.path_literal})",
            )
    for part, count in unstepped_parts.items():
        leaves = f"any of its {count:,} trainable leaves" if count > 1 else "its only trainable leaf"
        yield note(part, f"no optimizer steps {leaves}; expected for an average of another model")


@rule("LW412", "in the optimizer twice")
def in_optimizer_twice(evidence: Evidence) -> Reports:
    """A leaf that an optimizer steps more than once per step, or two leaves in the same memory that are both stepped.
    Only a note if several optimizers step it, since they may take turns."""
    for problem in evidence.coverage.problems:
        if problem.problem in ("twice", "shared memory"):
            yield error(problem.path, problem.message)
    for leaf in evidence.leaves:
        if (count := evidence.coverage.optimizer_count(leaf)) > 1:
            yield note(leaf, f"{count} optimizers step it; fine if they take turns")


@rule("LW413", "frozen, in the optimizer")
def frozen_in_optimizer(evidence: Evidence) -> Reports:
    """A frozen leaf in the optimizer. Only a note, since leaves without a gradient are not stepped; a warning if it has
    one."""
    for leaf in evidence.leaves if evidence.coverage else ():
        if leaf.kind == "parameter" and leaf.spec.trainable is False and evidence.coverage.steps(leaf):
            yield report(
                "warning" if leaf.has_nonzero_grad else "note",
                leaf,
                "frozen, but in the optimizer"
                + (", which would step it with its old gradient" if leaf.has_nonzero_grad else "")
                + "; make the optimizer from lw.groups(model), which leaves out frozen leaves",
            )


@rule("LW414", "stale in the optimizer")
def stale_in_optimizer(evidence: Evidence) -> Reports:
    """A parameter that is in the optimizer but no longer in the model. An error if a leaf of the same shape, which may
    have replaced it, is not in the optimizer. Otherwise only a note, since an optimizer may also step other models."""
    for problem in evidence.coverage.problems:
        if problem.problem == "stale" and problem.like:
            yield error(problem.path, problem.message)
        elif problem.problem == "stale":
            message = f"{problem.place} is in the optimizer but not among the checked leaves; fine if used elsewhere"
            yield note(problem.path, message)
