"""Which arrays share elements in memory.

Arrays over one storage are tied only if they share elements: neighbors in a flat buffer are not tied. An array whose
elements are all inside another array, and that has no gradient of its own, is a second name of that array. Its op says
how it views that array: `same`, `transpose` or `view`.
"""

from collections.abc import Iterable
from itertools import combinations, pairwise, product
from math import prod
from typing import Literal, NamedTuple

from leafwise.core.home import Memory

Relation = Literal["apart", "inside", "overlapping"]

# If the strides of two arrays do not divide each other, their elements are compared one by one, up to this many. Larger
# arrays count as overlapping.
_ENUMERATE = 1 << 16

# How many pairs of arrays over one storage, and how many elements, are compared. The rest count as overlapping. No
# model comes near these limits, but a hostile file could ask for any number.
_MAX_PAIRS = 100_000
_MAX_ELEMENTS = 1 << 21


class Op(str):
    """How a name views its leaf: `same`, `transpose` or `view`, to which it is equal as a string.

    `slices` is the index of a view, and `order` the order of axes of a transpose; each is None if it does not apply,
    or if the view cannot be described this way.

    >>> op = Op("view", slices=(slice(0, 64), slice(None)))
    >>> op == "view", op.describe()
    (True, '[0:64, :]')
    """

    slices: tuple[slice | int, ...] | None
    order: tuple[int, ...] | None
    __slots__ = ("order", "slices")

    def __new__(
        cls,
        kind: str,
        slices: tuple[slice | int, ...] | None = None,
        order: tuple[int, ...] | None = None,
    ) -> "Op":
        op = super().__new__(cls, kind)
        op.slices = slices
        op.order = order
        return op

    def __reduce__(self) -> tuple[type["Op"], tuple[object, ...]]:
        return Op, (str(self), self.slices, self.order)

    @property
    def is_described(self) -> bool:
        """Whether slices and the order of axes describe the view completely. If not, only its memory does."""
        return self == "same" or self.slices is not None or self.order is not None

    def describe(self) -> str:
        """The op in Python: `[0:64, :]`, `.T`, or nothing for `same`."""
        text = ""
        if self.slices is not None:
            text = "[" + ", ".join(map(_slice_text, self.slices)) + "]"
        if self.order is not None:
            text += ".T" if self.order == (1, 0) else f".permute{self.order}"
        return text or ("" if self == "same" else f" ({self})")


SAME = Op("same")


def _slice_text(index: slice | int) -> str:
    if isinstance(index, int):
        return str(index)
    ends = ["" if end is None else str(end) for end in (index.start, index.stop)]
    return ":".join(ends if index.step is None else [*ends, str(index.step)])


class Overlap(NamedTuple):
    """Leaves that share memory but are not one leaf; positions in the list that was given."""

    members: tuple[int, ...]
    separate_gradients: bool


class Region:
    """An array to compare: its number, its memory, and whether it has its own gradient."""

    __slots__ = ("memory", "own_gradient", "start", "stop", "who")

    def __init__(self, who: int, memory: Memory, own_gradient: bool) -> None:
        self.who = who
        self.memory = memory
        self.own_gradient = own_gradient
        self.start, self.stop = extent(memory)


def compare(regions: Iterable[Region]) -> tuple[dict[int, tuple[int, Op]], list[Overlap]]:
    """For arrays over one storage: which are second names of others, and which others share memory."""
    # An array that contains another comes before it: earlier start, then later stop, then arrays that stay leaves, then
    # more elements, then arrays that are not expanded.
    order = sorted(
        regions,
        key=lambda r: (r.start, -r.stop, not r.own_gradient, -_elements(r.memory), _repeats(r.memory), r.who),
    )
    merged: dict[int, tuple[int, Op]] = {}
    groups = _Groups()
    active: list[Region] = []
    first_over: dict[Memory, Region] = {}  # arrays over exactly the same memory are compared once
    work = Work()
    for region in order:
        same = first_over.setdefault(region.memory, region)
        if same is not region:
            if not region.own_gradient:
                merged[region.who] = merged.get(same.who, (same.who, SAME))
            else:
                groups.join(same, region)
            continue
        active = [earlier for earlier in active if earlier.stop > region.start]
        if work.pairs <= 0 and active:
            # The limit is reached: arrays whose extents meet count as overlapping, and the one that reaches farther
            # represents both.
            farthest = max(active, key=lambda earlier: earlier.stop)
            groups.join(farthest, region)
            active = [max(farthest, region, key=lambda reaching: reaching.stop)]
            continue
        for earlier in active:
            how = relation(region.memory, earlier.memory, work)
            if how == "inside" and not region.own_gradient:
                merged[region.who] = earlier.who, view_op(region.memory, earlier.memory)
                groups.leave(region)
                break
            if how != "apart":
                groups.join(earlier, region)
        else:
            active.append(region)
    return merged, groups.overlaps()


def _elements(memory: Memory) -> int:
    """The number of elements, without those that are repeated."""
    return prod(size for size, stride in zip(memory.shape, memory.strides, strict=True) if stride)


