"""Which arrays lie over the same elements.

Arrays of one storage are tied only where their elements meet: neighbors in a flat buffer are not. What
lies wholly inside another array, and has no gradient of its own, is a second name of it, with an op that
says how it is seen from there: `same`, `transpose` or `view`.
"""

from collections.abc import Iterable
from itertools import combinations, pairwise, product
from math import prod
from typing import Literal, NamedTuple

from leafwise.core.home import Memory

Relation = Literal["apart", "inside", "overlapping"]

# Above this many elements, two arrays with strides that do not divide each other are called overlapping
# without a look at each element.
_ENUMERATE = 1 << 16

# How many pairs of arrays over one storage are compared, and how many elements looked at, before the rest are called
# overlapping: no model comes near, and a hostile file could ask for any number.
_MAX_PAIRS = 100_000
_MAX_ELEMENTS = 1 << 21


class Op(str):
    """How a name sees its leaf: `same`, `transpose` or `view`, which it equals as a string.

    `slices` is the index that gives a view, and `order` the order of axes that gives a transpose, where
    they can be said.

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
    def is_told(self) -> bool:
        """Whether slices and an order of axes say all of it. If not, only the memory knows what the view shows."""
        return self == "same" or self.slices is not None or self.order is not None

    def describe(self) -> str:
        """The op as one would write it: `[0:64, :]`, `.T`, or nothing for the same."""
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
    """Leaves whose memory meets although they are not one leaf; positions in the list that was given."""

    members: tuple[int, ...]
    separate_gradients: bool


class Region:
    """An array to compare: who it is, where it lies, and whether it has a gradient of its own."""

    __slots__ = ("memory", "own_gradient", "start", "stop", "who")

    def __init__(self, who: int, memory: Memory, own_gradient: bool) -> None:
        self.who = who
        self.memory = memory
        self.own_gradient = own_gradient
        self.start, self.stop = extent(memory)


def compare(regions: Iterable[Region]) -> tuple[dict[int, tuple[int, Op]], list[Overlap]]:
    """For arrays of one storage: who is a second name of whom, and whose memory else meets."""
    # Whoever holds another comes before it: earlier start, then later stop, then those that stay leaves, then
    # those that show each element once, which an expanded array does not.
    order = sorted(regions, key=lambda r: (r.start, -r.stop, not r.own_gradient, _repeats(r.memory), r.who))
    merged: dict[int, tuple[int, Op]] = {}
    groups = _Groups()
    active: list[Region] = []
    first_over: dict[Memory, Region] = {}  # many arrays over just the same memory are compared once
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
            # No more are compared: where the extents of two meet, they are called overlapping, and the one that reaches
            # farther stands for both.
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


def _repeats(memory: Memory) -> bool:
    return any(size > 1 and not stride for size, stride in zip(memory.shape, memory.strides, strict=True))


class _Groups:
    """Regions that meet, gathered into groups (a union-find)."""

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
        """A region that turns out to be a second name is in no group; it came last, so nobody is below it."""
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
    """The first byte, and the byte after the last, that an array touches."""
    low, axes = _axes(memory)
    return low, low + sum((size - 1) * stride for size, stride in axes) + memory.itemsize


def may_repeat(memory: Memory) -> bool:
    """Whether several elements of an array may lie over one another. It may say so of some where none do.

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
    """Which arrays may have elements in one place, given the space and the place of each: groups of several, and single
    ones that may lie over themselves; numbers in the list."""
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
    """Whether no two elements of any of these lie in one place, as far as it is soon told."""
    pairs = combinations(memories, 2)
    return not any(map(may_repeat, memories)) and all(relation(a, b, work) == "apart" for a, b in pairs)


def _axes(memory: Memory) -> tuple[int, list[tuple[int, int]]]:
    """The lowest address, and the axes that move, as if every stride ran upwards."""
    low = memory.offset
    axes = []
    for size, stride in zip(memory.shape, memory.strides, strict=True):
        if size > 1 and stride:
            low += min(0, (size - 1) * stride)
            axes.append((size, abs(stride)))
    return low, axes


class Work:
    """How much comparing is still worth while."""

    __slots__ = ("elements", "pairs")

    def __init__(self) -> None:
        self.pairs = _MAX_PAIRS
        self.elements = _MAX_ELEMENTS


def relation(inner: Memory, outer: Memory, work: Work | None = None) -> Relation:
    """Whether the elements of `inner` all lie in `outer`, or some do, or none.

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
    """How `inner`, whose elements all lie in `outer`, is seen from there."""
    if (inner.offset, inner.shape) == (outer.offset, outer.shape) and _strides_agree(inner, outer):
        return SAME
    starts = _position(inner.offset - outer.offset, outer)
    along = None if starts is None else _axes_along(inner, outer, starts)
    if starts is None or along is None:
        return Op("view")
    slices: list[slice | int] = list(starts)  # an axis that is indexed away, unless `inner` runs along it
    for (axis, step), size in zip(along, inner.shape, strict=True):
        start, stop = starts[axis], starts[axis] + (size - 1) * step + 1
        whole = (start, stop, step) == (0, outer.shape[axis], 1)
        slices[axis] = slice(None) if whole else slice(start, stop, step if step > 1 else None)
    # The axes that indexing leaves, renumbered, in the order in which `inner` has them.
    left = sorted(axis for axis, _ in along)
    order = tuple(left.index(axis) for axis, _ in along)
    moved = None if order == tuple(range(len(order))) else order
    if all(part == slice(None) for part in slices):
        return Op("transpose", order=moved) if moved else SAME
    return Op("view", slices=tuple(slices), order=moved)


def _position(offset: int, outer: Memory) -> list[int] | None:
    """The index in `outer` of the element that lies so many bytes from its first."""
    index = [0] * len(outer.shape)
    for axis in sorted(range(len(index)), key=lambda axis: -outer.strides[axis]):
        if outer.shape[axis] > 1 and outer.strides[axis] > 0:
            index[axis], offset = divmod(offset, outer.strides[axis])
    return None if offset else index


def _axes_along(inner: Memory, outer: Memory, starts: list[int]) -> list[tuple[int, int]] | None:
    """For each axis of `inner`, the axis of `outer` along which it runs, and in what steps."""
    free = sorted(range(len(outer.shape)), key=lambda axis: -outer.strides[axis])
    axes: dict[int, tuple[int, int]] = {}
    # Axes that move choose first; those of length one take what is left, in order.
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
    """Both arrays as boxes in one grid, where their strides divide each other; None where they do not."""
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
    room = None
    for stride in strides:
        start, offset = divmod(offset, stride)
        stop = start + sizes.get(stride, 1)
        # A run that wraps into the next longer stride is not a box in this grid.
        if room is not None and stop * stride > room:
            return None
        box.append(range(start, stop))
        room = stride
    return box


def _range_inside(inner: range, outer: range) -> bool:
    return outer.start <= inner.start and inner.stop <= outer.stop


def _ranges_meet(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


def _addresses(memory: Memory) -> set[int]:
    low, axes = _axes(memory)
    steps = [range(0, size * stride, stride) for size, stride in axes]
    return {low + sum(step) for step in product(*steps)}
