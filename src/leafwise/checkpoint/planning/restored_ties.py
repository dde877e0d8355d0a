"""Plans the ties of the source that the target does not have yet."""

from leafwise.checkpoint.plain_values import record_of
from leafwise.checkpoint.planning.leaf_plan import is_same_leaf
from leafwise.checkpoint.planning.plan import Plan, RestoredTie, the_source
from leafwise.core.capabilities.stepping import Stepping
from leafwise.core.memory.ops import Op
from leafwise.core.pairing.row_pairs import Pairing
from leafwise.core.path import listed
from leafwise.core.tree import Tree
from leafwise.errors import Error, Unsupported
from leafwise.share.places import check_not_sharded
from leafwise.share.tie_requests import TieRequest, check_tie_requests


def plan_ties(plan: Plan, pairing: Pairing, optimizers: list[int]) -> None:
    """Finds ties of the source whose names are separate leaves in the target. `optimizers`: nodes of the target."""
    theirs = plan.source.columns
    planner = _TiePlanner(plan, pairing, optimizers)
    for leaf, rows in theirs.further_rows.items():
        base = leaf if leaf in pairing.target_of else next((r for r in rows if theirs.row_op(r) == "same"), None)
        for row in rows:
            if base is not None and row != base:
                planner.request(row, base, theirs.row_op(row), None)
    claimed = _claimed(plan.source)
    rows_by_name = {name: row for row, name in pairing.source.name_of.items()} if claimed else {}
    for name, of, op in claimed:
        second, first = rows_by_name.get(name), rows_by_name.get(of)
        if second is not None and first is not None and not is_same_leaf(theirs, first, second, op):
            planner.request(second, first, op, (first, second))
    if planner.untied:
        are = "is" if len(planner.untied) == 1 else "are"
        plan.notes.append(
            f"{listed(planner.untied, 3)} {are} tied in {the_source(plan.source)}, but not here: arrays in a pytree "
            "are separate leaves; each gets its values"
        )


class _TiePlanner:
    """Adds ties to the plan, or the reasons why they cannot be made."""

    def __init__(self, plan: Plan, pairing: Pairing, optimizers: list[int]) -> None:
        self._plan, self._pairing = plan, pairing
        self._columns = plan.target.columns
        self._fed = {feed.row for feed in plan.feeds}
        self.untied: list[str] = []  # leaves that cannot be tied, because their arrays are values
        objects = [self._columns.node_objects[node] for node in optimizers]
        self._stepped = {
            id(value)
            for optimizer in objects
            for _, value in self._columns.home(optimizer).capability(Stepping).held_by(optimizer)
        }

    def request(self, row: int, base_row: int, op: Op, rows: tuple[int, int] | None) -> None:
        """Plans to tie the leaf that `row` of the source fills to the leaf that `base_row` fills."""
        columns, pairing = self._columns, self._pairing
        target, base = pairing.target_of.get(row), pairing.target_of.get(base_row)
        if target is None or base is None or columns.row_op(base) != "same" or not op.is_described:
            return
        leaf, base_leaf = columns.ties.get(target, target), columns.ties.get(base, base)
        if leaf == base_leaf or not {leaf, base_leaf} <= self._fed:
            return
        name, to = pairing.target.name_of[target], pairing.target.name_of[base]
        tied = f"{name} is tied to {to}{op.describe()} in {the_source(self._plan.source)}"
        if not columns.home(columns.node_objects[columns.row_nodes[target]]).in_place:
            if self._plan.may_be_carried:
                self._plan.notes.append(f"{tied}, but not here: they are two leaves in the model, with equal values")
            return
        if id(columns.current(target)) in self._stepped:
            self._plan.add(
                "tie",
                name,
                f"{tied}, but the optimizer steps it as a parameter of its own; load the model first and create the "
                'optimizer after that, or pass ties="ignore"',
            )
            return
        if not columns.home(columns.current(target)).ties_by_identity:
            self.untied.append(name)
            return
        owners = [columns.node_objects[columns.row_nodes[place]] for place in (target, base_leaf)]
        homes = {columns.home(owner).name for owner in owners}
        if len(homes) > 1:
            self._plan.notes.append(f"{tied}, but not here: {' and '.join(sorted(homes))} cannot share an array")
            return
        request = TieRequest(target, base_leaf, op)
        try:
            check_not_sharded(self._plan.target, [target, base_leaf], "tie")
            check_tie_requests(columns, [request], "source")
        except Unsupported as error:  # containers cannot be tied, for instance
            self._plan.notes.append(f"{tied}, but not here: {error}")
            return
        except Error as error:
            message = f'{tied}, and this tie cannot be restored: {error}; pass ties="ignore" to load without it'
            self._plan.add("tie", name, message)
            return
        self._plan.restored_ties.append(RestoredTie(request, rows))


def _claimed(s: Tree) -> list[tuple[str, str, Op]]:
    """The ties that a file records, by names relative to the tree."""
    record = record_of(s.columns)
    prefix = "".join(f"{name}." for name in s.path.names)
    return [
        (name.removeprefix(prefix), of.removeprefix(prefix), op)
        for name, of, op in (record.ties if record is not None else ())
        if name.startswith(prefix) and of.startswith(prefix)
    ]
