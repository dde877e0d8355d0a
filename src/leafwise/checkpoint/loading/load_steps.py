"""The steps of a load: first everything that can fail, then the changes. Each takes values and returns values."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from leafwise.checkpoint.loading.copies import Copy, by_home, is_local, planned_copies
from leafwise.checkpoint.loading.copying import Copier, Kept
from leafwise.checkpoint.loading.source_values import SourceValues
from leafwise.checkpoint.planning.plan import Plan
from leafwise.core.capabilities.loading import Loading
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.columns import Columns
from leafwise.core.home import Home, Memory
from leafwise.core.memory.ops import meeting
from leafwise.core.rebuild import check_part, rebuilt, replaced_leaves
from leafwise.core.work.progress import Count
from leafwise.core.work.ranks import drop_gathered
from leafwise.errors import LoadError, WriteError
from leafwise.files.arrays.live import Copied, Live
from leafwise.files.arrays.stored import InMemory, Stored
from leafwise.files.arrays.subarrays import Subarray
from leafwise.files.reading import checked_reads
from leafwise.files.reading.checked_reads import Read
from leafwise.files.sources.source import Source
from leafwise.share.tie_requests import TieRequest

if TYPE_CHECKING:  # only some loads need them
    from leafwise.checkpoint.loading.optimizer_states import OptimizerStates, SteppedLeaves
    from leafwise.files.reading.landings import Transfers

Location = tuple[object, Memory] | None


class Load(NamedTuple):
    """One load of which everything that can fail was done, except that values may still be `unverified`.

    `copies` go into arrays of the model, which are at `locations` in memory; `sharded` are those of which this process
    fills its parts, perhaps none. `new` are the arrays that replace others, by row, `exchanged` the same by the id of
    the array that is replaced, and `replaced` the leaves for which the result has new nodes, too.
    """

    plan: Plan
    copier: Copier
    source: SourceValues
    copies: list[Copy]
    locations: list[Location]
    sharded: list[tuple[Home, Any]]
    new: dict[int, Any]
    exchanged: dict[int, Any]
    replaced: set[int]
    ties: list[TieRequest]
    optimizers: "OptimizerStates | None"
    files: set[Source]  # that values come from
    kept: list[Kept]

    @property
    def columns(self) -> Columns:
        return self.plan.target.columns


def prepare(plan: Plan, verify: bool, progress: Count, transfers: "Transfers", place: tuple[int, int]) -> Load:
    """Does everything that can fail, before anything changes."""
    columns = plan.target.columns
    source = SourceValues(plan, verify, place)
    copier = Copier(source, progress, transfers)
    check_part(columns, plan.target.root)
    try:
        replaced = replaced_leaves(plan.target, [columns.ties.get(feed.row, feed.row) for feed in plan.feeds])
    except WriteError as error:
        raise LoadError(f"cannot load: {error}", plan) from error
    ties: list[TieRequest] = []
    if plan.must_agree or plan.restored_ties:
        from leafwise.checkpoint.loading.agreement import agreed_ties

        ties = agreed_ties(plan, source)
    copies, new, sharded = planned_copies(
        plan, source, replaced, {columns.ties.get(request.target, request.target) for request in ties}
    )
    files = {storage.source for copy in copies for storage in copy.array.storages()}
    in_place = [copy for copy in copies if not copy.is_new] if new or replaced else copies
    _verify_parts(plan, source, copies)
    with _unchanged(plan):
        if len(in_place) < len(copies):
            new.update(_filled(copier, [copy for copy in copies if copy.is_new], verify))
        locations = _locations(in_place)
        is_all_here = all(file.is_local for file in files)
        in_place = _staged(copier, in_place, locations, is_all_here, verify, progress)
        in_place = _with_checked_casts(copier, in_place, verify)
    exchanged = {id(columns.current(row)): array for row, array in new.items()}
    optimizers = None
    if plan.optimizers:
        from leafwise.checkpoint.loading.optimizer_states import OptimizerStates

        optimizers = OptimizerStates(plan, source, progress)
        optimizers.read()
    return Load(
        plan, copier, source, in_place, locations, sharded, new, exchanged, replaced, ties, optimizers, files, []
    )


def verify_values(load: Load) -> Load:
    """Verifies the values that are written in place. Called when all loads are prepared: values may be kept in memory
    of devices, which the new arrays must get first."""
    unverified = [copy for copy in load.copies if copy.part is None and not copy.verified]
    kept: list[Kept] = []
    if load.source.verifies:
        with _unchanged(load.plan):
            kept, unverified = load.copier.kept_on_devices(unverified)
        load.copier.verify(unverified)
    checked_reads.unchanged(load.files)
    return load._replace(kept=kept)


def apply(load: Load) -> Any:
    """Changes the model, but for the states of optimizers. Returns it, or the new one."""
    columns, target = load.columns, load.plan.target
    try:
        drop_gathered(target)
        _write(load)
        checked_reads.unchanged(load.files)  # what was copied is what was verified
    except Exception as error:
        raise LoadError(f"{error}; the model is partly changed", load.plan) from error
    with _explained(load.plan):
        if load.ties:
            from leafwise.share.tie_requests import make_ties

            make_ties(target, load.ties, keep="source")
        changes = _changes(load)
        root = columns.node_objects[target.root]
        if changes:
            root = rebuilt(columns, target.root, changes, copied=bool(load.replaced))
        _after_load(load)
    return root


def restore_optimizers(load: Load, stepped: "SteppedLeaves | None", exchanged: dict[int, Any]) -> None:
    """Gives optimizers their states, and checks that they step the leaves of the model. `exchanged` maps the id of each
    array without memory, of all loads, to its replacement."""
    with _explained(load.plan):
        if stepped is not None:
            stepped.exchange(exchanged)
        if load.optimizers is not None:
            load.optimizers.restore()
        if stepped is not None:
            stepped.check()


@contextmanager
def _unchanged(plan: Plan) -> Iterator[None]:
    try:
        yield
    except WriteError as error:
        raise LoadError(f"{error}; nothing was changed", plan) from error


@contextmanager
def _explained(plan: Plan) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # raised by a custom set_extra_state or load_state_dict
        raise LoadError(
            f"{type(error).__name__} after the values were loaded: {error}; the model is changed, but ties, "
            "optimizer states and plain values may be incomplete",
            plan,
        ) from error


# -- before anything changes ---------------------------------------------------------------------------------


def _verify_parts(plan: Plan, source: SourceValues, copies: list[Copy]) -> None:
    """Verifies the parts of the source that this process needs for sharded leaves; what is far, when it is read."""
    facts = plan.target.columns.facts([feed.row for feed in plan.feeds]) if plan.target.columns.may_be_sharded else ()
    wholes = [feed for feed, fact in zip(plan.feeds, facts, strict=False) if fact.spec.sharding is not None]
    if wholes:
        parts = ((copy.feed.name, copy.array) for copy in copies if copy.part is not None and not copy.is_far)
        source.verify_parts(parts, [(feed.name, source.lazy(feed.source)) for feed in wholes])


def _filled(copier: Copier, copies: list[Copy], verify: bool) -> dict[int, Any]:
    """Fills new arrays, which are not in the model yet, and verifies checksums on the way. Returns those that are made
    of new memory, by row."""
    made, left = copier.into_new_memory(copies, checked=False)
    new = {copy.feed.row: array for copy, array in made}
    direct = [copy for copy in left if copy.home.in_place and not copy.is_far]
    others = [copy for copy in left if not copy.home.in_place or copy.is_far]
    others += copier.into_memory(copier.to_devices(direct, verify), verify)
    if verify:
        copier.verify(copy for copy in others if copy.part is None)
    for copy in others:
        copier.check_cast(copy)
    for copy in others:
        if copy.home.in_place:
            copy.home.write(copy.target, copier.cast_values(copy))
        else:
            rebuilding = copy.home.capability(Rebuilding)
            new[copy.feed.row] = rebuilding.from_numpy(copy.target, copier.cast_values(copy))
    return new


def _locations(copies: list[Copy]) -> list[Location]:
    """Where the arrays are in memory that get values."""
    locations: dict[int, Location] = {}
    for home, of_home in by_home(copies).items():
        places = home.capability(Loading).locations([copy.target for copy in of_home])
        locations.update((id(copy), place) for copy, place in zip(of_home, places, strict=True))
    return [locations[id(copy)] for copy in copies]


def _staged(
    copier: Copier, copies: list[Copy], locations: list[Location], is_all_here: bool, verify: bool, progress: Count
) -> list[Copy]:
    """The same copies, but with copies of those source values that may not be available later: those on another
    machine, because a download may fail, and those in memory that this load overwrites."""
    overwritten = _in_written_memory(copies, locations)
    if not overwritten and is_all_here and not any(isinstance(copy.array, InMemory) for copy in copies):
        return copies
    staged, reads = [], []
    for copy in copies:
        array: Stored = copy.array
        if id(array) in overwritten or copy.is_far:
            array = Copied(copier.stored_values(copy).copy())
        elif isinstance(array, InMemory):  # made by code that may fail
            array = Copied(array.read())
        elif not is_local(array):
            run = array.plain_run()
            if run is None:
                copier.verify([copy])
                array = Copied(array.read().copy())
            else:
                values, view = checked_reads.empty(array.spec)
                reads.append(Read(run[0], run[1], view, copy.feed.name))
                array = Copied(values)
        staged.append(copy if array is copy.array else copy._replace(array=array, verified=True))
    if reads:
        checked_reads.fill(reads, verify, progress)
    return staged


def _in_written_memory(copies: list[Copy], locations: list[Location]) -> set[int]:
    """The ids of arrays of a live source whose memory will be overwritten, or might be."""
    live = {id(copy.array): copy.array for copy in copies if copy.array.is_live}
    if not live:
        return set()
    known: list[tuple[int, tuple[object, Memory]]] = []
    unknown: set[int] = set()
    for key, array in live.items():
        whole = array.of if isinstance(array, Subarray) else array
        place = whole.home.capability(Loading).locations([whole.value])[0] if isinstance(whole, Live) else None
        unknown.add(key) if place is None else known.append((key, place))
    written = [place for place in locations if place is not None]
    if not known or not written:
        return unknown
    groups = meeting([*written, *(place for _, place in known)])
    numbers = [number - len(written) for group in groups if min(group) < len(written) for number in group]
    return unknown | {known[number][0] for number in numbers if number >= 0}


def _with_checked_casts(copier: Copier, copies: list[Copy], verify: bool) -> list[Copy]:
    """The same copies, with what is known about their casts. Raises if a value does not fit into its new dtype."""
    if not any(copy.casts for copy in copies):
        return copies
    checked = {copy.key: copy for copy in copier.checked_on_devices([copy for copy in copies if copy.casts], verify)}
    for copy in checked.values():
        copier.check_cast(copy)
    return [checked.get(copy.key, copy) for copy in copies]


# -- changes -------------------------------------------------------------------------------------------------


def _write(load: Load) -> None:
    copier, written = load.copier, []
    kept = {entry.copy.key for entry in load.kept}
    if kept:
        written = copier.move(load.kept)
        load.kept.clear()  # frees the spare memory
    copies = [copy for copy in load.copies if copy.key not in kept] if kept else load.copies
    made, left = copier.into_new_memory(copies, checked=True)
    for _ in made:
        pass  # each array is put in place
    through_numpy = copier.copy(left, False)
    keys = {copy.key for copy in through_numpy}
    written += [copy for copy in left if copy.key not in keys] if keys else left
    for home, of_home in by_home(written).items():
        home.capability(Loading).mark_written([copy.target for copy in of_home])
    for copy in through_numpy:
        copy.home.write(copy.target, copier.cast_values(copy))
    for home, value in load.sharded:
        home.capability(Loading).mark_written([value])


def _changes(load: Load) -> dict[int, dict[str, Any]]:
    """For each node, the new arrays and plain values by name."""
    columns, plan = load.columns, load.plan
    changes: dict[int, dict[str, Any]] = {}

    def put(row: int, value: Any) -> None:
        changes.setdefault(columns.row_nodes[row], {}).setdefault(columns.row_names[row], value)

    if load.new:
        # By leaf, ties that were made after the walk.
        tied = {columns.ties.get(request.target, request.target): request for request in load.ties}
        new = {_place_of(columns, row): array for row, array in load.new.items()}
        for row in plan.target.rows:
            if (array := _new_at(columns, row, new, tied)) is not None:
                put(row, array)
        _put_outside(load, put)
    for row, value in _handed_back(load).items():
        put(row, value)
    for (node, name), value in plan.scalars.items():
        changes.setdefault(node, {})[name] = value
    for row, value in plan.recomputed.items():
        changes.setdefault(columns.row_nodes[row], {})[columns.row_names[row]] = value
    return changes


def _place_of(columns: Columns, row: int) -> tuple[int, str]:
    """The node and the name of a row; the first node if it is shared."""
    node = columns.row_nodes[row]
    return columns.repeats.get(node, node), columns.row_names[row]


def _new_at(columns: Columns, row: int, new: dict[tuple[int, str], Any], tied: dict[int, TieRequest]) -> Any:
    """The new array for a row; None if the current one stays."""
    leaf = columns.ties.get(row, row)
    if leaf in tied:
        if tied[leaf].op != "same":
            return None
        leaf = tied[leaf].source
    array = new.get(_place_of(columns, leaf))
    if array is None or columns.row_op(row) == "same":
        return array
    home = columns.home(array)
    # Homes that do not write in place get a view of the new array; elsewhere the current view stays.
    return None if home.in_place else home.capability(Viewing).seen_through(array, columns.row_op(row))


def _put_outside(load: Load, put: Callable[[int, Any], None]) -> None:
    """Puts new arrays under names outside of the part that is loaded: a tie that leads out of it must not break."""
    columns, rows = load.columns, set(load.plan.target.rows)
    for filled, array in load.new.items():
        for row in columns.rows_of(columns.ties.get(filled, filled)):
            if row not in rows and columns.row_op(row) == "same" and columns.home(array).in_place:
                put(row, array)


def _handed_back(load: Load) -> dict[int, Any]:
    """Arrays that were filled below nodes that show copies of their state and must be given them back."""
    columns = load.columns
    taking = set(columns.nodes_where(lambda home, obj: home.capability(Rebuilding).shows_copies(obj)))
    arrays = {}
    for feed in load.plan.feeds if taking else ():
        node = columns.row_nodes[feed.row]
        while node >= 0 and node not in taking:
            node = columns.node_parents[node]
        if node >= 0 and columns.row_kinds[feed.row] != "parameter":
            arrays[feed.row] = columns.current(feed.row)
    return arrays


def _after_load(load: Load) -> None:
    """Calls the load hooks of modules, and their own ways to read a state dict."""
    columns, root = load.columns, load.plan.target.root
    objects = list({id(obj): obj for obj in columns.node_objects[root : columns.node_ends[root]]}.values())
    for home in columns.homes_of(objects):
        home.capability(Loading).after_load(objects)
