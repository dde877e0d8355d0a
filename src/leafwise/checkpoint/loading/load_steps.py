"""The steps of a load: first everything that can fail, then the changes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from leafwise.checkpoint.loading.load_host_parts import LoadHostParts
from leafwise.checkpoint.loading.load_reads import KeptRead, LoadReads, LoadTarget, TargetKey, TargetReads, is_local
from leafwise.checkpoint.loading.optimizer_states import OptimizerStates, SteppedLeaves
from leafwise.checkpoint.loading.source_values import SourceValues
from leafwise.checkpoint.planning.plan import MustAgree, Plan, RestoredTie, the_source, turned, turned_shape
from leafwise.core.capabilities.loading import Loading
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.columns import Columns
from leafwise.core.home import Home, Memory, Spec
from leafwise.core.memory.ops import Op, meeting
from leafwise.core.path import listed
from leafwise.core.rebuild import check_part, rebuilt, replaced_leaves
from leafwise.core.work.progress import Count
from leafwise.core.work.ranks import drop_gathered
from leafwise.errors import Error, LoadError, WriteError
from leafwise.files.arrays.assembled import Assembled
from leafwise.files.arrays.stored import InMemory, Stored, Strided, agree_in_memory, same_values
from leafwise.files.arrays.subarrays import before_turn
from leafwise.files.casts import cast_to, misfit
from leafwise.files.reading import checked_reads
from leafwise.files.reading.checked_reads import ReadRequest
from leafwise.files.reading.landings import Transfers
from leafwise.share.tie_requests import TieRequest, make_ties


class Load:
    """One load: `prepare` does everything that can fail, `apply` changes the model."""

    def __init__(self, plan: Plan, verify: bool, progress: Count, transfers: Transfers, place: tuple[int, int]) -> None:
        self.plan, self.verify, self.progress = plan, verify, progress
        self.columns: Columns = plan.target.columns
        self.source = SourceValues(plan, verify, place)
        self.fresh: dict[tuple[int, str], Any] = {}  # by node and name, arrays that replace the current ones
        self.fresh_leaves: dict[int, Any] = {}  # the same by leaf
        self.exchanged: dict[int, Any] = {}  # by the id of an array without memory, its replacement
        self.staged: dict[TargetKey, Any] = {}  # by target, source values that were copied first
        self.reads = LoadReads(self.source, self.staged, transfers)
        self.host_parts = LoadHostParts(self.source, self.reads, progress)
        self.cast_on_device: set[TargetKey] = set()  # targets whose values can be cast there
        self.kept: dict[TargetKey, KeptRead] = {}  # by target, verified values on its device
        self._unverified: list[LoadTarget] = []
        self.optimizers = OptimizerStates(plan, self.source, progress)
        self.ties: list[TieRequest] = []  # ties to make
        self.in_place: list[LoadTarget] = []
        self._sharded: list[tuple[Home, Any]] = []  # leaves in place that are sharded; this process may have no part
        self.locations: list[tuple[object, Memory] | None] = []  # the memory of each array in `in_place`
        self._replaced: set[int] = set()  # leaves that get new arrays
        self.root = self.columns.node_objects[plan.target.root]

    def prepare(self) -> None:
        """Does everything that can fail, before anything changes."""
        check_part(self.columns, self.plan.target.root)
        leaves = [self.columns.ties.get(feed.row, feed.row) for feed in self.plan.feeds]
        try:
            self._replaced = replaced_leaves(self.plan.target, leaves)
        except WriteError as error:
            raise LoadError(f"cannot load: {error}", self.plan) from error
        self.ties = self._agreed_ties()
        targets = self._targets({self.columns.ties.get(request.target, request.target) for request in self.ties})
        self.in_place = [target for target in targets if not target.fresh]
        self._verify_sections(targets)
        try:
            self._fill_fresh([target for target in targets if target.fresh])
            self._stage(self.in_place)
            verified = self._check_casts_on_devices(self.in_place)
        except WriteError as error:
            raise LoadError(f"{error}; nothing was changed", self.plan) from error
        self._check_casts(self.in_place)
        self._unverified = [
            target
            for target in self.in_place
            if target.subarray is None and target.key not in {*self.staged, *verified}
        ]
        self.optimizers.read()

    def verify_values(self) -> None:
        """Verifies the values that are written in place. Called when all loads are prepared: values may be kept in
        memory of devices, which the new arrays must get first."""
        if self.verify:
            try:
                self._keep_on_devices(self._unverified)
            except WriteError as error:
                raise LoadError(f"{error}; nothing was changed", self.plan) from error
        self._verify([target for target in self._unverified if target.key not in self.kept])
        self.source.check_unchanged()

    def apply(self) -> None:
        """Changes the model, but for the states of optimizers."""
        try:
            drop_gathered(self.plan.target)
            self._write(self.in_place)
            self.source.check_unchanged()  # the values that were copied are those that were verified
        except Exception as error:
            raise LoadError(f"{error}; the model is partly changed", self.plan) from error
        with self._explained():
            if self.ties:
                make_ties(self.plan.target, self.ties, keep="source")
            self._replace()
            self._after_load()

    def restore_optimizers(self, stepped: SteppedLeaves, exchanged: dict[int, Any]) -> None:
        """Gives optimizers their states, and checks that they step the leaves of the model. `exchanged` maps the id of
        each array without memory, of all loads, to its replacement."""
        with self._explained():
            stepped.exchange(exchanged)
            self.optimizers.restore()
            stepped.check()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # raised by a custom set_extra_state or load_state_dict
            raise LoadError(
                f"{type(error).__name__} after the values were loaded: {error}; the model is changed, but ties, "
                "optimizer states and plain values may be incomplete",
                self.plan,
            ) from error

    # -- checks before anything changes -------------------------------------------------------------------

    def _agreed_ties(self) -> list[TieRequest]:
        """The ties to make. Raises if a tied leaf would get two different values."""
        problems = []
        for must in self.plan.must_agree:
            name, first, order, second, op, _ = must
            leaf = must.rows[0]
            if not (self._same(first, order, second, op, leaf) if op.is_described else self._agree_in_memory(must)):
                first_name, second_name = (self.source.columns.row_text(row) for row in (first, second))
                problems.append(
                    f"{name} is tied in the model, but {the_source(self.plan.source)} has two different values for it, "
                    f'{first_name} and {second_name}; untie it first: lw.untie(model, "{name}")'
                )
        if problems:
            raise LoadError(["cannot load; nothing was changed", *(f"  {problem}" for problem in problems)], self.plan)
        return [tie.request for tie in self.plan.restored_ties if self._holds(tie)]

    def _holds(self, tie: RestoredTie) -> bool:
        return tie.rows is None or self._same(tie.rows[0], None, tie.rows[1], tie.request.op)

    def _same(self, first: int, order: tuple[int, ...] | None, second: int, op: Op, leaf: int | None = None) -> bool:
        """Whether two rows of the source are equal; of a leaf that is sharded, only in its parts in this process."""
        value = None if leaf is None or op != "same" else self.columns.current(leaf)
        if value is not None and self.columns.home(value).spec(value).sharding is not None:
            parts = self.columns.home(value).capability(Distributing).parts(value)
            return all(
                same_values(
                    turned(self.source.subarray(first, before_turn(part.inside(), order)).read(), order),
                    self.source.subarray(second, part.inside()).read(),
                )
                for part in parts
            )
        whole, seen = turned(self.source.array(first), order), self.source.array(second)
        if op.slices is not None:
            whole = whole[op.slices]
        return same_values(turned(whole, op.order), seen)

    def _agree_in_memory(self, must: MustAgree) -> bool:
        """Whether both values could be written to the memory of their names without overwriting each other."""
        arrays = [turned(self.source.array(must.first), must.order), self.source.array(must.second)]
        placed = []
        for row, array in zip(must.rows, arrays, strict=True):
            value = self.columns.current(row)
            home = self.columns.home(value)
            place = home.capability(Loading).location(value)
            dtype = home.spec(value).dtype
            if place is None or array.shape != place[1].shape or misfit(array, dtype):
                return False
            placed.append((place[1], cast_to(array, dtype)))
        return agree_in_memory(placed)

    # -- where values go ---------------------------------------------------------------------------------

    def _targets(self, tied_later: set[int]) -> list[LoadTarget]:
        """The arrays to fill: new ones for leaves without memory, and for homes that do not write in place."""
        targets = []
        source_facts = self.source.columns.facts([feed.source for feed in self.plan.feeds])
        for feed, facts in zip(self.plan.feeds, source_facts, strict=True):
            source_value = self.source.current(feed.source)
            if reason := self.source.columns.home(source_value).cannot_read(source_value):
                raise LoadError(f"cannot load {feed.name} from this source: {reason}; nothing was changed", self.plan)
            if feed.row in tied_later:
                continue  # it will be tied to a leaf that is filled
            value = self.columns.current(feed.row)
            home = self.columns.home(value)
            spec = home.spec(value)
            is_replaced = self.columns.ties.get(feed.row, feed.row) in self._replaced
            fresh = spec.shape is None or spec.device == "meta" or is_replaced
            renewed = "" if home.in_place else home.capability(Rebuilding).cannot_renew(value)
            if reason := renewed if fresh else _cannot_write(home, value, spec):
                raise LoadError(f"cannot load {feed.name}: {reason}; nothing was changed", self.plan)
            if fresh and home.in_place:
                value = self._allocated(home, value, turned_shape(facts.spec.shape or (), feed.order), feed.name)
            if fresh and (home.in_place or spec.sharding is not None):
                self._put(feed.row, value)
            if spec.sharding is None:
                targets.append(LoadTarget(feed, home, value, fresh))
                continue
            if not fresh:
                self._sharded.append((home, value))
            for number, part in enumerate(home.capability(Distributing).parts(value)):
                subarray = self.source.subarray(feed.source, before_turn(part.inside(), feed.order))
                targets.append(LoadTarget(feed, home, part.value, fresh, number, subarray))
        return targets

    def _allocated(self, home: Home, value: Any, shape: tuple[int, ...], name: str) -> Any:
        try:
            return home.capability(Rebuilding).allocate(value, shape)
        except Error as error:
            raise LoadError(f"cannot load {name}: {error}; nothing was changed", self.plan) from error

    def _verify_sections(self, targets: list[LoadTarget]) -> None:
        """Verifies the parts of the source that this process needs for sharded leaves; what is far, when it is read."""
        subarrays = [
            (target.feed.name, target.subarray)
            for target in targets
            if target.subarray is not None and not target.is_far
        ]
        sharded = ((feed.source, feed.name) for feed in self.plan.feeds if self._is_sharded(feed.row))
        self.source.verify_subarrays(subarrays, sharded)

    def _is_sharded(self, row: int) -> bool:
        value = self.columns.current(row)
        return self.columns.home(value).spec(value).sharding is not None

    def _fill_fresh(self, targets: list[LoadTarget]) -> None:
        """Fills new arrays, which are not in the model yet, and verifies checksums on the way."""
        reads, others = [], []
        for target, new in self.host_parts.fill(list(filter(self.host_parts.takes, targets)), checked=False):
            self._put(target.feed.row, new)
        for target in targets:
            if self.host_parts.takes(target):
                continue
            read = self.reads.of(target) if target.home.in_place and not target.is_far else None
            if read is None:
                others.append(target)
            else:
                reads.append(read)
        self._fill([read for read in reads if read.target.subarray is None], self.verify)
        self._fill([read for read in reads if read.target.subarray is not None], False)
        others += [read.target for read in reads if read.landing is not None and not read.landing.fits()]
        self._verify([target for target in others if target.subarray is None])
        self._check_casts(others)
        for target in others:
            if target.home.in_place:
                target.home.write(target.value, self.cast_array(target))
            else:
                rebuilding = target.home.capability(Rebuilding)
                self._put(target.feed.row, rebuilding.from_numpy(target.value, self.cast_array(target)))

    def _fill(self, reads: list[TargetReads], verify: bool) -> None:
        requests = [request for read in reads for request in read.requests]
        checked_reads.fill(requests, verify, self.progress, self.reads.transfers)

    def _put(self, row: int, new: Any) -> None:
        self.exchanged[id(self.columns.current(row))] = new
        self.fresh[self._place_of(row)] = new
        self.fresh_leaves[self.columns.ties.get(row, row)] = new

    def _place_of(self, row: int) -> tuple[int, str]:
        """The node and the name of a row; the first node if it is shared."""
        node = self.columns.row_nodes[row]
        return self.columns.repeats.get(node, node), self.columns.row_names[row]

    def cast_array(self, target: LoadTarget) -> Any:
        """The values of the source, with the axes and the dtype of the target."""
        return self.reads.cast(self.reads.array(target), target)

    def _stage(self, targets: list[LoadTarget]) -> None:
        """Copies source values that may not be available later: those on another machine, because a download may fail,
        and those in memory that this load overwrites."""
        requests = []
        self.locations = [target.home.capability(Loading).location(target.value) for target in targets]
        shared = self._in_written_memory(targets)
        for target in targets:
            value = self.reads.stored(target)
            if target.feed.source in shared:
                array = self.source.array(target.feed.source) if target.subarray is None else target.subarray.read()
                self.staged[target.key] = array.copy()
            if isinstance(value, InMemory):  # made by code that may fail
                self.staged[target.key] = value.read()
            if target.is_far:
                self.staged[target.key] = self.reads.subarray(target).copy()
                continue
            if not isinstance(value, Strided | Assembled) or is_local(value):
                continue
            run = value.plain_run()
            if run is None:
                self._verify([target])
                self.staged[target.key] = value.read().copy()
            else:
                self.staged[target.key], view = checked_reads.empty(value.spec)
                requests.append(ReadRequest(run[0], run[1], view, target.feed.name))
        checked_reads.fill(requests, self.verify, self.progress)

    def _in_written_memory(self, targets: list[LoadTarget]) -> set[int]:
        """The rows of a live source whose memory will be overwritten, or might be."""
        rows = {target.feed.source for target in targets}
        values = {row: self.source.current(row) for row in rows}
        places = {
            row: self.source.columns.home(value).capability(Loading).location(value)
            for row, value in values.items()
            if not isinstance(value, Stored)
        }
        unknown = {row for row, place in places.items() if place is None}
        unknown |= {row for row, value in values.items() if isinstance(value, Assembled) and value.is_live}
        known = [(row, place) for row, place in places.items() if place is not None]
        written = [place for place in self.locations if place is not None]
        if not known or not written:
            return unknown
        groups = meeting([*written, *(place for _, place in known)])
        numbers = [number - len(written) for group in groups if min(group) < len(written) for number in group]
        return unknown | {known[number][0] for number in numbers if number >= 0}

    def _check_casts(self, targets: list[LoadTarget]) -> None:
        """Raises if a value does not fit into its new dtype. A cast may only round."""
        for target in targets:
            if target.is_cast and target.key not in self.cast_on_device:
                self.reads.check_cast(self.reads.array(target), target)

    def _check_casts_on_devices(self, targets: list[LoadTarget]) -> set[TargetKey]:
        """Finds out which values can be cast on the device of their target. Returns all targets whose values were read,
        and verified, for that."""
        checks = [check for target in targets if target.is_cast and (check := self.reads.to_check(target)) is not None]
        for verify in (True, False):  # the sections of sharded leaves have been verified
            some = [check for check in checks if (check.target.subarray is None) == verify]
            requests = [request for check in some for request in check.requests]
            checked_reads.fill(requests, verify and self.verify, lambda count: None, self.reads.transfers)
        fitting = [check.target for check in checks if check.landing is not None and check.landing.fits()]
        self.cast_on_device = {target.key for target in fitting}
        return {check.target.key for check in checks}

    def _verify(self, targets: list[LoadTarget]) -> None:
        """Verifies the checksums of the source values of these targets."""
        self.source.verify((target.feed.source, target.feed.name) for target in targets)

    def _keep_on_devices(self, targets: list[LoadTarget]) -> None:
        """Reads values to spare memory of their devices, and verifies them on the way. When everything is known to be
        right, they are copied from there; otherwise they would have to be read a second time."""
        kept = self.reads.to_keep([target for target in targets if not target.is_cast])
        checked_reads.fill([keep.request for keep in kept], self.verify, self.progress, self.reads.transfers)
        self.kept = {keep.target.key: keep for keep in kept}

    # -- writing -----------------------------------------------------------------------------------------

    def _write(self, targets: list[LoadTarget]) -> None:
        self.reads.transfers.move([(keep.landing, keep.spare) for keep in self.kept.values()])
        written = [keep.target for keep in self.kept.values()]
        kept, self.kept = set(self.kept), {}  # frees the spare memory
        reads, others = [], []
        for _ in self.host_parts.fill(list(filter(self.host_parts.takes, targets)), checked=True):
            pass  # each array is put in place
        for target in targets:
            if target.key in kept or self.host_parts.takes(target):
                continue
            on_cpu = target.is_cast and target.key not in self.cast_on_device
            read = None if on_cpu else self.reads.of(target)
            if read is None:
                others.append(target)
            else:
                reads.append(read)
        self._fill(reads, False)
        by_home: dict[Home, list[Any]] = {}
        for target in [*written, *(read.target for read in reads)]:
            by_home.setdefault(target.home, []).append(target.value)
        for home, values in by_home.items():
            home.capability(Loading).mark_written(values)
        for target in others:
            target.home.write(target.value, self.cast_array(target))
        for home, value in self._sharded:
            home.capability(Loading).mark_written([value])

    def _after_load(self) -> None:
        """Calls the load hooks of modules, and their own ways to read a state dict."""
        below = range(self.plan.target.root, self.columns.node_ends[self.plan.target.root])
        objects = list({id(obj): obj for obj in (self.columns.node_objects[node] for node in below)}.values())
        for home in self.columns.homes_of(objects):
            home.capability(Loading).after_load(objects)

    def _replace(self) -> None:
        """Replaces arrays and plain values by the new ones; in a new tree if there are arrays that cannot change."""
        self.root = rebuilt(self.columns, self.plan.target.root, self._changes(), copied=bool(self._replaced))

    def _outside(self) -> dict[int, Any]:
        """New arrays for names outside of the part that is loaded: a tie that leads out of it must not break."""
        columns, rows = self.columns, set(self.plan.target.rows)
        return {
            row: new
            for leaf, new in self.fresh_leaves.items()
            for row in columns.rows_of(leaf)
            if row not in rows and columns.row_op(row) == "same" and columns.home(new).in_place
        }

    def _changes(self) -> dict[int, dict[str, Any]]:
        """For each node, the new arrays and plain values by name."""
        columns = self.columns
        changes: dict[int, dict[str, Any]] = {}
        # By leaf, ties that were made after the walk.
        tied = {columns.ties.get(request.target, request.target): request for request in self.ties}
        for row in self.plan.target.rows if self.fresh else ():
            new = self._new_at(row, tied)
            if new is not None:
                changes.setdefault(columns.row_nodes[row], {})[columns.row_names[row]] = new
        for row, value in {**self._outside(), **self._handed_back()}.items():
            changes.setdefault(columns.row_nodes[row], {}).setdefault(columns.row_names[row], value)
        for (node, name), value in self.plan.scalars.items():
            changes.setdefault(node, {})[name] = value
        for row, value in self.plan.recomputed.items():
            changes.setdefault(columns.row_nodes[row], {})[columns.row_names[row]] = value
        return changes

    def _new_at(self, row: int, tied: dict[int, TieRequest]) -> Any:
        """The new array for a row; None if the current one stays."""
        columns = self.columns
        leaf = columns.ties.get(row, row)
        if leaf in tied:
            if tied[leaf].op != "same":
                return None
            leaf = tied[leaf].source
        new = self.fresh.get(self._place_of(leaf))
        if new is None or columns.row_op(row) == "same":
            return new
        home = columns.home(new)
        # Homes that do not write in place get a view of the new array; elsewhere the current view stays.
        return None if home.in_place else home.capability(Viewing).seen_through(new, columns.row_op(row))

    def _handed_back(self) -> dict[int, Any]:
        """Arrays that were filled below nodes that show copies of their state and must be given them back."""
        columns = self.columns
        taking = set(columns.nodes_where(lambda home, obj: home.capability(Rebuilding).shows_copies(obj)))
        arrays = {}
        for feed in self.plan.feeds if taking else ():
            node = columns.row_nodes[feed.row]
            while node >= 0 and node not in taking:
                node = columns.node_parents[node]
            if node >= 0 and columns.row_kinds[feed.row] != "parameter":
                arrays[feed.row] = columns.current(feed.row)
        return arrays


def _cannot_write(home: Home, value: Any, spec: Spec) -> str:
    """Why values cannot be written into an array, or into its part in this process; empty if they can."""
    distributing, loading = home.capability(Distributing), home.capability(Loading)
    if spec.sharding is None:
        return loading.cannot_write(value)
    return distributing.cannot_use_parts(value) or loading.cannot_write(value)


def check_overlaps(loads: list[Load]) -> None:
    """Raises if elements that share memory, within one leaf or across leaves that are not tied, would get different
    values."""
    located = [
        (load, target, place)
        for load in loads
        for target, place in zip(load.in_place, load.locations, strict=True)
        if place is not None
    ]
    for group in meeting([place for _, _, place in located]):
        met = [located[number] for number in group]
        signs = {memory.dtype.partition(" ")[2] for _, _, (_, memory) in met}
        arrays = [(memory, load.cast_array(target)) for load, target, (_, memory) in met]
        if len(signs) == 1 and agree_in_memory(arrays):
            continue
        names = listed(list(dict.fromkeys(target.feed.name for _, target, _ in met)), 6)
        if len(met) == 1:
            why = "several of its elements share memory; give it memory of its own (.clone() or .copy())"
            raise LoadError(f"cannot load {names}: {why}; nothing was changed", met[0][0].plan)
        raise LoadError(
            f"cannot load {names}: they overlap in memory in the model, but the source has different values for the "
            "elements that they share; nothing was changed",
            met[0][0].plan,
        )
