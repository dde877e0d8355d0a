"""What a load copies: a plan becomes one list of copies, from arrays of the source to arrays of the model.

The source of a copy is a lazy array: of a file, made from several arrays of a file, or in memory. Sharding only chooses
which parts of it are copied, and where to.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from leafwise.checkpoint.loading.source_values import SourceValues
from leafwise.checkpoint.planning.plan import Feed, Plan, turned_shape
from leafwise.core.capabilities.loading import Loading
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.columns import Batch
from leafwise.core.home import Home, Spec
from leafwise.errors import Error, LoadError
from leafwise.files.arrays.stored import Stored
from leafwise.files.arrays.subarrays import before_turn, subarray


class Copy(NamedTuple):
    """Values of the source that go into an array of the model, or into a part of it in this process.

    `array` has the values, and `target` gets them; `spec` is that of the target. The target of a part is over the
    memory of the part, and `part` is its number. `is_new` means that the target will replace the array in the model:
    it has new memory, or shows how the new array must be. `casts` says where values are cast: on a "device", on the
    "host", or nowhere. If they are `verified`, their checksums were compared.
    """

    feed: Feed
    array: Stored
    home: Home
    target: Any
    spec: Spec
    is_new: bool
    part: int | None = None
    casts: str = ""
    verified: bool = False

    @property
    def key(self) -> tuple[int, int | None]:
        """Identifies the target: the row of the leaf, and the number of the part."""
        return self.feed.row, self.part

    @property
    def is_far(self) -> bool:
        """Whether it is a part that is on another machine, so that it is read only once."""
        return self.part is not None and not is_local(self.array)


def is_local(array: Stored) -> bool:
    """Whether a stored array is on this machine."""
    return all(storage.source.is_local for storage in array.storages())


def by_home(copies: Iterable[Copy]) -> dict[Home, list[Copy]]:
    copies_of: dict[Home, list[Copy]] = {}
    for copy in copies:
        copies_of.setdefault(copy.home, []).append(copy)
    return copies_of


class Copies(NamedTuple):
    """The copies of a load; `new` are the arrays that already have memory and will replace others, by row, and
    `sharded` the arrays in the model of which this process fills its parts, perhaps none."""

    copies: list[Copy]
    new: dict[int, Any]
    sharded: list[tuple[Home, Any]]


def planned_copies(plan: Plan, source: SourceValues, replaced: set[int], tied_later: set[int]) -> Copies:
    """The copies that carry out a plan. Leaves in `replaced` get new arrays, and those in `tied_later` none, because
    they will be tied to one that is filled. Raises if an array cannot be read or written."""
    columns, made = plan.target.columns, Copies([], {}, [])
    arrays = source.arrays([feed.source for feed in plan.feeds])
    chosen = [number for number, feed in enumerate(plan.feeds) if feed.row not in tied_later]
    for batch in columns.batches([plan.feeds[number].row for number in chosen]):
        numbers = [chosen[position] for position in batch.positions]
        specs = batch.specs
        are_new = [
            spec.shape is None or spec.device == "meta" or columns.ties.get(row, row) in replaced
            for spec, row in zip(specs, batch.rows, strict=True)
        ]
        for number, reason in zip(numbers, _reasons(batch, specs, are_new), strict=True):
            if reason:
                name = plan.feeds[number].name
                raise LoadError(f"cannot load {name}: {reason}; nothing was changed", plan)
        for number, value, spec, is_new in zip(numbers, batch.values, specs, are_new, strict=True):
            feed, home = plan.feeds[number], batch.home
            if is_new and home.in_place:
                value = _allocated(plan, home, value, turned_shape(arrays[number].spec.shape or (), feed.order), feed)
            if is_new and (home.in_place or spec.sharding is not None):
                made.new[feed.row] = value
            casts = "host" if "cast" in feed.how else ""
            if spec.sharding is None:
                made.copies.append(Copy(feed, arrays[number], home, value, spec, is_new, casts=casts))
                continue
            if not is_new:
                made.sharded.append((home, value))
            for part_number, part in enumerate(home.capability(Distributing).parts(value)):
                array = subarray(arrays[number], before_turn(part.inside(), feed.order))
                part_spec = home.spec(part.value)
                made.copies.append(Copy(feed, array, home, part.value, part_spec, is_new, part_number, casts))
    return made


def _reasons(batch: Batch, specs: Sequence[Spec], are_new: Sequence[bool]) -> Sequence[str]:
    """For each array, why it cannot get values; empty if it can."""
    home, values = batch.home, batch.values
    if not any(are_new):
        reasons = home.capability(Loading).cannot_write(values)
    else:
        reasons = [""] * len(values)
        old = [number for number, is_new in enumerate(are_new) if not is_new]
        for number, reason in zip(
            old, home.capability(Loading).cannot_write([values[number] for number in old]), strict=True
        ):
            reasons[number] = reason
        if not home.in_place:
            cannot_renew = home.capability(Rebuilding).cannot_renew
            reasons = [
                cannot_renew(value) if is_new else reason
                for value, is_new, reason in zip(values, are_new, reasons, strict=True)
            ]
    if any(spec.sharding is not None for spec in specs):
        distributing = home.capability(Distributing)
        reasons = [
            reason if is_new or spec.sharding is None else distributing.cannot_use_parts(value) or reason
            for value, spec, is_new, reason in zip(values, specs, are_new, reasons, strict=True)
        ]
    return reasons


def _allocated(plan: Plan, home: Home, value: Any, shape: tuple[int, ...], feed: Feed) -> Any:
    try:
        return home.capability(Rebuilding).allocate(value, shape)
    except Error as error:
        raise LoadError(f"cannot load {feed.name}: {error}; nothing was changed", plan) from error
