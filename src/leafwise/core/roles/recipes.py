"""How an array is made from arrays of a checkpoint that stores it in another form: fused, split, transposed.

A recipe only describes: it has the shape of its result and the names that it takes values from. Values are not read
here; `files.arrays.assembled` reads them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

Shape = tuple[int, ...]


class RecipeError(ValueError):
    """The shapes in a recipe do not fit together."""


class Recipe:
    """The base of all recipes. `shape` is the shape of the result; `of` are the recipes it is made from."""

    shape: Shape
    word = ""  # what a plan says about it

    @property
    def of(self) -> "Sequence[Recipe]":
        return ()

    def names(self) -> list[str]:
        """The names of the stored arrays, each once, in the order in which they are used."""
        return list(dict.fromkeys(part.name for part in self._parts() if isinstance(part, Taken)))

    def words(self) -> tuple[str, ...]:
        """What is done to the stored arrays, in the order in which it is done.

        >>> Turned(stacked([Taken("a", (2, 3)), Taken("b", (2, 3))], 0), (0, 2, 1)).words()
        ('stacked', 'transposed')
        """
        return tuple(dict.fromkeys(part.word for part in self._parts() if part.word))

    def renamed(self, new_name: Callable[[str], str]) -> "Recipe":
        """The same recipe for arrays with other names."""
        raise NotImplementedError

    def can_be_read_in_parts(self) -> bool:
        """Whether a part of the result needs only parts of the stored arrays."""
        return not any(isinstance(part, Reshaped | Flipped | Summed | Zeros) for part in self._parts())

    @property
    def is_transposed(self) -> bool:
        """Whether the axes of a stored array are in another order."""
        return any(isinstance(part, Turned) for part in self._parts())

    def _parts(self) -> "Iterator[Recipe]":
        for part in self.of:
            yield from part._parts()
        yield self


@dataclass(frozen=True)
class Taken(Recipe):
    """A stored array as it is."""

    name: str
    shape: Shape

    def renamed(self, new_name: Callable[[str], str]) -> Recipe:
        return replace(self, name=new_name(self.name))


@dataclass(frozen=True)
class _OfOne(Recipe):
    """A recipe that is made from one other."""

    inner: Recipe

    @property
    def of(self) -> Sequence[Recipe]:
        return (self.inner,)

    def renamed(self, new_name: Callable[[str], str]) -> Recipe:
        return replace(self, inner=self.inner.renamed(new_name))


@dataclass(frozen=True)
class Turned(_OfOne):
    """Another order of axes. `axes`, if they are known, are the names of the axes before and after."""

    order: tuple[int, ...]
    axes: str = ""

    @property
    def word(self) -> str:  # type: ignore[override]
        return f"transposed ({self.axes})" if self.axes else "transposed"

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.inner.shape))):
            raise RecipeError(f"an array of shape {self.inner.shape} does not have the axes {self.order}")

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        return tuple(self.inner.shape[axis] for axis in self.order)


@dataclass(frozen=True)
class Reshaped(_OfOne):
    """The same elements, in C order, in another shape."""

    shape: Shape
    word = "reshaped"

    def __post_init__(self) -> None:
        if prod(self.shape) != prod(self.inner.shape):
            raise RecipeError(f"an array of shape {self.inner.shape} cannot have the shape {self.shape}")


@dataclass(frozen=True)
class Flipped(_OfOne):
    """The elements along some axes in reverse."""

    axes: tuple[int, ...]
    word = "flipped"

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        return self.inner.shape


@dataclass(frozen=True)
class Zeros(_OfOne):
    """Zeros of the dtype of another array, whose values are not used."""

    shape: Shape
    word = "zeros"

    def words(self) -> tuple[str, ...]:
        return (self.word,)


@dataclass(frozen=True)
class Cut(_OfOne):
    """A part along one axis."""

    axis: int
    start: int
    stop: int
    word = "split"

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop <= self.inner.shape[self.axis]:
            raise RecipeError(f"axis {self.axis} of {self.inner.shape} has no part from {self.start} to {self.stop}")

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        shape = self.inner.shape
        return (*shape[: self.axis], self.stop - self.start, *shape[self.axis + 1 :])


@dataclass(frozen=True)
class Lengthened(_OfOne):
    """An array that is longer along one axis. `fill` is the value of the new elements, or a recipe with their values:
    its shape is that of the array, with size 1 along the axis."""

    axis: int
    size: int
    fill: "float | Recipe" = 0.0
    word = "padded"

    def __post_init__(self) -> None:
        if self.size < self.inner.shape[self.axis]:
            raise RecipeError(f"axis {self.axis} of {self.inner.shape} is longer than {self.size}")
        expected = (*self.inner.shape[: self.axis], 1, *self.inner.shape[self.axis + 1 :])
        if isinstance(self.fill, Recipe) and self.fill.shape != expected:
            raise RecipeError(f"an array of shape {self.inner.shape} cannot be padded with {self.fill.shape}")

    @property
    def of(self) -> Sequence[Recipe]:
        return (self.inner, self.fill) if isinstance(self.fill, Recipe) else (self.inner,)

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        return (*self.inner.shape[: self.axis], self.size, *self.inner.shape[self.axis + 1 :])

    def renamed(self, new_name: Callable[[str], str]) -> Recipe:
        fill = self.fill.renamed(new_name) if isinstance(self.fill, Recipe) else self.fill
        return replace(self, inner=self.inner.renamed(new_name), fill=fill)


@dataclass(frozen=True)
class OfParts(Recipe):
    """An array that is made from several."""

    parts: tuple[Recipe, ...]

    @property
    def of(self) -> Sequence[Recipe]:
        return self.parts

    def renamed(self, new_name: Callable[[str], str]) -> Recipe:
        return replace(self, parts=tuple(part.renamed(new_name) for part in self.parts))


@dataclass(frozen=True)
class Summed(OfParts):
    """The sum of arrays of one shape."""

    word = "summed"

    def __post_init__(self) -> None:
        if len({part.shape for part in self.parts}) != 1:
            raise RecipeError(f"arrays of different shapes cannot be added: {_listed(self.parts)}")

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        return self.parts[0].shape


@dataclass(frozen=True)
class Joined(OfParts):
    """Arrays one after the other along an axis, or, if they are stacked, along a new one."""

    axis: int
    is_stack: bool

    @property
    def word(self) -> str:  # type: ignore[override]
        return "stacked" if self.is_stack else "concatenated"

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        first = self.parts[0].shape
        if self.is_stack:
            return (*first[: self.axis], len(self.parts), *first[self.axis :])
        return (*first[: self.axis], sum(part.shape[self.axis] for part in self.parts), *first[self.axis + 1 :])


# -- ways to make recipes ---------------------------------------------------------------------------------------------


def axis_of(axis: int, ndim: int) -> int:
    """An axis counted from the first one. Raises if there is no such axis."""
    if not -ndim <= axis < ndim:
        raise RecipeError(f"an array with {ndim} axes has no axis {axis}")
    return axis % ndim


def stacked(parts: Sequence[Recipe], axis: int) -> Recipe:
    """Arrays of one shape along a new axis."""
    shapes = {part.shape for part in parts}
    if len(shapes) != 1:
        raise RecipeError(f"arrays of different shapes cannot be stacked: {_listed(parts)}")
    return Joined(tuple(parts), axis_of(axis, len(parts[0].shape) + 1), is_stack=True)


def concatenated(parts: Sequence[Recipe], axis: int) -> Recipe:
    """Arrays one after the other along an axis."""
    axis = axis_of(axis, len(parts[0].shape)) if parts else 0
    shapes = {(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}
    if len(shapes) != 1 or len({len(part.shape) for part in parts}) != 1:
        raise RecipeError(f"arrays of these shapes cannot be concatenated along axis {axis}: {_listed(parts)}")
    return parts[0] if len(parts) == 1 else Joined(tuple(parts), axis, is_stack=False)


def cut(recipe: Recipe, axis: int, sizes: Sequence[int]) -> list[Recipe]:
    """The parts of these sizes along an axis, which must add up to all of it."""
    axis = axis_of(axis, len(recipe.shape))
    if sum(sizes) != recipe.shape[axis]:
        raise RecipeError(f"axis {axis} of {recipe.shape} cannot be split into {', '.join(map(str, sizes))}")
    if len(sizes) == 1:
        return [recipe]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [Cut(recipe, axis, start, start + size) for start, size in zip(starts, sizes, strict=True)]


def swapped(recipe: Recipe, first: int, second: int) -> Recipe:
    """An array with two of its axes exchanged."""
    ndim = len(recipe.shape)
    first, second = axis_of(first, ndim), axis_of(second, ndim)
    order = list(range(ndim))
    order[first], order[second] = order[second], order[first]
    return Turned(recipe, tuple(order))


def _listed(parts: Sequence[Recipe]) -> str:
    named = [f"{(part.names() or ['?'])[0]} {part.shape}" for part in parts[:3]]
    return ", ".join(named) + (", …" if len(parts) > 3 else "")


# -- names of many arrays ---------------------------------------------------------------------------------------------


def folded(names: Sequence[str]) -> str:
    """Names that differ only in numbers, written as one.

    >>> folded(["e.0.w1", "e.1.w1", "e.2.w1", "e.0.w3", "e.1.w3", "e.2.w3", "bias"])
    'e.{0..2}.w{1,3} + bias'
    >>> folded(["e.0.w1", "e.1.w3"])
    'e.0.w1 + e.1.w3'
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        groups.setdefault(tuple(re.split(r"\d+", name)), []).append(name)
    return " + ".join(_folded(texts, members) for texts, members in groups.items())


def _folded(texts: tuple[str, ...], names: list[str]) -> str:
    """Names with the same texts between their numbers."""
    columns = [
        list(dict.fromkeys(column)) for column in zip(*(re.findall(r"\d+", name) for name in names), strict=True)
    ]
    if prod(map(len, columns)) != len(names):  # not every combination of the numbers
        return " + ".join(names[:4]) + (" + …" if len(names) > 4 else "")
    return texts[0] + "".join(_numbers(column) + text for column, text in zip(columns, texts[1:], strict=True))


def _numbers(column: list[str]) -> str:
    if len(column) == 1:
        return column[0]
    return f"{{{column[0]}..{column[-1]}}}" if _is_range(column) else f"{{{','.join(column)}}}"


def _is_range(numbers: list[str]) -> bool:
    """Whether numbers follow each other. A file may contain numbers with any number of digits."""
    if any(len(number) > 9 for number in numbers):
        return False
    first = int(numbers[0])
    return len(numbers) > 2 and [int(number) for number in numbers] == list(range(first, first + len(numbers)))
