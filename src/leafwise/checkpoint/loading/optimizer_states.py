"""Reads the states of optimizers from the source, and gives them to the optimizers of the target."""

from typing import Any, NamedTuple

from leafwise.checkpoint.loading.source_values import SourceValues
from leafwise.checkpoint.plain_values import assembled, record_of
from leafwise.checkpoint.planning.optimizer_places import Place
from leafwise.checkpoint.planning.optimizer_plan import OptimizerPlan, nested
from leafwise.checkpoint.planning.plan import Plan, turned, turned_shape
from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.capabilities.stepping import Stepping
from leafwise.core.columns import Columns
from leafwise.core.home import Home
from leafwise.core.work.progress import Count
from leafwise.errors import WriteError
from leafwise.files.arrays.stored import Stored
from leafwise.files.arrays.subarrays import before_turn
from leafwise.files.casts import cast_to
from leafwise.files.reading import checked_reads
from leafwise.files.reading.checked_reads import Read

State = dict[str, Any]


class _ReadStates(NamedTuple):
    """What one optimizer gets: the state of each parameter, the options of each group, and state that only the
    optimizer itself understands."""

    plan: OptimizerPlan
    by_place: dict[Place, State]
    options: dict[int, State]
    own: Any


class _ShardedState(NamedTuple):
    """New state that is sharded over processes: its home, the array, its dtype, the row of the source, and the order of
    the axes of the source."""

    home: Home
    array: Any
    dtype: str
    row: int
    order: tuple[int, ...] | None


