"""Arrays that are made from several stored ones when they are read: stacked, concatenated, split, transposed."""

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from leafwise.core.dtypes import number_kind
from leafwise.core.home import Memory
from leafwise.core.roles.recipes import Cut, Flipped, Joined, Lengthened, Recipe, Reshaped, Summed, Taken, Turned, Zeros
from leafwise.errors import WriteError
from leafwise.files.arrays.computed import Computed
from leafwise.files.arrays.slices import Index, box_of, c_strides, is_c_order, sliced
from leafwise.files.arrays.stored import ITEM_BYTES, Storage, Stored, numpy_dtype, spec_of
from leafwise.files.casts import SATURATE, cast_to, misfit

Box = list[tuple[int, int]]  # start and stop along each axis


class Assembled(Computed):
    """The result of a recipe. `inputs` are the stored arrays by name, all of one dtype. The result has another one if
    `dtype` is given."""

    __slots__ = ("inputs", "recipe")
    inputs: Mapping[str, Stored]

    def __init__(self, recipe: Recipe, inputs: Mapping[str, Stored], dtype: str = "") -> None:
        super().__init__(spec_of(recipe.shape, dtype or next(iter(inputs.values())).spec.dtype))
        self.recipe, self.inputs = recipe, inputs

    @property
    def reads_parts(self) -> bool:  # type: ignore[override]
        return self.recipe.can_be_read_in_parts() and all(value.reads_parts for value in self.inputs.values())

    @property
    def is_scattered(self) -> bool:  # type: ignore[override]
        return self.recipe.is_transposed

    def read(self, index: Index = ()) -> Any:
        boxed = box_of(index, self.recipe.shape)
        if boxed is None:
            return super().read(index)
        box, without_axes = boxed
        return self._box(self.recipe, box)[without_axes]

    def whole(self) -> Any:
        import numpy as np

        values = np.empty(self.spec.shape or (), numpy_dtype(self.spec.dtype))
        self.fill(values)
        return values

    def fill(self, out: Any) -> None:
        """Writes the values into an array. At most one stored array is in memory at a time, besides `out`, unless the
        recipe reshapes."""
        self._fill(self.recipe, out)

    def runs(self) -> list[tuple[Storage, int, int, int]] | None:
        itemsize = ITEM_BYTES[self.spec.dtype]
        shape = self.recipe.shape
        return self._runs(self.recipe, Memory(0, shape, c_strides(shape, itemsize), itemsize, self.spec.dtype))

    @property
    def why_unreadable(self) -> str:  # type: ignore[override]
        return next((value.why_unreadable for value in self.inputs.values() if value.why_unreadable), "")

    @property
    def made_from(self) -> Iterable[Stored]:
        return self.inputs.values()

    @property
    def is_live(self) -> bool:  # type: ignore[override]
        return any(value.is_live for value in self.inputs.values())

    def _fill(self, recipe: Recipe, out: Any) -> None:
        if isinstance(recipe, Taken):
            out[...] = self.inputs[recipe.name].read()
        elif isinstance(recipe, Turned):
            self._fill(recipe.inner, out.transpose([recipe.order.index(axis) for axis in range(len(recipe.order))]))
        elif isinstance(recipe, Joined):
            for part, taken in _taken(recipe):
                self._fill(part, out[taken])
        else:
            out[...] = self._array(recipe)

    def _box(self, recipe: Recipe, box: Box) -> Any:
        """The part of a recipe's result between a start and a stop along each axis."""
        if isinstance(recipe, Taken):
            return self.inputs[recipe.name].read(tuple(slice(*ends) for ends in box))
        if isinstance(recipe, Turned):
            inner = [box[recipe.order.index(axis)] for axis in range(len(box))]
            return self._box(recipe.inner, inner).transpose(recipe.order)
        if isinstance(recipe, Cut):
            start, stop = box[recipe.axis]
            return self._box(recipe.inner, _along(recipe.axis, (recipe.start + start, recipe.start + stop), box))
        if isinstance(recipe, Joined):
            return self._joined_box(recipe, box)
        if isinstance(recipe, Lengthened):
            return self._padded_box(recipe, box)
        return self._array(recipe)[tuple(slice(*ends) for ends in box)]

    def _joined_box(self, recipe: Joined, box: Box) -> Any:
        import numpy as np

        first, last = box[recipe.axis]
        values = np.empty([stop - start for start, stop in box], numpy_dtype(self.spec.dtype))
        at = 0
        for part in recipe.parts:
            size = 1 if recipe.is_stack else part.shape[recipe.axis]
            start, stop = max(first, at), min(last, at + size)
            if start < stop:
                place: Any = start - first if recipe.is_stack else slice(start - first, stop - first)
                inner = _along(recipe.axis, (start - at, stop - at), box)
                if recipe.is_stack:
                    del inner[recipe.axis]
                values[(*[slice(None)] * recipe.axis, place)] = self._box(part, inner)
            at += size
        return values

    def _padded_box(self, recipe: Lengthened, box: Box) -> Any:
        import numpy as np

        start, stop = box[recipe.axis]
        old = recipe.inner.shape[recipe.axis]
        values = np.empty([stop - start for start, stop in box], numpy_dtype(self.spec.dtype))
        ahead = [slice(None)] * recipe.axis
        kept = min(stop, old) - start
        if kept > 0:
            values[(*ahead, slice(kept))] = self._box(recipe.inner, _along(recipe.axis, (start, start + kept), box))
        if kept < stop - start:
            fill = recipe.fill
            new = self._box(fill, _along(recipe.axis, (0, 1), box)) if isinstance(fill, Recipe) else fill
            values[(*ahead, slice(max(kept, 0), None))] = new
        return values

    def _runs(self, recipe: Recipe, out: Memory) -> list[tuple[Storage, int, int, int]] | None:
        if isinstance(recipe, Joined):
            runs = []
            for part, taken in _taken(recipe):
                offset, shape, strides = sliced(out, taken)
                further = self._runs(part, out._replace(offset=offset, shape=shape, strides=strides))
                if further is None:
                    return None
                runs += further
            return runs
        run = self.inputs[recipe.name].plain_run() if isinstance(recipe, Taken) else None
        if run is None or not is_c_order(out):
            return None
        storage, start, stop = run
        return [(storage, start, out.offset, stop - start)] if prod(out.shape) * out.itemsize == stop - start else None

    def _array(self, recipe: Recipe) -> Any:
        import numpy as np

        if isinstance(recipe, Reshaped):
            return self._array(recipe.inner).reshape(recipe.shape)
        if isinstance(recipe, Flipped):
            return np.flip(self._array(recipe.inner), recipe.axes)
        if isinstance(recipe, Zeros):
            return np.zeros(recipe.shape, numpy_dtype(self.spec.dtype))
        if isinstance(recipe, Summed):
            return self._sum(recipe)
        if isinstance(recipe, Taken):
            return self.inputs[recipe.name].read()
        if isinstance(recipe, Cut | Lengthened):
            return self._box(recipe, [(0, size) for size in recipe.shape])
        values = np.empty(recipe.shape, numpy_dtype(self.spec.dtype))
        self._fill(recipe, values)
        return values

    def _sum(self, recipe: Summed) -> Any:
        """A sum of floating-point numbers, computed in float64 and rounded once. Raises if it does not fit."""
        dtype = self.spec.dtype
        wide = "float64" if number_kind(dtype) == "float" else dtype
        first, *others = (cast_to(self._array(part), wide) for part in recipe.parts)
        total = sum(others, first)
        if reason := misfit(total, dtype):
            raise WriteError(f"cannot load the sum of {' and '.join(recipe.names())}: {reason}; {SATURATE}")
        return cast_to(total, dtype)


def _along(axis: int, ends: tuple[int, int], box: Box) -> Box:
    """A box with another start and stop along one axis."""
    return [*box[:axis], ends, *box[axis + 1 :]]


def _taken(recipe: Joined) -> Iterator[tuple[Recipe, Index]]:
    """The parts of joined arrays, each with the index of its place in the whole."""
    at = 0
    for part in recipe.parts:
        size = 1 if recipe.is_stack else part.shape[recipe.axis]
        yield part, (*[slice(None)] * recipe.axis, at if recipe.is_stack else slice(at, at + size), ...)
        at += size