def _repeats(memory: Memory) -> bool:
    return any(size > 1 and not stride for size, stride in zip(memory.shape, memory.strides, strict=True))


class _Groups:
    """Groups of regions that share memory (a union-find)."""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}
        self._separate: set[int] = set()

    def join(self, a: Region, b: Region) -> None:
        self._above.setdefault(a.who, a.who)
        self._above.setdefault(b.who, b.who)
        self._above[self._top(b.who)] = self._top(a.who)
        if a.own_gradient and b.own_gradient:
            self._separate |= {a.who, b.who}

    def leave(self, region: Region) -> None:
        """Removes a region that turns out to be a second name. It was added last, so no other region is below it."""
        self._above.pop(region.who, None)

    def _top(self, who: int) -> int:
        while self._above[who] != who:
            self._above[who] = who = self._above[self._above[who]]
        return who

    def overlaps(self) -> list[Overlap]:
        members: dict[int, list[int]] = {}
        for who in sorted(self._above):
            members.setdefault(self._top(who), []).append(who)
        return [
            Overlap(tuple(group), not self._separate.isdisjoint(group)) for group in members.values() if len(group) > 1
        ]


def extent(memory: Memory) -> tuple[int, int]:
    """The first byte of an array, and the byte after its last."""
    low, axes = _axes(memory)
    return low, low + sum((size - 1) * stride for size, stride in axes) + memory.itemsize


def may_repeat(memory: Memory) -> bool:
    """Whether elements of an array may share memory with each other. False is certain; True may be wrong.

    >>> may_repeat(Memory(0, (3, 4), (16, 4), 4, "float32")), may_repeat(Memory(0, (3, 3), (4, 4), 4, "float32"))
    (False, True)
    """
    reach = memory.itemsize
    moves = [(abs(stride), size) for size, stride in zip(memory.shape, memory.strides, strict=True) if size > 1]
    for stride, size in sorted(moves):
        if stride < reach:
            return True
        reach += (size - 1) * stride
    return False


def meeting(arrays: list[tuple[object, Memory]]) -> list[list[int]]:
    """Which arrays may share memory, given the address space and the memory of each: groups of several arrays, and
    single arrays whose elements may share memory with each other. Arrays are numbers in the list."""
    order = sorted((str(space), *extent(memory), number) for number, (space, memory) in enumerate(arrays))
    groups: list[list[int]] = []
    end: tuple[str, int] = ("", 0)
    for space, start, stop, number in order:
        if groups and space == end[0] and start < end[1]:
            groups[-1].append(number)
            end = space, max(end[1], stop)
        else:
            groups.append([number])
            end = space, stop
    work = Work()
    return [group for group in groups if not _are_apart([arrays[number][1] for number in group], work)]


def _are_apart(memories: list[Memory], work: "Work") -> bool:
    """Whether certainly no two elements of these arrays share memory. False if that would take long to find out."""
    pairs = combinations(memories, 2)
    return not any(map(may_repeat, memories)) and all(relation(a, b, work) == "apart" for a, b in pairs)


def _axes(memory: Memory) -> tuple[int, list[tuple[int, int]]]:
    """The lowest address, and the axes with more than one address, as if all strides were positive."""
    low = memory.offset
    axes = []
    for size, stride in zip(memory.shape, memory.strides, strict=True):
        if size > 1 and stride:
            low += min(0, (size - 1) * stride)
            axes.append((size, abs(stride)))
    return low, axes


class Work:
    """How many comparisons are left until the limits."""

    __slots__ = ("elements", "pairs")

    def __init__(self) -> None:
        self.pairs = _MAX_PAIRS
        self.elements = _MAX_ELEMENTS


def relation(inner: Memory, outer: Memory, work: Work | None = None) -> Relation:
    """Whether all elements of `inner` are in `outer`, or some, or none.

    >>> row = Memory(0, (4,), (4,), 4, "float32")
    >>> column = Memory(4, (2,), (16,), 4, "float32")
    >>> relation(row, Memory(0, (2, 4), (16, 4), 4, "float32"))
    'inside'
    >>> relation(row, column), relation(column, Memory(0, (2,), (16,), 4, "float32"))
    ('overlapping', 'apart')
    """
    inner_low, inner_high = extent(inner)
    outer_low, outer_high = extent(outer)
    if inner_low >= outer_high or outer_low >= inner_high:
        return "apart"
    work = work or Work()
    work.pairs -= 1
    if work.pairs < 0 or (inner.itemsize, inner.dtype) != (outer.itemsize, outer.dtype):
        return "overlapping"
    if (inner_low - outer_low) % outer.itemsize:
        return "overlapping"
    if _dense(outer):
        if outer_low <= inner_low and inner_high <= outer_high:
            return "inside"
        if _dense(inner):
            return "overlapping"
    boxes = _boxes(inner, outer)
    if boxes is not None:
        if all(map(_range_inside, *boxes)):
            return "inside"
        return "overlapping" if all(map(_ranges_meet, *boxes)) else "apart"
    work.elements -= prod(inner.shape) + prod(outer.shape)
    if work.elements < 0 or prod(inner.shape) + prod(outer.shape) > _ENUMERATE:
        return "overlapping"
    inner_bytes, outer_bytes = _addresses(inner), _addresses(outer)
    if inner_bytes <= outer_bytes:
        return "inside"
    return "apart" if inner_bytes.isdisjoint(outer_bytes) else "overlapping"