class OptimizerStates:
    """The optimizer states of a load. Everything that can fail is in `read`."""

    def __init__(self, plan: Plan, source: SourceValues, progress: Count) -> None:
        self._plan, self._source, self._progress = plan, source, progress
        self._sharded: list[_ShardedState] = []
        self._read: list[_ReadStates] = []
        self._requests: list[Read] = []  # reads from files, done all at once

    def read(self) -> None:
        """Reads states into new memory, and verifies checksums on the way."""
        for planned in self._plan.optimizers:
            own = self._arrays((planned.own or planned.more).rows)
            states = {
                place: {**self._state(planned, place, saved.rows), **saved.values}
                for place, saved in planned.saved.items()
            }
            options = {
                group: {**self._arrays(saved.rows), **saved.values}
                for group, saved in planned.options.items()
                if saved.rows or saved.values
            }
            self._read.append(_ReadStates(planned, states, options, own))
        checked_reads.fill(self._requests, self._source.verifies, self._progress)
        self._fill_sharded()
        for number, read in enumerate(self._read):
            kept = read.plan.own or read.plan.more
            self._lay_out(read.own, kept.rows)
            self._read[number] = read._replace(own=assembled({**read.own, **kept.values}, kept.types))
            for place, saved in read.plan.saved.items():
                self._lay_out(read.by_place[place], saved.rows)
            self._turn_and_cast(read)
            optimizer = self._plan.target.columns.node_objects[read.plan.node]
            self._plan.target.columns.home(optimizer).capability(Stepping).check_states(optimizer, read.by_place)

    def _arrays(self, rows: dict[str, int]) -> State:
        arrays = {}
        for key, row in rows.items():
            value, name = self._source.current(row), self._source.columns.row_text(row)
            if isinstance(value, Stored) and (run := value.plain_run()) is not None:
                array, view = checked_reads.empty(value.spec)
                self._requests.append(Read(run[0], run[1], view, name))
            else:
                self._source.verify([(name, value)])
                array = self._source.array(row).copy(order="K")
            arrays[key] = array
        return arrays

    # -- state that is sharded over processes --------------------------------------------------------------

    def _state(self, planned: OptimizerPlan, place: Place, rows: dict[str, int]) -> State:
        """The state of a parameter. State that is sharded is a new array of the home, which gets its values later."""
        columns = self._plan.target.columns
        optimizer = columns.node_objects[planned.node]
        stepping = columns.home(optimizer).capability(Stepping)
        state, whole = {}, {}
        for (key, row), facts in zip(rows.items(), self._source.columns.facts(list(rows.values())), strict=True):
            keys, order = planned.turns.get(place, ([], None))
            order = order if key in keys else None
            shape = turned_shape(facts.spec.shape or (), order)
            like = stepping.sharded_like(optimizer, place, key, shape)
            if like is None:
                whole[key] = row
                continue
            home = columns.home(like)
            dtype = planned.casts.get(place, {}).get(key, facts.spec.dtype)
            state[key] = home.capability(Distributing).empty_like(like, dtype)
            self._sharded.append(_ShardedState(home, state[key], dtype, row, order))
        ready = {**self._arrays(whole), **state}
        return {key: ready[key] for key in rows}

    def _fill_sharded(self) -> None:
        """Reads the parts of sharded state that are in this process."""
        names = self._source.columns.row_text
        pairs = [
            (state, part, self._source.subarray(state.row, before_turn(part.inside(), state.order)))
            for state in self._sharded
            for part in state.home.capability(Distributing).parts(state.array)
        ]
        self._source.verify_parts(
            [(names(state.row), subarray) for state, _, subarray in pairs],
            [(names(state.row), self._source.current(state.row)) for state in self._sharded],
        )
        for state, part, subarray in pairs:
            array = turned(subarray.read(), state.order)
            if state.dtype != subarray.spec.dtype:
                self._source.check_cast(array, state.dtype, names(state.row))
                array = cast_to(array, state.dtype, self._plan.saturate)
            state.home.write(part.value, array)
            self._progress(subarray.spec.nbytes)

    def _lay_out(self, state: State, rows: dict[str, int]) -> None:
        """Gives arrays the memory layout that they had when they were saved."""
        columns = self._source.columns
        record = record_of(columns)
        orders = {} if record is None else record.orders
        for key, row in rows.items() if orders else ():
            order = orders.get(columns.keys([row])[0])
            if order is not None and _is_numpy(state[key]) and len(order) == state[key].ndim:
                inverse = tuple(order.index(axis) for axis in range(len(order)))
                state[key] = state[key].transpose(order).copy().transpose(inverse)

    def _turn_and_cast(self, states: _ReadStates) -> None:
        planned, by_place = states.plan, states.by_place
        for place, (keys, order) in planned.turns.items():
            state = by_place[place]
            state.update({key: state[key].transpose(order).copy() for key in keys if _is_numpy(state.get(key))})
        for place, casts in planned.casts.items():
            state = by_place[place]
            for key, dtype in casts.items():
                if not _is_numpy(state[key]):
                    continue  # sharded state has its dtype
                name = self._source.columns.row_text(planned.saved[place].rows[key])
                self._source.check_cast(state[key], dtype, name)
                state[key] = cast_to(state[key], dtype, self._plan.saturate)

    def restore(self) -> None:
        """Gives optimizers their states."""
        columns = self._plan.target.columns
        for planned, by_place, options, own in self._read:
            optimizer = columns.node_objects[planned.node]
            stepping = columns.home(optimizer).capability(Stepping)
            if planned.own is not None:
                stepping.restore_own_state(optimizer, own)
                continue
            if planned.has_types:
                options = {group: assembled(values, planned.options[group].types) for group, values in options.items()}
            states = {
                place: assembled(state, planned.saved[place].types) if planned.has_types else nested(state)
                for place, state in by_place.items()
            }
            stepping.restore_state(optimizer, states, options, planned.whole, own)


class SteppedLeaves:
    """The leaves that the optimizers of a target step, even if only another part of it is loaded. They must step them
    after a load, too."""

    def __init__(self, columns: Columns) -> None:
        optimizers = [columns.node_objects[node] for node in columns.optimizers()]
        rows = {id(value): row for row, value in enumerate(columns.row_values)}
        self._columns = columns
        self._held = [(each, columns.home(each).capability(Stepping)) for each in optimizers]
        self._rows = [[rows.get(id(value)) for _, value in stepping.held_by(each)] for each, stepping in self._held]

    def exchange(self, new: dict[int, Any]) -> None:
        """Replaces arrays without memory; `new` maps the id of each to the array that is now in the model."""
        for optimizer, stepping in self._held if new else ():
            stepping.exchange(optimizer, new)

    def check(self) -> None:
        columns = self._columns
        stepped = {id(value) for optimizer, stepping in self._held for _, value in stepping.held_by(optimizer)}
        for row in (row for rows in self._rows for row in rows if row is not None):
            if id(columns.current(row)) not in stepped:
                raise WriteError(
                    f"the optimizer steps another parameter than {columns.row_text(row)} of the model; create it again"
                )


def _is_numpy(value: Any) -> bool:
    return type(value).__module__ == "numpy"
