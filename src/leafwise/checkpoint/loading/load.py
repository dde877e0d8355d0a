"""`lw.load`: applies a plan if it has no problems; otherwise raises an error that lists them, and changes nothing.

Everything that can fail comes first: the plan, checksums, values that must be equal, memory for leaves that have none.
Then values are written in place, so that optimizers keep their parameters.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import groupby
from typing import Any, Literal, TypeVar, overload

from leafwise.checkpoint.joint_call import JointCall, joint_call_of, model_rows, plan_rows
from leafwise.checkpoint.loading import load_steps
from leafwise.checkpoint.loading.agreement import check_overlaps
from leafwise.checkpoint.loading.load_steps import Load
from leafwise.checkpoint.loading.multiple_sources import check_parts, plans_for_parts, put_together
from leafwise.checkpoint.loading.optimizer_states import SteppedLeaves
from leafwise.checkpoint.planning.plan import Plan, advice
from leafwise.checkpoint.planning.planner import is_several, make_plan
from leafwise.checkpoint.planning.problem_groups import counts_text, grouped_problems
from leafwise.core.path import escape
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.core.work.progress import Count, bar
from leafwise.errors import LoadError, interruption_explained, memory_explained, warn
from leafwise.files.casts import Cast
from leafwise.files.reading.landings import Transfers

M = TypeVar("M")
T = TypeVar("T")


@overload
def load(
    model: Tree,
    source: Any,
    *,
    rename: Any = None,
    allow: Iterable[str] = (),
    cast: Cast = False,
    ties: Literal["restore", "ignore"] = "restore",
    flatten: Any = None,
    verify: bool = True,
    progress: bool = False,
) -> Any: ...
@overload
def load(
    model: M,
    source: Any,
    *,
    rename: Any = None,
    allow: Iterable[str] = (),
    cast: Cast = False,
    ties: Literal["restore", "ignore"] = "restore",
    flatten: Any = None,
    verify: bool = True,
    progress: bool = False,
) -> M: ...
def load(
    model: Any,
    source: Any,
    *,
    rename: Any = None,
    allow: Iterable[str] = (),
    cast: Cast = False,
    ties: Literal["restore", "ignore"] = "restore",
    flatten: Any = None,
    verify: bool = True,
    progress: bool = False,
) -> Any:
    """Loads a checkpoint, or another model, into a model. Returns the model.

    `source` is a file, a folder, a URL, another model, or a Tree. Its weights may be those of another framework. Every
    leaf of the model must get a value, and every leaf of the source must be used. Otherwise, this raises a `LoadError`
    that lists every problem, and changes nothing.

    - `rename`, `allow`, `cast` and `flatten` permit differences; see `lw.plan`.
    - `ties="ignore"` does not restore the ties of the source. By default they are restored, even if the model was not
      tied.
    - `verify=False` does not compare the source with its checksums.
    - `progress=True` shows a progress bar.

    Values are written in place. A model on meta gets its memory leaf by leaf, directly from the file. If a model is
    sharded over processes, every process must call this: each reads its parts, and all of them load, or none.

    `source` may also be a dict of checkpoints: each is loaded into the part of the model with the same name. If a
    checkpoint contains several objects, the one with this name is loaded. Either all of them are loaded, or none. A
    part without a checkpoint is missing.

    >>> import tempfile, torch, leafwise as lw
    >>> old, new = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = lw.save(old, f"{folder}/model.safetensors")
    ...     new = lw.load(new, path)
    >>> torch.equal(old.weight, new.weight)
    True
    """

    with ExitStack() as files:
        t = files.enter_context(opened(model, "load"))
        if t.is_file:
            raise LoadError("cannot load into a file; load it into a model, then lw.save the model")
        joint = joint_call_of(t, "load")
        if joint is not None:
            files.enter_context(joint.messages)
            joint.agree(model_rows(t))

        def planned(part: Tree, s: Tree) -> Plan:
            return make_plan(part, s, rename, allow, cast, ties, flatten)

        def open_source(part: Any) -> Tree:
            return files.enter_context(opened(part, "load", verify=verify))

        plans = _together(joint, lambda: _plans(t, source, planned, open_source))
        if joint is not None:
            joint.agree(joint.attempt(lambda: plan_rows(plans)))
        with bar(sum(map(_bytes_here, plans)), "loading", progress) as count:
            transfers = Transfers()
            files.callback(transfers.release)
            place = (0, 1) if joint is None else (joint.team.rank, joint.team.size)
            loads = _together(joint, lambda: _prepare(plans, verify, count, transfers, place))
            roots = _together(joint, lambda: _apply(loads))
        if plans[0].target is t:
            return roots[0]
        return put_together(t, [(plan.target.root, root) for plan, root in zip(plans, roots, strict=True)])


def _together(joint: JointCall | None, action: Callable[[], T]) -> T:
    return action() if joint is None else joint.attempt(action)


def _plans(
    t: Tree, source: Any, planned: Callable[[Tree, Tree], Plan], open_source: Callable[[Any], Tree]
) -> list[Plan]:
    """The plans of a load, one for each source. Raises if one of them has problems."""
    with memory_explained("load"):
        if is_several(source):
            plans = plans_for_parts(t, source, planned, open_source)
            check_parts(t, plans)
        else:
            plans = [planned(t, open_source(source))]
    if wrong := [plan for plan in plans if not plan.holds]:
        raise LoadError([line for plan in wrong for line in _refusal(plan)], wrong[0])
    for warning in (warning for plan in plans for warning in plan.warnings):
        warn(escape(warning))
    return plans


def _prepare(plans: list[Plan], verify: bool, count: Count, transfers: Transfers, place: tuple[int, int]) -> list[Load]:
    with memory_explained("load"):
        loads = [load_steps.prepare(plan, verify, count, transfers, place) for plan in plans]
        loads = [load_steps.verify_values(load) for load in loads]
        check_overlaps(loads)
    return loads


def _apply(loads: list[Load]) -> list[Any]:
    columns = loads[0].columns
    stepped = SteppedLeaves(columns) if columns.optimizers() else None
    exchanged = {key: new for load in loads for key, new in load.exchanged.items()}
    with interruption_explained("load", "load it again"):
        roots = [load_steps.apply(load) for load in loads]
        for load in loads:
            load_steps.restore_optimizers(load, stepped, exchanged)
    return roots


def _bytes_here(plan: Plan) -> int:
    """How many bytes of the source this process loads, about."""
    sources = plan.source.columns.facts([feed.source for feed in plan.feeds])
    targets = plan.target.columns.facts([feed.row for feed in plan.feeds])
    return sum(
        source.spec.nbytes
        if target.spec.sharding is None
        else source.spec.nbytes * target.spec.nbytes_here // max(target.spec.nbytes, 1)
        for source, target in zip(sources, targets, strict=True)
    )


_MOST_MESSAGES = 40  # messages of each kind of problem; the plan has all of them


def _refusal(plan: Plan) -> list[str]:
    counts = counts_text(plan.problems)
    lines = [f"cannot load{f' ({counts})' if counts else ''}; nothing was changed"]
    for kind, of_kind in groupby(grouped_problems(plan, plan.problems), key=lambda group: group.kind):
        groups = list(of_kind)
        label = "" if kind == "nothing" else f"{kind}: "
        lines += [f"  {label}{group.message}" for group in groups[:_MOST_MESSAGES]]
        if left_out := sum(group.times for group in groups[_MOST_MESSAGES:]):
            lines.append(f"  … and {left_out:,} more {kind}")
    lines += [f"  note: {note}" for note in plan.notes]
    if (hint := advice(plan)) is not None:
        lines.append(f"  {hint}")
    if plan.renames and not plan.applied:
        lines.append('  to apply the renames that are certain, pass rename="auto"; lw.plan lists them')
    if not all(proposal.certain for proposal in plan.proposals):
        lines.append("  some renames are possible but not certain; lw.plan lists them: pass the right ones as rename=")
    return lines
