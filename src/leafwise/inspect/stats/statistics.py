"""`lw.stats`: statistics of every leaf of a tree, in one pass."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from threading import Lock
from typing import Any, overload

from leafwise.core.capabilities.clipping import Clipping
from leafwise.core.capabilities.delegating import Delegating
from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.capabilities.sharding import Team
from leafwise.core.columns import SECTIONS, Columns, Section
from leafwise.core.home import Spec
from leafwise.core.leaf import Leaf
from leafwise.core.parts import check_listed, check_whole_leaves, first_rows
from leafwise.core.path import Path, listed
from leafwise.core.results.moments import Moments, merged_moments
from leafwise.core.results.result import Table, rendered, whole_number
from leafwise.core.tree import Tree
from leafwise.core.verbs import check_sendable, opened
from leafwise.core.work.executor_tasks import Workers, run_each
from leafwise.core.work.fleet import each_checkpoint, is_pattern
from leafwise.core.work.progress import bar
from leafwise.core.work.ranks import start_agreeing
from leafwise.errors import Error, PathError, QueryError, WalkError
from leafwise.inspect.indices import Places, nonfinite_places, places_at, sent_nonfinite_places
from leafwise.inspect.ranks.teamwork import array_fact, cannot_use, team_of_trees
from leafwise.inspect.stats.rows import Row
from leafwise.share.places import nothing_matches


class Stats(Table, Mapping[str, Row], kind="stats"):
    """Statistics of every leaf, by path; see `lw.stats`. Prints as a table.

    `s["2.weight"]` is the `Row` of a leaf, under any of its names; `s["2"]` has the statistics of a part. `total` is
    one row for all weights, in which a tied leaf counts once, and `totals` has one for each section of a training
    checkpoint. `skipped` maps the paths of leaves without statistics to the reason.

    >>> import torch, leafwise as lw
    >>> s = lw.stats({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([6.0])})
    >>> list(s), s["a"].mean, s.total.max
    (['a', 'b'], 1.5, 6.0)
    """

    def __init__(self, t: Tree, of: str, waiting: "_Waiting", skipped: dict[int, str]) -> None:
        self.tree, self.of = t, of
        self._waiting, self._skipped = waiting, skipped

    @cached_property
    def _rows(self) -> dict[str, int]:
        """The tree row of each leaf with statistics, by its path."""
        columns, moments = self.tree.columns, self._waiting.moments
        return {columns.row_text(row): row for row in first_rows(self.tree) if columns.ties.get(row, row) in moments}

    @cached_property
    def _of_leaf(self) -> dict[int, int]:
        """The tree row under which each leaf with statistics is listed."""
        return {self._leaf(row): row for row in self._rows.values()}

    @property
    def skipped(self) -> dict[str, str]:
        """The paths of leaves without statistics, each with the reason."""
        columns = self.tree.columns
        return {
            columns.row_text(row): self._skipped[leaf]
            for row in first_rows(self.tree)
            if (leaf := self._leaf(row)) in self._skipped
        }

    def __getitem__(self, path: "str | int | Path") -> Any:
        row = self._rows.get(path) if isinstance(path, str) else None
        if row is not None:
            return self._row(row)
        place = self.tree[path]  # another name of the leaf, or a path relative to this part
        if isinstance(place, Tree):
            return Stats(place, self.of, self._waiting, self._skipped)
        if not isinstance(place, Leaf):
            raise PathError(f'"{path}" is a plain value; only leaves have statistics')
        columns, leaf = self.tree.columns, place.number
        if columns.row_op(place.row).slices is not None:
            whole = columns.row_text(leaf)
            raise PathError(f'"{path}" is a slice of {whole}, and only whole leaves have statistics; use "{whole}"')
        if leaf in self._skipped:
            raise PathError(f'"{path}" has no statistics: {self._skipped[leaf]}')
        return self._row(self._of_leaf.get(leaf, place.row))

    def __contains__(self, path: object) -> bool:
        try:
            return isinstance(self[path], Row)  # type: ignore[index]
        except Error:
            return False

    def _row(self, row: int, path: str | None = None) -> Row:
        leaf = self._leaf(row)
        spec = self._waiting.specs[leaf]
        return Row(self._waiting.moments[leaf], path or self.tree.columns.row_text(row), spec.dtype, spec.shape)

    def by_leaf(self) -> dict[int, Row]:
        """The rows by the number of their leaf."""
        return {self._leaf(row): self._row(row, path) for path, row in self._rows.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def _ipython_key_completions_(self) -> list[str]:
        return self.tree._ipython_key_completions_()

    def __len__(self) -> int:
        return len(self._rows)

    def select(self, where: Any) -> "Stats":
        """The statistics of the leaves that match a query.

        >>> import torch, leafwise as lw
        >>> s = lw.stats(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)))
        >>> list(s.select("**.bias"))
        ['0.bias', '1.bias']
        """
        return Stats(self.tree.select(where), self.of, self._waiting, self._skipped)

    def fold(self, where: Any) -> Row:
        """One row for all leaves that match a query, as if they were one array.

        >>> import torch, leafwise as lw
        >>> s = lw.stats({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([6.0])})
        >>> s.fold("*").mean, s.fold(lw.where(dtype="float32")).max
        (3.0, 6.0)
        """
        part = self.select(where)
        if not len(part.tree):
            raise nothing_matches(self.tree, where)
        if not part:
            path, reason = next(iter(part.skipped.items()))
            raise PathError(f"none of the leaves that match {where!r} has statistics; {path}: {reason}")
        return part._together(part._of_leaf)

    @cached_property
    def total(self) -> Row:
        """One row for all weights; for a tree without weights, such as that of an optimizer, one for the state."""
        return next(iter(self.totals.values())) if self else self._together(())

    @cached_property
    def totals(self) -> dict[Section, Row]:
        """One row for the leaves of each section: `weights`, `optimizer` and `rest`, if there are any.

        >>> import torch, leafwise as lw
        >>> net = torch.nn.Linear(2, 2)
        >>> optimizer = torch.optim.Adam(net.parameters())
        >>> net(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> {section: row.count for section, row in lw.stats({"model": net, "optimizer": optimizer}).totals.items()}
        {'weights': 6, 'optimizer': 14}
        """
        leaves: dict[Section, list[int]] = {section: [] for section in SECTIONS}
        for leaf in self._of_leaf:
            leaves[self.tree.columns.leaf_section(leaf)].append(leaf)
        return {section: self._together(members) for section, members in leaves.items() if members}

    def _together(self, leaves: Iterable[int]) -> Row:
        moments = self._waiting.moments
        return Row(merged_moments([moments[leaf] for leaf in leaves]))

    @property
    def nonfinite(self) -> dict[str, Places]:
        """Where the NaN and infinite values are, by the path of the leaf: at most the first 10,000 of each. Only these
        leaves are read again, a piece at a time. A leaf of a model that has changed since it was measured is left out.

        >>> import torch, leafwise as lw
        >>> s = lw.stats({"w": torch.tensor([[1.0, float("nan")], [float("inf"), 2.0]]), "b": torch.zeros(2)})
        >>> {path: places.indices for path, places in s.nonfinite.items()}
        {'w': ((0, 1), (1, 0))}
        """
        by_leaf = self._waiting.nonfinite(self.of)
        return {path: by_leaf[leaf] for path, row in self._rows.items() if (leaf := self._leaf(row)) in by_leaf}

    def _leaf(self, row: int) -> int:
        return self.tree.columns.ties.get(row, row)

    def section(self, path: str) -> Section:
        """The section of the leaf that is listed under this path."""
        return self.tree.columns.leaf_section(self._leaf(self._rows[path]))

    def text(self, *, width: int | None = None, full: bool = False, depth: int | None = None) -> str:
        """The table as plain text, `width` columns wide. With `depth`, leaves whose paths share so many entries get one
        line; `full=True` shows every leaf."""
        return rendered(self, width, full=full, depth=whole_number(depth, "depth", 0))


@overload
def stats(
    source: Any, of: Any = "value", histogram: bool = True, *, progress: bool = False, executor: None = None
) -> Stats: ...
@overload
def stats(source: Any, of: Any = "value", histogram: bool = True, *, progress: bool = False, executor: Any) -> Any: ...
def stats(
    source: Any, of: Any = "value", histogram: bool = True, *, progress: bool = False, executor: Any = None
) -> Any:
    """Computes statistics of every leaf of a model or checkpoint, in one pass over the values.

    `source` is anything that `lw.tree` takes. `of="grad"` measures gradients instead of values; in JAX, `of=` takes the
    tree of gradients itself, and the result has the paths of the model. `histogram=False` omits the histogram of
    magnitudes, which is faster. `progress=True` shows a progress bar.

    Each row has the counts `count`, `nan`, `posinf`, `neginf`, `zeros` and `subnormals`; and over the finite values
    `min`, `max`, `mean`, `std` (the population standard deviation), `l1`, `l2`, `absmax` and the histogram. A tied leaf
    counts once. Leaves without values, or with an unsupported dtype, are listed in `.skipped`.

    Files are read in chunks. On a GPU the call returns immediately, and reading the first result waits for the
    computation. The same values give bitwise equal results, whatever the number of threads. If leaves are sharded over
    processes, every rank must call it, and gets the statistics of the whole model.

    With `executor`, other processes read the file: those of a `ProcessPoolExecutor`, of Dask
    (`client.get_executor()`), or of anything else with the interface of `concurrent.futures`. The result has the same
    bits. `source` may then also be a pattern such as `"runs/**"` or `"s3://bucket/runs/**"`; the result is a `Fleet`,
    with the statistics of each checkpoint that matches.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Linear(2, 2)
    >>> _ = net.load_state_dict({"weight": torch.tensor([[1.0, -2.0], [0.0, float("nan")]]), "bias": torch.zeros(2)})
    >>> s = lw.stats(net)
    >>> s["weight"].nan, s["weight"].zeros, s["weight"].min, s["weight"].l1
    (1, 1, -2.0, 3.0)
    >>> s.total.count, s.total.zeros
    (6, 3)
    """
    if isinstance(of, str) and of not in ("value", "grad"):
        raise QueryError(f'of= takes "value", "grad" or a tree of gradients, not {of!r}')
    if executor is not None and is_pattern(source):
        return each_checkpoint(
            source, "stats", executor, lambda path, workers: stats_of(path, of, histogram, workers=workers), progress
        )
    return stats_of(source, of, histogram, progress, None if executor is None else Workers(executor))


def stats_of(
    source: Any, of: Any = "value", histogram: bool = True, progress: bool = False, workers: Workers | None = None
) -> Stats:
    """The statistics of one model or checkpoint, measured by workers if there are any."""
    with opened(source, "stats") as t:
        check_whole_leaves(t, "stats")
        if workers is not None:
            check_sendable(t, "stats")
        gradients = None if isinstance(of, str) else _gradients_by_leaf(t, of)
        return _measured(t, of if gradients is None else "grad", histogram, progress, workers, gradients)


def _measured(
    t: Tree, of: str, histogram: bool, progress: bool, workers: Workers | None, gradients: dict[int, Any] | None
) -> Stats:
    check_listed(t, "measure")
    columns = t.columns
    ties = columns.ties
    leaves = [ties.get(row, row) for row in first_rows(t)] if ties else first_rows(t)
    arrays = columns.current_arrays(leaves)
    skipped: dict[int, str] = {}
    if of == "grad":
        arrays = gradients_of(columns, leaves, arrays) if gradients is None else list(map(gradients.get, leaves))
        skipped = {leaf: "it has no gradient" for leaf, array in zip(leaves, arrays, strict=True) if array is None}
    measured_leaves: Sequence[int] = leaves
    if skipped:
        measured_leaves = [leaf for leaf in leaves if leaf not in skipped]
        arrays = [array for array in arrays if array is not None]
    team = team_of_trees(t)
    if team is not None:
        return _measured_by_team(
            team, t, of, leaves, dict(zip(measured_leaves, arrays, strict=True)), histogram, progress
        )
    again = (
        None if progress or workers or gradients else _measured_again(columns, measured_leaves, arrays, of, histogram)
    )
    if again is not None:
        return Stats(t, of, again, skipped)
    batches = columns.batches(measured_leaves, arrays)
    for batch in batches:
        for leaf, array in zip(batch.rows, batch.values, strict=True):
            if reason := batch.home.capability(Measuring).cannot_measure(array):
                skipped[leaf] = reason
    if leaves and len(skipped) == len(leaves):
        raise _nothing_to_see(t, leaves, skipped, of)
    seen = [leaf for leaf in leaves if leaf not in skipped]
    waiting = _Waiting(columns, seen, _specs(columns, seen), gradients)
    with bar(sum(spec.nbytes for spec in waiting.specs.values()), "measuring", progress) as count:
        for batch in batches:
            measured = [
                pair for pair in zip(batch.rows, batch.values, strict=True) if not skipped or pair[0] not in skipped
            ]
            rows, values = [row for row, _ in measured], [value for _, value in measured]
            if workers is not None:
                measure = partial(batch.home.capability(Delegating).measure, workers, values, histogram, count)
                waiting.begin(rows, partial(_known, measure))
                continue
            measuring = batch.home.capability(Measuring)
            waiting.begin(rows, partial(measuring.measure, values, histogram, count))
    if t.is_file:
        waiting.nonfinite(of, workers)  # now, while the file is open
    return Stats(t, of, waiting, skipped)


def _known(measure: Callable[[], list[Moments]]) -> Callable[[], list[Moments]]:
    moments = measure()
    return lambda: moments


def _measured_by_team(
    team: Team, t: Tree, of: str, leaves: Sequence[int], arrays: dict[int, Any], histogram: bool, progress: bool
) -> Stats:
    """The statistics of a tree with leaves that are sharded over ranks. All of it is collected now: if reading
    the result had to wait for other ranks, a program in which only one rank prints it would hang."""
    from leafwise.inspect.ranks.team_measuring import TeamMeasurement

    columns = t.columns
    options = [f'of="{of}"'] * (of != "value") + ["histogram=False"] * (not histogram)
    verb = f"stats(…, {', '.join(options)})" if options else "stats"
    homes = {leaf: columns.home(array) for leaf, array in arrays.items()}
    leaf_specs = dict(zip(leaves, _specs(columns, leaves), strict=True))
    specs = leaf_specs if of == "value" else {leaf: homes[leaf].spec(array) for leaf, array in arrays.items()}
    skipped = {leaf: "it has no gradient" for leaf in leaves if leaf not in arrays}
    for leaf, array in arrays.items():
        if reason := cannot_use(homes[leaf], array, specs[leaf]):
            skipped[leaf] = reason
    facts = [
        (columns.row_text(leaf), array_fact(specs[leaf], skipped.get(leaf, "")) if leaf in arrays else "no gradient")
        for leaf in leaves
    ]
    agreed = start_agreeing(team, verb, facts)
    seen = [leaf for leaf in leaves if leaf not in skipped]
    if leaves and not seen:
        agreed()
        raise _nothing_to_see(t, leaves, skipped, of)
    waiting = _Waiting(columns, seen, [leaf_specs[leaf] for leaf in seen])
    here = sum(spec.nbytes if spec.local_nbytes is None else spec.local_nbytes for spec in waiting.specs.values())
    with bar(here, "measuring", progress) as count, _naming(columns, seen):
        measurement = TeamMeasurement(team, [(homes[leaf], arrays[leaf]) for leaf in seen], histogram, count)
        moments = measurement.moments(agreed)
        positions = measurement.nonfinite_positions(moments)
    waiting.end(moments, {seen[number]: of_leaf for number, of_leaf in positions.items()})
    return Stats(t, of, waiting, skipped)


def _measured_again(
    columns: Columns, leaves: Sequence[int], arrays: list[Any], of: str, histogram: bool
) -> "_Waiting | None":
    """Starts measuring arrays that were measured before and are still where they were; None if they are not."""
    homes = columns.homes_of(arrays)
    if len(homes) != 1:
        return None
    with _naming(columns, leaves):
        again = homes.pop().capability(Measuring).measure_again(arrays, histogram)
    if again is None:
        return None
    waiting = _Waiting(columns, leaves, again.specs if of == "value" else _specs(columns, leaves))
    waiting.begin(leaves, lambda: again.wait)
    return waiting


def gradients_of(columns: Columns, leaves: Sequence[int], arrays: list[Any]) -> list[Any]:
    """The gradient of each leaf; None where there is none."""
    gradients: list[Any] = [None] * len(arrays)
    for batch in columns.batches(leaves, arrays):
        for position, gradient in zip(batch.positions, batch.home.grads(batch.values), strict=True):
            gradients[position] = gradient
    return gradients


def _gradients_by_leaf(t: Tree, gradients: Any) -> dict[int, Any]:
    """The gradient of each leaf of a model that has one, by path, where the gradients are a tree of their own, as in
    JAX. Raises if a gradient belongs to no leaf, or if its shape is not that of the leaf."""
    columns = t.columns
    with opened(gradients, "stats", live=True) as of_gradients:
        check_whole_leaves(of_gradients, "stats")
        own = dict(zip(_paths(t), t.rows, strict=True))
        given = dict(zip(_paths(of_gradients), of_gradients.rows, strict=True))
        if unknown := [path for path in given if path not in own]:
            raise PathError(
                f"of= has gradients at {listed(unknown)}, where the model has no leaf; its leaves are "
                f"{listed(list(own))}"
            )
        by_leaf: dict[int, Any] = {}
        for path, row in given.items():
            leaf = columns.ties.get(own[path], own[path])
            shapes = columns.facts([leaf])[0].spec.shape, of_gradients.columns.facts([row])[0].spec.shape
            if shapes[0] != shapes[1]:
                raise PathError(f"{path} has the shape {shapes[0]}, but its gradient has {shapes[1]}")
            by_leaf.setdefault(leaf, of_gradients.columns.row_values[row])
        return by_leaf


def _paths(t: Tree) -> list[str]:
    """The paths of the rows of a tree, relative to it."""
    start = len(t.columns.node_text(t.root)) + 1 if t.root else 0
    return [path[start:] for path in t.columns.row_texts(t.rows)]


def _specs(columns: Columns, leaves: Sequence[int]) -> list[Spec]:
    return [spec for spec, *_ in columns.facts(leaves)]


def _nothing_to_see(t: Tree, leaves: Sequence[int], skipped: dict[int, str], of: str) -> WalkError:
    columns = t.columns
    if of == "grad" and t.is_file:
        return WalkError("a file contains no gradients; leave out of=")
    homes = columns.homes_of(columns.current_arrays(leaves))
    if of == "grad" and any(home.capability(Clipping).takes_gradients for home in homes):
        return WalkError(
            "no leaf has a gradient: in JAX, gradients are a tree of their own; pass it: lw.stats(model, of=gradients)"
        )
    if of == "grad" and set(skipped.values()) == {"it has no gradient"}:
        return WalkError('no leaf has a gradient; call lw.stats(model, of="grad") after backward()')
    first = columns.row_text(leaves[0])
    return WalkError(f"no leaf has values to measure; {first}: {skipped[leaves[0]]}")


class _Waiting:
    """The moments of the leaves, some of which may still be computed; and the specs of the leaves when it began."""

    def __init__(
        self, columns: Columns, leaves: Sequence[int], specs: list[Spec], gradients: dict[int, Any] | None = None
    ) -> None:
        self._columns, self._leaves, self._specs = columns, leaves, specs
        self._gradients = gradients  # by leaf, if they are a tree of their own
        self._pending: list[tuple[Sequence[int], Callable[[], list[Moments]]]] = []
        self._moments: dict[int, Moments] = {}
        self._nonfinite: dict[int, Places] | None = None
        self._positions: dict[int, Any] | None = None  # of nonfinite values, if they were collected from several ranks
        self._lock = Lock()

    @cached_property
    def specs(self) -> dict[int, Spec]:
        return dict(zip(self._leaves, self._specs, strict=True))

    def begin(self, leaves: Sequence[int], measure: Callable[[], Callable[[], list[Moments]]]) -> None:
        """Starts measuring leaves: `measure` returns a function that waits for the result."""
        with _naming(self._columns, leaves):
            self._pending.append((leaves, measure()))

    def end(self, moments: list[Moments], positions: dict[int, Any]) -> None:
        """Keeps results that are complete: the moments of all leaves, and where values are not finite, by leaf."""
        self._moments, self._positions = dict(zip(self._leaves, moments, strict=True)), positions

    @property
    def moments(self) -> dict[int, Moments]:
        if self._pending:
            with self._lock:
                while self._pending:
                    leaves, wait = self._pending[0]
                    with _naming(self._columns, leaves):
                        self._moments.update(zip(leaves, wait(), strict=True))
                    del self._pending[0]
        return self._moments

    def nonfinite(self, of: str, workers: Workers | None = None) -> dict[int, Places]:
        """Where the NaN and infinite values are, by leaf."""
        if self._nonfinite is None:
            leaves = [leaf for leaf, moments in self.moments.items() if moments.finite < moments.count]
            if workers is None:
                by_leaf = {leaf: self._places(leaf, of) for leaf in leaves}
            else:
                by_leaf = dict(zip(leaves, self._places_by(workers, leaves), strict=True))
            self._nonfinite = {leaf: places for leaf, places in by_leaf.items() if places is not None}
        return self._nonfinite

    def _places_by(self, workers: Workers, leaves: list[int]) -> list[Places | None]:
        """As `_places`, for leaves of a file that workers read."""
        totals = [self.moments[leaf].count - self.moments[leaf].finite for leaf in leaves]
        sent = [
            (self._columns.current(leaf), self.specs[leaf].shape or (), total)
            for leaf, total in zip(leaves, totals, strict=True)
        ]
        nbytes = {id(array): self.specs[leaf].nbytes for leaf, (array, _, _) in zip(leaves, sent, strict=True)}
        places: list[Places] = run_each(
            workers, sent_nonfinite_places, sent, lambda item: nbytes[id(item[0])], lambda count: None
        )
        return [place if place.total == total else None for place, total in zip(places, totals, strict=True)]

    def _places(self, leaf: int, of: str) -> Places | None:
        columns, moments = self._columns, self.moments[leaf]
        if self._positions is not None:
            return places_at(self._positions[leaf], self.specs[leaf].shape or (), moments.count - moments.finite)
        array = columns.current(leaf)
        if self._gradients is not None:
            array = self._gradients[leaf]
        elif of == "grad":
            array = columns.home(array).grads([array])[0]
        shape = self.specs[leaf].shape
        if array is None or shape is None or columns.home(array).spec(array).shape != shape:
            return None
        total = moments.count - moments.finite
        places = nonfinite_places(columns.home(array), array, shape, total)
        return places if places.total == total else None  # otherwise the values have changed

    def __getstate__(self) -> dict[str, Any]:
        own = {name: value for name, value in self.__dict__.items() if name != "_lock"}
        return {**own, "_pending": [], "_moments": self.moments}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())


@contextmanager
def _naming(columns: Columns, leaves: Sequence[int]) -> Iterator[None]:
    """Adds the names of the leaves to an error of a home."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        names = listed([columns.row_text(leaf) for leaf in leaves], 3)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise WalkError(f"cannot measure {names}: {reason}") from error
