"""Values that must be equal before a load changes anything: those of tied leaves, and those that share memory."""

from typing import TYPE_CHECKING, Any

from leafwise.checkpoint.loading.source_values import SourceValues
from leafwise.checkpoint.planning.plan import MustAgree, Plan, RestoredTie, the_source, turned
from leafwise.core.capabilities.loading import Loading
from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.memory.ops import Op, meeting
from leafwise.core.path import listed
from leafwise.errors import LoadError
from leafwise.files.arrays.stored import agree_in_memory, same_values
from leafwise.files.arrays.subarrays import before_turn
from leafwise.files.casts import cast_to, misfit
from leafwise.share.tie_requests import TieRequest

if TYPE_CHECKING:
    from leafwise.checkpoint.loading.load_steps import Load


def agreed_ties(plan: Plan, source: SourceValues) -> list[TieRequest]:
    """The ties to make. Raises if a tied leaf would get two different values."""
    problems = []
    for must in plan.must_agree:
        name, first, order, second, op, rows = must
        same = _same(plan, source, first, order, second, op, rows[0]) if op.is_described else None
        if not (_agree_in_memory(plan, source, must) if same is None else same):
            first_name, second_name = (source.columns.row_text(row) for row in (first, second))
            problems.append(
                f"{name} is tied in the model, but {the_source(plan.source)} has two different values for it, "
                f'{first_name} and {second_name}; untie it first: lw.untie(model, "{name}")'
            )
    if problems:
        raise LoadError(["cannot load; nothing was changed", *(f"  {problem}" for problem in problems)], plan)
    return [tie.request for tie in plan.restored_ties if _holds(plan, source, tie)]


def _holds(plan: Plan, source: SourceValues, tie: RestoredTie) -> bool:
    return tie.rows is None or _same(plan, source, tie.rows[0], None, tie.rows[1], tie.request.op)


def _same(
    plan: Plan,
    source: SourceValues,
    first: int,
    order: tuple[int, ...] | None,
    second: int,
    op: Op,
    leaf: int | None = None,
) -> bool:
    """Whether two rows of the source are equal; of a leaf that is sharded, only in its parts in this process."""
    columns = plan.target.columns
    value = None if leaf is None or op != "same" else columns.current(leaf)
    if value is not None and columns.home(value).spec(value).sharding is not None:
        parts = columns.home(value).capability(Distributing).parts(value)
        return all(
            same_values(
                turned(source.subarray(first, before_turn(part.inside(), order)).read(), order),
                source.subarray(second, part.inside()).read(),
            )
            for part in parts
        )
    whole, seen = turned(source.array(first), order), source.array(second)
    if op.slices is not None:
        whole = whole[op.slices]
    return same_values(turned(whole, op.order), seen)


def _agree_in_memory(plan: Plan, source: SourceValues, must: MustAgree) -> bool:
    """Whether both values could be written to the memory of their names without overwriting each other."""
    columns = plan.target.columns
    arrays = [turned(source.array(must.first), must.order), source.array(must.second)]
    placed = []
    for row, array in zip(must.rows, arrays, strict=True):
        value = columns.current(row)
        home = columns.home(value)
        (place,) = home.capability(Loading).locations([value])
        dtype = home.spec(value).dtype
        if place is None or array.shape != place[1].shape or misfit(array, dtype):
            return False
        placed.append((place[1], cast_to(array, dtype)))
    return agree_in_memory(placed)


def check_overlaps(loads: "list[Load]") -> None:
    """Raises if elements that share memory, within one leaf or across leaves that are not tied, would get different
    values."""
    located = [
        (load, copy, place)
        for load in loads
        for copy, place in zip(load.copies, load.locations, strict=True)
        if place is not None
    ]
    for group in meeting([place for _, _, place in located]):
        met = [located[number] for number in group]
        signs = {memory.dtype.partition(" ")[2] for _, _, (_, memory) in met}
        arrays: list[tuple[Any, Any]] = [(memory, load.copier.cast_values(copy)) for load, copy, (_, memory) in met]
        if len(signs) == 1 and agree_in_memory(arrays):
            continue
        names = listed(list(dict.fromkeys(copy.feed.name for _, copy, _ in met)), 6)
        if len(met) == 1:
            why = "several of its elements share memory; give it memory of its own (.clone() or .copy())"
            raise LoadError(f"cannot load {names}: {why}; nothing was changed", met[0][0].plan)
        raise LoadError(
            f"cannot load {names}: they overlap in memory in the model, but the source has different values for the "
            "elements that they share; nothing was changed",
            met[0][0].plan,
        )
