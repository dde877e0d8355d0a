"""What the rules of `lw.check` can ask about a leaf, in this process or in a worker, and searching many at once."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

from leafwise.core.capabilities.measuring import Measuring, Reader, bands, reader
from leafwise.core.capabilities.searching import Lines, Searching
from leafwise.core.columns import Facts
from leafwise.core.home import Axes, Home, Spec
from leafwise.core.leaf import Leaf
from leafwise.core.pairing.row_pairs import NamedArray
from leafwise.core.path import spelled
from leafwise.core.registry import home_of
from leafwise.core.work.executor_tasks import Workers, run_each
from leafwise.inspect.indices import Places, nonfinite_places
from leafwise.inspect.stats.rows import Row

if TYPE_CHECKING:
    from leafwise.inspect.check.check_ranks import CheckRanks
    from leafwise.inspect.check.evidence import Evidence

T = TypeVar("T")
ValuesOf = Literal["value", "grad", "state"]  # "state" is what an optimizer keeps for the leaf


@lru_cache(maxsize=1_000)  # models have few roles, and thousands of leaves
def _role_set(*roles: str | None) -> frozenset[str | None]:
    return frozenset(roles)


class SentLeaf(NamedTuple):
    """The array of a leaf in a file, with its statistics. In a worker, it takes the place of a `LeafEvidence`."""

    value: Any
    spec: Spec
    path: str
    stats: Row | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape or ()

    @property
    def held(self) -> NamedArray:
        return NamedArray(0, home_of(self.value), self.value, self.spec, self.path)

    def reader(self) -> Reader:
        return reader(home_of(self.value), self.value)

    def bands(self, of: str = "value") -> Iterator[tuple[int, Any]]:
        assert of == "value", "workers reach only the values of a file"
        return bands(home_of(self.value), self.value, self.shape)

    def searching(self, of: str = "value") -> None:
        return None  # its values are read


class LeafEvidence:
    """What rules can ask about a leaf: its facts, its role, and the statistics of its values and its gradient, which
    are computed for the whole tree when the first rule asks for them."""

    __slots__ = ("_evidence", "axes", "kind", "number", "path", "role", "roles", "section", "spec")

    def __init__(
        self, evidence: "Evidence", number: int, path: str, facts: Facts, roles: list[tuple[str | None, Axes]]
    ) -> None:
        self._evidence, self.number, self.path = evidence, number, path
        self.spec, self.kind, _, self.section = facts
        self.role, self.axes = roles[0]
        self.roles = _role_set(*(role for role, _ in roles))  # of all its names

    @property
    def handle(self) -> Leaf:
        """The leaf itself."""
        return self._evidence.columns.leaf_of(self.number)

    @property
    def held(self) -> NamedArray:
        """Its array, for comparing it with that of another leaf."""
        home, value = self._array("value")
        return NamedArray(self.number, home, value, self.spec, self.path)

    @property
    def ranks(self) -> "CheckRanks | None":
        """The ranks over which the leaves of the tree are sharded; None if all are whole."""
        return self._evidence.ranks

    @property
    def workers(self) -> Workers | None:
        """The workers that search its values, if there are any."""
        return self._evidence.workers

    def sent(self) -> SentLeaf:
        """Its array and its statistics, for a worker."""
        return SentLeaf(self._array("value")[1], self.spec, self.path, self.stats)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape or ()

    @property
    def stats(self) -> Row | None:
        """The statistics of its values; None if there are none."""
        return self._evidence.value_stats.get(self.number)

    @property
    def grad_stats(self) -> Row | None:
        """The statistics of its gradient; None if there are none."""
        return self._evidence.grad_stats.get(self.number)

    @property
    def has_grad(self) -> bool:
        return self.number in self._evidence.gradients

    @property
    def is_float(self) -> bool:
        # A quantized dtype is named after its blocks; its values are floating-point numbers.
        return not self.spec.dtype.startswith(("int", "uint", "bool", "complex"))

    @property
    def is_frozen(self) -> bool:
        """Whether it is known not to be trained."""
        return self.spec.trainable is False

    @property
    def has_nonzero_grad(self) -> bool:
        """Whether it has a nonzero gradient; a gradient without statistics counts as nonzero."""
        return self.has_grad and (self.grad_stats is None or self.grad_stats.zeros < self.grad_stats.count)

    @property
    def padding_row(self) -> int | None:
        """The padding row of an embedding, which is never trained."""
        columns = self._evidence.columns
        index = getattr(columns.node_objects[columns.row_nodes[self.number]], "padding_idx", None)
        return index % self.shape[0] if isinstance(index, int) and self.shape else None

    @property
    def is_weight(self) -> bool:
        """Whether it maps inputs to outputs under all of its names; not known for most files."""
        axes = self.axes or ()
        return "out" in axes and any(axis.startswith("in") for axis in axes) and "embedding.table" not in self.roles

    @property
    def is_matrix(self) -> bool:
        """Whether it is a floating-point parameter with several rows and columns, whatever its role."""
        shape = [size for axis, size in enumerate(self.shape) if axis not in self.stack_axes]
        return self.kind == "parameter" and self.is_float and len(shape) > 1 and shape[0] > 1 and prod(shape[1:]) > 1

    @property
    def stack_axes(self) -> tuple[int, ...]:
        """The axes of stacked layers."""
        return tuple(number for number, axis in enumerate(self.axes or ()) if axis.startswith("layers"))

    @property
    def out_axis(self) -> int:
        """The axis of its units; the first one if it is not known."""
        return self._line_axis("out", ())

    @property
    def in_axis(self) -> int:
        """The axis of its inputs; the next one if it is not known."""
        return self._line_axis("in", (self.out_axis,))

    def _line_axis(self, name: str, others: tuple[int, ...]) -> int:
        free = [axis for axis in range(len(self.shape)) if axis not in (*others, *self.stack_axes)]
        return next((axis for axis in free if self.axes and self.axes[axis].startswith(name)), free[0])

    def layers(self, of: ValuesOf = "value") -> Iterator[tuple[str, SentLeaf]]:
        """The matrix of each of the stacked layers, or of the only one, with outputs first and inputs second, and
        the beginning of a message that says which layer it is."""
        read = reader(*self._array(of))
        order = (*self.stack_axes, self.out_axis, self.in_axis)
        order += tuple(axis for axis in range(len(self.shape)) if axis not in order)
        for layer in product(*(range(self.shape[axis]) for axis in self.stack_axes)):
            box = [slice(None)] * len(self.shape)
            for axis, number in zip(self.stack_axes, layer, strict=True):
                box[axis] = slice(number, number + 1)
            array = read(tuple(box)).transpose(order)
            array = array.reshape(array.shape[len(layer) :])
            spec = self.spec._replace(shape=array.shape, nbytes=array.nbytes)
            name = f"layer {', '.join(map(str, layer))}: " if layer else ""
            yield name, SentLeaf(array, spec, self.path, self.stats if of == "value" else self.grad_stats)

    def reinitialize_hint(self, purpose: str) -> str:
        """What to type to give only this leaf new initial values, after a few words that say what for."""
        if self._evidence.tree.is_file:
            return f"{purpose}, initialize it in the model this file was saved from"
        if self.is_frozen:
            return "it is frozen, so this may be intended"
        init = 'init="kaiming_normal"' if self.is_weight else 'init="normal", std=0.02'
        path = self.path_literal
        return f"{purpose}: lw.initialize(lw.tree(model).select({path}), [lw.Rule({path}, {init})])"

    @property
    def path_literal(self) -> str:
        """Its path as a Python string literal."""
        return spelled(self.path)

    def reader(self) -> Reader:
        """A function that reads parts of its values as NumPy arrays."""
        return reader(*self._array("value"))

    def bands(self, of: ValuesOf = "value") -> Iterator[tuple[int, Any]]:
        """Its values as NumPy arrays of a few rows each, with the index of their first row."""
        return bands(*self._array(of), self.shape)

    def searching(self, of: ValuesOf = "value") -> Searching | None:
        """What searches its values where they are, as on a GPU; None if they are read instead."""
        home, value = self._array(of)
        searching = home.capability(Searching)
        if not searching.is_searched(value) or (of == "state" and home.capability(Measuring).cannot_measure(value)):
            return None
        return searching

    def lines(self, axis: int, of: ValuesOf = "value", scale: float = 1.0) -> Lines:
        """The lines of its values along an axis, for searching them."""
        return Lines(self._array(of)[1], axis, scale)

    def nonfinite(self, of: Literal["value", "grad"] = "value") -> Places:
        """Where its NaN and infinite values are. Reads the values a second time, so it is for leaves that have some."""
        table, row = (
            (self._evidence.stats, self.stats) if of == "value" else (self._evidence.grad_table, self.grad_stats)
        )
        assert row is not None
        assert table is not None
        if self._evidence.ranks is not None:
            return table.nonfinite[self.path]  # collected from all ranks with the statistics
        return nonfinite_places(*self._array(of), self.shape, row.count - row.finite)

    def _array(self, of: ValuesOf) -> tuple[Home, Any]:
        """The array with its home. If it is sharded over ranks, it is one that reads from all of them."""
        return self._evidence.array(self.number, of)


Place: TypeAlias = tuple[LeafEvidence, int]  # a leaf and an axis


def searched_together(
    places: list[Place], of: ValuesOf, search: Callable[[Searching, list[Place]], list[T] | None]
) -> tuple[dict[int, T], list[int]]:
    """The results of `search`, by the number of the place, and the numbers of the places whose values must be read."""
    numbers_by_searching: dict[Searching | None, list[int]] = {}
    for number, (leaf, _) in enumerate(places):
        numbers_by_searching.setdefault(leaf.searching(of), []).append(number)
    results: dict[int, T] = {}
    others = numbers_by_searching.pop(None, [])
    for searching, numbers in numbers_by_searching.items():
        assert searching is not None
        by_place = search(searching, [places[number] for number in numbers])
        if by_place is None:
            others += numbers
        else:
            results |= zip(numbers, by_place, strict=True)
    return results, sorted(others)


def search_by_workers(workers: Workers, search: Callable[..., T], places: Sequence[tuple[Any, ...]]) -> list[T]:
    """The results of a function of a module, which workers call with each leaf and what else is in its place."""
    sent = [(search, leaf.sent(), *further) for leaf, *further in places]
    return run_each(workers, _searched, sent, lambda place: place[1].spec.nbytes, lambda nbytes: None)


def _searched(place: tuple[Any, ...]) -> Any:
    search, *arguments = place
    return search(*arguments)