def view_op(inner: Memory, outer: Memory) -> Op:
    """How `inner`, whose elements are all in `outer`, views `outer`."""
    if (inner.offset, inner.shape) == (outer.offset, outer.shape) and _strides_agree(inner, outer):
        return SAME
    starts = _position(inner.offset - outer.offset, outer)
    along = None if starts is None else _axes_along(inner, outer, starts)
    if starts is None or along is None:
        return Op("view")
    slices: list[slice | int] = list(starts)  # axes along which `inner` does not run are indexed by a number
    for (axis, step), size in zip(along, inner.shape, strict=True):
        start, stop = starts[axis], starts[axis] + (size - 1) * step + 1
        whole = (start, stop, step) == (0, outer.shape[axis], 1)
        slices[axis] = slice(None) if whole else slice(start, stop, step if step > 1 else None)
    # The axes that remain after indexing, renumbered, in the order of `inner`.
    left = sorted(axis for axis, _ in along)
    order = tuple(left.index(axis) for axis, _ in along)
    moved = None if order == tuple(range(len(order))) else order
    if all(part == slice(None) for part in slices):
        return Op("transpose", order=moved) if moved else SAME
    return Op("view", slices=tuple(slices), order=moved)


def _position(offset: int, outer: Memory) -> list[int] | None:
    """The index in `outer` of the element at this offset, in bytes, from its first element."""
    index = [0] * len(outer.shape)
    for axis in sorted(range(len(index)), key=lambda axis: -outer.strides[axis]):
        if outer.shape[axis] > 1 and outer.strides[axis] > 0:
            index[axis], offset = divmod(offset, outer.strides[axis])
    return None if offset else index


def _axes_along(inner: Memory, outer: Memory, starts: list[int]) -> list[tuple[int, int]] | None:
    """For each axis of `inner`, the axis of `outer` along which it runs, and its step there."""
    free = sorted(range(len(outer.shape)), key=lambda axis: -outer.strides[axis])
    axes: dict[int, tuple[int, int]] = {}
    # Axes longer than one choose first; axes of length one get the remaining axes, in order.
    for mine in sorted(range(len(inner.shape)), key=lambda axis: inner.shape[axis] == 1):
        size, stride = inner.shape[mine], inner.strides[mine]
        for axis in free if size > 1 else sorted(free):
            span = outer.strides[axis]
            if size > 1 and (span <= 0 or stride <= 0 or stride % span):
                continue
            step = stride // span if size > 1 else 1
            if starts[axis] + (size - 1) * step < outer.shape[axis]:
                axes[mine] = axis, step
                free.remove(axis)
                break
        else:
            return None
    return [axes[mine] for mine in range(len(inner.shape))]


def _strides_agree(a: Memory, b: Memory) -> bool:
    return all(
        size == 1 or stride_a == stride_b
        for size, stride_a, stride_b in zip(a.shape, a.strides, b.strides, strict=True)
    )


def _dense(memory: Memory) -> bool:
    """Whether the array touches every element between its first and its last."""
    low, high = extent(memory)
    _, axes = _axes(memory)
    return high - low == prod(size for size, _ in axes) * memory.itemsize


def _boxes(a: Memory, b: Memory) -> tuple[list[range], list[range]] | None:
    """Both arrays as boxes in one grid; None if their strides do not divide each other."""
    (low_a, axes_a), (low_b, axes_b) = _axes(a), _axes(b)
    strides = sorted({a.itemsize, *(stride for _, stride in axes_a + axes_b)}, reverse=True)
    if any(long % short for long, short in pairwise(strides)):
        return None
    origin = min(low_a, low_b)
    box_a = _box(low_a - origin, axes_a, strides)
    box_b = _box(low_b - origin, axes_b, strides)
    return None if box_a is None or box_b is None else (box_a, box_b)


def _box(offset: int, axes: list[tuple[int, int]], strides: list[int]) -> list[range] | None:
    sizes: dict[int, int] = {}
    for size, stride in axes:
        if stride in sizes:
            return None
        sizes[stride] = size
    box = []
    outer_stride = None
    for stride in strides:
        start, offset = divmod(offset, stride)
        stop = start + sizes.get(stride, 1)
        # A run that wraps into the next longer stride is not a box in this grid.
        if outer_stride is not None and stop * stride > outer_stride:
            return None
        box.append(range(start, stop))
        outer_stride = stride
    return box


def _range_inside(inner: range, outer: range) -> bool:
    return outer.start <= inner.start and inner.stop <= outer.stop


def _ranges_meet(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


def _addresses(memory: Memory) -> set[int]:
    low, axes = _axes(memory)
    steps = [range(0, size * stride, stride) for size, stride in axes]
    return {low + sum(step) for step in product(*steps)}
