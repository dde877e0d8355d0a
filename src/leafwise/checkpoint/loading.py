"""`lw.load`: a plan that holds, applied; otherwise an error that lists all that is wrong, and no change.

Everything that can fail comes first: the plan, checksums, values that must agree, memory for what has none. Then values
are written where they belong, so that optimizers keep their parameters.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, NamedTuple

from leafwise.checkpoint.optimizers import OptimizerPlan, nested
from leafwise.checkpoint.planning import is_several, make_plan, opened
from leafwise.checkpoint.plans import Back, Feed, MustAgree, Plan
from leafwise.checkpoint.several import check_parts, plans_for_parts, put_together
from leafwise.checkpoint.values import assembled
from leafwise.core.capabilities.loading import Loading
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.stepping import Stepping
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.columns import Columns
from leafwise.core.home import Home, Memory
from leafwise.core.memory import Op, meeting
from leafwise.core.path import escape, listed
from leafwise.core.progress import bar
from leafwise.core.rebuild import rebuilt
from leafwise.core.tree import Tree, tree
from leafwise.errors import Error, LoadError, Unsupported
from leafwise.files import reader
from leafwise.files.arrays import Stored, Strided, agree_in_memory, same_values
from leafwise.files.casts import SATURATE, Cast, cast_to, misfit
from leafwise.files.reader import ReadRequest
from leafwise.files.stored_file import StoredFile
from leafwise.share.tie_requests import TieRequest, make_ties


def load(
    model: Any,
    source: Any,
    *,
    rename: Any = None,
    allow: Iterable[str] = (),
    cast: Cast = False,
    ties: Literal["restore", "ignore"] = "restore",
    verify: bool = True,
    progress: bool = False,
) -> Any:
    """Loads a file, a folder, a URL, another live model or a Tree into a model. Returns the model.

    `source` may be a dict of files, folders, URLs or Trees of such: each is loaded into what the model, a dict too, has
    under its name, from what the file has under this name if it holds several things. All of them fit, or none is
    loaded; what no file is for is missing.

    Every leaf of the model must get a value and every leaf of the source must be taken; otherwise `LoadError` lists all
    that is wrong and nothing is changed. See `lw.plan` for `rename`, `allow` and `cast`. Ties of the source come back,
    also into a model that was not tied, unless `ties="ignore"`. Values are written in place; a model on meta gets
    memory, leaf by leaf, straight from the file. Checksums are compared where the source has some, unless
    `verify=False`.

    >>> import tempfile, torch, leafwise as lw
    >>> old, new = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = lw.save(old, f"{folder}/model.safetensors")
    ...     new = lw.load(new, path)
    >>> torch.equal(old.weight, new.weight)
    True
    """
    t = tree(model)
    if t.is_file:
        raise LoadError("cannot load into a file; load into a model, and save that")

    def planned(part: Tree, s: Tree) -> Plan:
        return make_plan(part, s, rename, allow, cast, ties)

    with ExitStack() as opened_here:
        if is_several(source):
            plans = plans_for_parts(t, source, planned, lambda one: _opened(one, verify, opened_here))
            check_parts(t, plans)
        else:
            plans = [planned(t, _opened(source, verify, opened_here))]
        if wrong := [plan for plan in plans if not plan.holds]:
            raise LoadError([line for plan in wrong for line in _refusal(plan)], wrong[0])
        total = sum(
            fact.spec.nbytes
            for plan in plans
            for fact in plan.source.columns.facts([feed.source for feed in plan.feeds])
        )
        with bar(total, "loading", progress) as count:
            loads = [_Load(plan, verify, count) for plan in plans]
            for one in loads:
                one.prepare()
            _check_overlaps(loads)
            exchanged = {key: new for one in loads for key, new in one.exchanged.items()}
            with _told_of_interruption():
                for one in loads:
                    one.apply(exchanged)
        return (
            loads[0].root
            if loads[0].plan.target is t
            else put_together(t, [(one.plan.target.root, one.root) for one in loads])
        )


def _opened(source: Any, verify: bool, opened_here: ExitStack) -> Tree:
    s = opened(source, verify)
    if s is not source:
        opened_here.callback(s.close)
    return s


@contextmanager
def _told_of_interruption() -> Iterator[None]:
    """Makes Ctrl-C, and anything else that stops a load without being an error, say what it leaves behind."""
    said = "interrupted while lw.load was writing: the model is partly changed; load it again before you use it"
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(said) from stop
    except BaseException as stop:
        if not isinstance(stop, Exception):
            stop.add_note(said)
        raise


_LISTED = 40  # of what is wrong, in the message; the plan has all of it


def _refusal(plan: Plan) -> list[str]:
    by_kind: dict[str, list[str]] = {}
    for problem in plan.problems:
        by_kind.setdefault(problem.kind, []).append(problem.message)
    counts = ", ".join(f"{len(messages):,} {kind}" for kind, messages in by_kind.items() if kind != "nothing")
    lines = [f"cannot load{f' ({counts})' if counts else ''}; nothing was changed"]
    for kind, messages in by_kind.items():
        lines += [f"  {message}" for message in messages[:_LISTED]]
        if len(messages) > _LISTED:
            lines.append(f"  … and {len(messages) - _LISTED:,} more {kind}")
    lines += [f"  note: {note}" for note in plan.notes]
    allowable = [repr(kind) for kind in by_kind if kind in ("missing", "unexpected", "shape")]
    if allowable and len(allowable) == len(by_kind):
        lines.append(f"  allow={{{', '.join(allowable)}}} loads the rest")
    if plan.renames and not plan.applied:
        lines.append('  rename="auto" applies the renames that are certain; lw.plan lists them')
    if not all(proposal.certain for proposal in plan.proposals):
        lines.append("  other renames are not certain; lw.plan lists what could be what: give rename= what is right")
    return lines


def _check_overlaps(loads: "list[_Load]") -> None:
    """Elements that lie in one place, of one leaf or of several that are no tie, must get values that agree there."""
    found = [
        (one, target, place)
        for one in loads
        for target, place in zip(one.in_place, one.lie, strict=True)
        if place is not None
    ]
    for group in meeting([place for _, _, place in found]):
        met = [found[number] for number in group]
        signs = {memory.dtype.partition(" ")[2] for _, _, (_, memory) in met}
        arrays = [(memory, one._cast(target)) for one, target, (_, memory) in met]
        if len(signs) == 1 and agree_in_memory(arrays):
            continue
        names = listed(list(dict.fromkeys(target.feed.name for _, target, _ in met)), 6)
        if len(met) == 1:
            why = "several of its elements lie in one place; give it memory of its own, with .clone() for instance"
            raise LoadError(f"cannot load {names}: {why}; nothing was changed", met[0][0].plan)
        raise LoadError(
            f"cannot load: {names} lie over one memory in the target, and the source holds values for them that differ "
            "where they meet; nothing was changed",
            met[0][0].plan,
        )


class _Target(NamedTuple):
    """A leaf that gets values: the array they go into, and its home."""

    feed: Feed
    home: Home
    value: Any
    fresh: bool  # memory of its own, that takes its place later


class _Load:
    """One load, step by step."""

    def __init__(self, plan: Plan, verify: bool, progress: Callable[[int], None]) -> None:
        self.plan, self.verify, self.progress = plan, verify, progress
        self.columns: Columns = plan.target.columns
        self.theirs: Columns = plan.source.columns
        self.fresh: dict[tuple[int, str], Any] = {}  # by owner and name, what takes the place of what is there
        self.exchanged: dict[int, Any] = {}  # by the identity of an array without memory, the one that has some
        self.staged: dict[int, Any] = {}  # by the row of the target, what came from another machine
        self.states: list[tuple[OptimizerPlan, dict[Any, dict[str, Any]], dict[int, dict[str, Any]]]] = []
        self.own_states: dict[int, Any] = {}  # by node, what only an optimizer itself knows the meaning of
        self.back: list[TieRequest] = []  # ties that are to be made
        self.in_place: list[_Target] = []
        self.lie: list[tuple[object, Memory] | None] = []  # where each of those lies
        self.root = self.columns.node_objects[plan.target.root]

    def prepare(self) -> None:
        """All that can fail, before anything changes."""
        self.back = self._agree()
        targets = self._targets({self.columns.ties.get(request.target, request.target) for request in self.back})
        self._fill_fresh(targets)
        self.in_place = [target for target in targets if not target.fresh]
        self._stage(self.in_place)
        self._check_casts(targets)
        self._prove([target for target in self.in_place if target.feed.row not in self.staged])
        self._read_states()
        reader.unchanged(self._sources())

    def apply(self, exchanged: dict[int, Any]) -> None:
        """Changes the model. `exchanged` are all arrays that got memory, by the identity of those that had none."""
        self.exchanged, back = exchanged, self.back
        try:
            self._write(self.in_place)
            reader.unchanged(self._sources())  # what was compared is what was copied
        except Exception as error:
            raise LoadError(f"{error}; the model is partly changed", self.plan) from error
        try:
            if back:
                make_ties(self.plan.target, back, keep="source")
            self._replace(back)
            self._after_load()
            self._restore_optimizers()
        except Exception as error:  # of somebody's set_extra_state or load_state_dict
            raise LoadError(
                f"the values are loaded, and then {type(error).__name__} was raised: {error}; the model is changed, "
                "and what comes after values (ties, states, plain values) may not all be",
                self.plan,
            ) from error

    # -- what must be right before anything changes -------------------------------------------------------

    def _agree(self) -> list[TieRequest]:
        """Raises where a tied target would get two values; gives the ties that are to be made."""
        wrong = []
        for must in self.plan.must_agree:
            name, first, order, second, op, _ = must
            if not (self._same(first, order, second, op) if op.is_told else self._agree_in_memory(must)):
                one, other = (self.theirs.row_text(row) for row in (first, second))
                wrong.append(
                    f"{name} is tied in the target, and the source holds two different values for it, {one} and "
                    f'{other}; untie it first: lw.untie(model, "{name}")'
                )
        if wrong:
            raise LoadError(["cannot load; nothing was changed", *(f"  {one}" for one in wrong)], self.plan)
        return [one.request for one in self.plan.back if self._holds(one)]

    def _holds(self, back: Back) -> bool:
        return back.rows is None or self._same(back.rows[0], None, back.rows[1], back.request.op)

    def _same(self, first: int, order: tuple[int, ...] | None, second: int, op: Op) -> bool:
        one, other = self._array(first), self._array(second)
        if order is not None:
            one = one.transpose(order)
        if op.slices is not None:
            one = one[op.slices]
        return same_values(one if op.order is None else one.transpose(op.order), other)

    def _agree_in_memory(self, must: MustAgree) -> bool:
        """Whether both values could be written to where their names lie in the target, neither over the other."""
        arrays = [self._array(must.first), self._array(must.second)]
        if must.order is not None:
            arrays[0] = arrays[0].transpose(must.order)
        found = []
        for row, array in zip(must.rows, arrays, strict=True):
            value = self.columns.current(row)
            home = self.columns.home(value)
            place = home.capability(Loading).location(value)
            dtype = home.spec(value).dtype
            if place is None or array.shape != place[1].shape or misfit(array, dtype):
                return False
            found.append((place[1], cast_to(array, dtype)))
        return agree_in_memory(found)

    def _array(self, row: int) -> Any:
        """Values of the source as a NumPy array: read from a file, over its own memory elsewhere, if possible."""
        value = self.theirs.current(row)
        home = self.theirs.home(value)
        try:
            return home.read(value, ())
        except Unsupported as error:
            raise LoadError(
                f"cannot load {self.theirs.row_text(row)}: {error}; nothing was changed", self.plan
            ) from error

    # -- where values go ---------------------------------------------------------------------------------

    def _targets(self, tied_later: set[int]) -> list[_Target]:
        """The arrays to fill. A leaf without memory, or of a home where nothing is written in place, gets a new one."""
        found = []
        source_facts = self.theirs.facts([feed.source for feed in self.plan.feeds])
        for feed, facts in zip(self.plan.feeds, source_facts, strict=True):
            given = self.theirs.current(feed.source)
            if reason := self.theirs.home(given).cannot_read(given):
                raise LoadError(f"cannot load {feed.name} from this source: {reason}; nothing was changed", self.plan)
            if feed.row in tied_later:
                continue  # it becomes another name of a leaf that is filled
            value = self.columns.current(feed.row)
            home = self.columns.home(value)
            spec = home.spec(value)
            fresh = spec.shape is None or spec.device == "meta" or not home.in_place
            if not fresh and (reason := home.capability(Loading).cannot_write(value)):
                raise LoadError(f"cannot load {feed.name}: {reason}; nothing was changed", self.plan)
            if fresh and home.in_place:
                value = self._blank(home, value, self._turned(facts.spec.shape or (), feed), feed.name)
            found.append(_Target(feed, home, value, fresh))
        return found

    def _blank(self, home: Home, value: Any, shape: tuple[int, ...], name: str) -> Any:
        try:
            return home.capability(Rebuilding).allocate(value, shape)
        except Error as error:
            raise LoadError(f"cannot load {name}: {error}; nothing was changed", self.plan) from error

    @staticmethod
    def _turned(shape: tuple[int, ...], feed: Feed) -> tuple[int, ...]:
        return shape if feed.order is None else tuple(shape[axis] for axis in feed.order)

    def _run(self, target: _Target) -> ReadRequest | None:
        """The bytes of the file that are just the bytes of the array."""
        value = self.theirs.current(target.feed.source)
        if target.feed.order is not None or "cast" in target.feed.how or not isinstance(value, Stored):
            return None
        run, view = value.plain_run(), target.home.capability(Loading).writable_bytes(target.value)
        if run is None or view is None:
            return None
        storage, start, stop = run
        return ReadRequest(storage, start, view, target.feed.name) if len(view) == stop - start else None

    def _fill_fresh(self, targets: list[_Target]) -> None:
        """Fills memory that nobody sees yet, and compares checksums on the way."""
        runs, others = [], []
        for target in targets:
            if target.fresh:
                run = self._run(target) if target.home.in_place else None
                if run is None:
                    others.append(target)
                else:
                    runs.append(run)
                    self._takes_place(target, target.value)
        reader.fill(runs, self.verify, self.progress)
        self._prove(others)
        for target in others:
            if target.home.in_place:
                target.home.write(target.value, self._cast(target))
                self._takes_place(target, target.value)
            else:
                self._takes_place(
                    target, target.home.capability(Rebuilding).from_numpy(target.value, self._cast(target))
                )

    def _takes_place(self, target: _Target, new: Any) -> None:
        row = target.feed.row
        owner = self.columns.node_objects[self.columns.row_nodes[row]]
        self.exchanged[id(self.columns.current(row))] = new
        self.fresh[id(owner), self.columns.row_names[row]] = new

    def _cast(self, target: _Target) -> Any:
        """The values of the source as the target wants them."""
        array = self._turned_array(target)
        dtype = target.home.spec(target.value).dtype
        return cast_to(array, dtype, self.plan.saturate) if "cast" in target.feed.how else array

    def _turned_array(self, target: _Target) -> Any:
        array = self.staged.get(target.feed.row)
        if array is None:
            array = self._array(target.feed.source)
        return array if target.feed.order is None else array.transpose(target.feed.order)

    def _stage(self, targets: list[_Target]) -> None:
        """Copies what lies on another machine, before anything changes: it is read once, and may stop coming. And what
        lies in the memory that is written to."""
        runs = []
        self.lie = [target.home.capability(Loading).location(target.value) for target in targets]
        shared = self._in_written_memory(targets)
        for target in targets:
            value = self.theirs.current(target.feed.source)
            if target.feed.source in shared:
                self.staged[target.feed.row] = self._array(target.feed.source).copy()
            if not isinstance(value, Strided) or value.storage.source.is_local:
                continue
            run = value.plain_run()
            if run is None:
                self._prove([target])
                self.staged[target.feed.row] = value.read().copy()
            else:
                self.staged[target.feed.row], view = reader.empty(value.spec)
                runs.append(ReadRequest(run[0], run[1], view, target.feed.name))
        reader.fill(runs, self.verify, self.progress)

    def _in_written_memory(self, targets: list[_Target]) -> set[int]:
        """The rows of a live source that lie where values will be written, or may do."""
        rows = {target.feed.source for target in targets}
        live = [row for row in rows if not isinstance(self.theirs.current(row), Stored)]
        places = [
            self.theirs.home(value).capability(Loading).location(value) for value in map(self.theirs.current, live)
        ]
        unknown = {row for row, place in zip(live, places, strict=True) if place is None}
        known = [(row, place) for row, place in zip(live, places, strict=True) if place is not None]
        written = [place for place in self.lie if place is not None]
        if not known or not written:
            return unknown
        groups = meeting([*written, *(place for _, place in known)])
        numbers = [number - len(written) for group in groups if min(group) < len(written) for number in group]
        return unknown | {known[number][0] for number in numbers if number >= 0}

    def _check_casts(self, targets: list[_Target]) -> None:
        """A cast may round; it must not make other numbers of them."""
        for target in targets:
            if "cast" in target.feed.how:
                dtype = target.home.spec(target.value).dtype
                self._check_cast(self._turned_array(target), dtype, target.feed.name)

    def _check_cast(self, array: Any, dtype: str, name: str) -> None:
        reason = "" if self.plan.saturate else misfit(array, dtype)
        if reason:
            raise LoadError(f"cannot load {escape(name)}: {reason}; {SATURATE}; nothing was changed", self.plan)

    # -- proof -------------------------------------------------------------------------------------------

    def _sources(self) -> set[Any]:
        values = (self.theirs.current(feed.source) for feed in self.plan.feeds)
        return {one.source for value in values if isinstance(value, Stored) for one in value.storages()}

    def _prove(self, targets: list[_Target]) -> None:
        """Compares checksums of what will be written over values that are there."""
        if self.verify:
            self._prove_rows((target.feed.source, target.feed.name) for target in targets)

    def _prove_rows(self, rows: Iterable[tuple[int, str]]) -> None:
        values = ((name, self.theirs.current(row)) for row, name in rows)
        reader.verify_arrays([(name, value) for name, value in values if isinstance(value, Stored)])

    # -- writing -----------------------------------------------------------------------------------------

    def _write(self, targets: list[_Target]) -> None:
        runs, others, memory = [], [], []
        for target in targets:
            run = self._run(target) if target.feed.row not in self.staged else None
            if run is None:
                others.append(target)
            else:
                runs.append(run)
                memory.append(target)
        reader.fill(runs, False, self.progress)
        by_home: dict[Home, list[Any]] = {}
        for target in memory:
            by_home.setdefault(target.home, []).append(target.value)
        for home, values in by_home.items():
            home.capability(Loading).mark_written(values)
        for target in others:
            target.home.write(target.value, self._cast(target))

    def _after_load(self) -> None:
        """Has modules that read state dicts in ways of their own, or with hooks, do so."""
        below = range(self.plan.target.root, self.columns.node_ends[self.plan.target.root])
        objects = list({id(obj): obj for obj in (self.columns.node_objects[node] for node in below)}.values())
        for home in self.columns.homes_of(objects):
            home.capability(Loading).after_load(objects)

    def _replace(self, back: list[TieRequest]) -> None:
        """Puts new arrays and plain values in their places."""
        self.root = rebuilt(self.columns, self.plan.target.root, self._changes(back))

    def _changes(self, back: list[TieRequest]) -> dict[int, dict[str, Any]]:
        """For each node, what takes the place of what it holds, by name."""
        columns = self.columns
        changes: dict[int, dict[str, Any]] = {}
        tied = {columns.ties.get(request.target, request.target): request for request in back}  # since the walk
        for row in self.plan.target.rows if self.fresh else ():
            new = self._new_at(row, tied)
            if new is not None:
                changes.setdefault(columns.row_nodes[row], {})[columns.row_names[row]] = new
        for row, value in self._handed_back().items():
            changes.setdefault(columns.row_nodes[row], {})[columns.row_names[row]] = value
        for (node, name), value in self.plan.scalars.items():
            changes.setdefault(node, {})[name] = value
        for row, value in self.plan.recomputed.items():
            changes.setdefault(columns.row_nodes[row], {})[columns.row_names[row]] = value
        return changes

    def _new_at(self, row: int, tied: dict[int, TieRequest]) -> Any:
        """The new array that stands at a row from now on; None where what is there stays."""
        columns = self.columns
        leaf = columns.ties.get(row, row)
        if leaf in tied:
            if tied[leaf].op != "same":
                return None
            leaf = tied[leaf].source
        owner = columns.node_objects[columns.row_nodes[leaf]]
        new = self.fresh.get((id(owner), columns.row_names[leaf]))
        if new is None or columns.row_op(row) == "same":
            return new
        home = columns.home(new)
        # A view of what is replaced sees what takes its place, unless it cannot.
        return None if home.in_place else home.capability(Viewing).seen_through(new, columns.row_op(row))

    def _handed_back(self) -> dict[int, Any]:
        """Arrays that were filled below a node that shows copies of what it has, and takes them back."""
        columns = self.columns
        taking = set(columns.nodes_where(lambda home, obj: home.capability(Rebuilding).shows_copies(obj)))
        found = {}
        for feed in self.plan.feeds if taking else ():
            node = columns.row_nodes[feed.row]
            while node >= 0 and node not in taking:
                node = columns.node_parents[node]
            if node >= 0 and columns.row_kinds[feed.row] != "parameter":
                found[feed.row] = columns.current(feed.row)
        return found

    # -- optimizers --------------------------------------------------------------------------------------

    def _read_states(self) -> None:
        """Reads the state of optimizers into memory of its own, and compares checksums on the way."""
        runs: list[ReadRequest] = []
        flats: list[tuple[OptimizerPlan, dict[str, Any]]] = []
        casts: list[tuple[dict[str, Any], str, str, str]] = []
        turns: list[tuple[dict[str, Any], list[str], tuple[int, ...]]] = []
        for one in self.plan.optimizers:
            own = one.own or one.more
            flats.append((one, self._arrays(own.rows, runs)))
            states = {place: self._arrays(rows, runs) for place, rows in one.states.items()}
            turns += [(states[place], *turn) for place, turn in one.turns.items() if place in states]
            casts += [
                (states[place], key, dtype, self.theirs.row_text(one.states[place][key]))
                for place, keys in one.casts.items()
                if place in states
                for key, dtype in keys.items()
            ]
            for place in one.reset:
                states.setdefault(place, {}).update(one.values.get(place, {}))
            options = {which: self._arrays(rows, runs) for which, rows in one.option_rows.items()}
            for which, values in one.options.items():
                options.setdefault(which, {}).update(values)
            self.states.append((one, states, options))
        reader.fill(runs, self.verify, self.progress)
        for one, flat in flats:
            own = one.own or one.more
            self._lying_as_before(flat, own.rows)
            self.own_states[one.node] = assembled({**flat, **own.values}, own.types)
        for one, states, _ in self.states:
            for place, rows in one.states.items():
                self._lying_as_before(states[place], rows)
        for state, keys, order in turns:
            state.update({key: state[key].transpose(order).copy() for key in keys if key in state})
        for state, key, dtype, name in casts:
            self._check_cast(state[key], dtype, name)
            state[key] = cast_to(state[key], dtype, self.plan.saturate)

    def _arrays(self, rows: dict[str, int], runs: list[ReadRequest]) -> dict[str, Any]:
        found = {}
        for key, row in rows.items():
            value = self.theirs.current(row)
            if isinstance(value, Stored) and (run := value.plain_run()) is not None:
                array, view = reader.empty(value.spec)
                runs.append(ReadRequest(run[0], run[1], view, self.theirs.row_text(row)))
            else:
                self._prove_rows([(row, self.theirs.row_text(row))])
                array = self._array(row).copy(order="K")
            found[key] = array
        return found

    def _lying_as_before(self, states: dict[str, Any], rows: dict[str, int]) -> None:
        """Lets arrays lie in memory as they did when they were saved."""
        root = self.theirs.node_objects[0]
        orders = root.record.orders if isinstance(root, StoredFile) and root.record is not None else {}
        for key, row in rows.items() if orders else ():
            order = orders.get(self.theirs.keys([row])[0])
            if order is not None and len(order) == states[key].ndim:
                back = tuple(order.index(axis) for axis in range(len(order)))
                states[key] = states[key].transpose(order).copy().transpose(back)

    def _restore_optimizers(self) -> None:
        for one, states, options in self.states:
            optimizer = self.columns.node_objects[one.node]
            stepping = self.columns.home(optimizer).capability(Stepping)
            if self.exchanged:
                stepping.exchange(optimizer, self.exchanged)
            if one.own is not None:
                stepping.restore_own_state(optimizer, self.own_states[one.node])
                continue
            if one.knows_types:
                options = {which: assembled(given, one.option_types.get(which, {})) for which, given in options.items()}
            whole = {
                place: assembled(state, one.types.get(place, {})) if one.knows_types else nested(state)
                for place, state in states.items()
            }
            stepping.restore_state(optimizer, whole, options, one.whole, self.own_states[one.node])
