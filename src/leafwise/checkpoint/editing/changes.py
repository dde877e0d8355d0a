"""Changes to the arrays of a checkpoint: transposed, resized, split, fused, cast, tied."""

from collections import Counter
from collections.abc import Callable, Iterable
from math import prod
from typing import Any, NamedTuple

from leafwise.checkpoint.editing.arguments import NamePattern, Parts, Resize
from leafwise.checkpoint.editing.contents import Contents, EditedArray, TiedName
from leafwise.checkpoint.editing.result import Steps
from leafwise.core.dtypes import is_float
from leafwise.core.leaf import shape_text
from leafwise.core.memory.ops import SAME, Op
from leafwise.core.path import escape
from leafwise.core.roles.recipes import Cut, Lengthened, Recipe, RecipeError, Taken, Turned, axis_of, concatenated, cut
from leafwise.files.arrays.derived import MeanAlong
from leafwise.files.casts import number_misfit
from leafwise.files.record import Role

Named = Callable[[Any], list[str]]  # the names that a query matches


class MustEqual(NamedTuple):
    """An array that may become another name of a stored array, or a view of it, only if its values are equal."""

    name: str
    array: EditedArray
    stored: str
    target: EditedArray
    op: Op


class Changes:
    """Applies changes to contents. `named` returns the names in the source that a query matches."""

    def __init__(self, contents: Contents, named: Named, steps: Steps) -> None:
        self.contents, self._named, self.steps = contents, named, steps
        self.reshaped: set[str] = set()  # names of arrays whose shape is not the one that they had
        self.equal: list[MustEqual] = []

    # -- each array by itself ---------------------------------------------------------------------------

    def transpose(self, query: Any, order: tuple[int, ...] | None) -> None:
        def turned(array: EditedArray) -> Recipe:
            ndim = len(array.shape)
            if order is None and ndim != 2:
                count = f"{ndim} axis" if ndim == 1 else f"{ndim} axes"
                raise RecipeError(f"it has {count}; give their new order, as in transpose={{…: (3, 2, 0, 1)}}")
            new = (1, 0) if order is None else order
            recipe = Turned(array.recipe, new)
            role, axes = array.role
            array.role = role, None if axes is None or len(axes) != ndim else tuple(axes[axis] for axis in new)
            return recipe

        self._each("transpose", query, turned, lambda old, new: "")

    def resize(self, query: Any, resize: Resize) -> None:
        def resized(array: EditedArray) -> Recipe:
            axis = axis_of(resize.axis, len(array.shape))
            old = array.shape[axis]
            if resize.size == old:
                raise RecipeError(f"axis {axis} already has size {old}")
            if resize.size < old:
                return Cut(array.recipe, axis, 0, resize.size)
            if resize.fill == "mean":
                if not is_float(array.dtype) or not old:
                    raise RecipeError(f"the mean of {old} elements of {array.dtype} cannot be computed")
                return Lengthened(array.recipe, axis, resize.size, self._mean(array, axis))
            if reason := number_misfit(float(resize.fill), array.dtype):
                raise RecipeError(reason)
            return Lengthened(array.recipe, axis, resize.size, float(resize.fill))

        fill = f"filled with {'the mean' if resize.fill == 'mean' else f'{resize.fill:g}'}"
        self._each("resize", query, resized, lambda old, new: fill if prod(new) > prod(old) else "cut")

    def _mean(self, array: EditedArray, axis: int) -> Recipe:
        """The mean of an array along an axis, as a further input."""
        mean = MeanAlong(self.contents.value_of(array.recipe), axis)
        name = f"mean of {array.recipe.names()[0]} along {axis}"
        self.contents.values[name] = mean
        return Taken(name, mean.spec.shape or ())

    def _each(
        self,
        verb: str,
        query: Any,
        change: Callable[[EditedArray], Recipe],
        remark: Callable[[tuple[int, ...], tuple[int, ...]], str],
    ) -> None:
        """Changes each array that a query matches, and adds one step for all that change in the same way."""
        stored = self._stored_of(verb, query)
        groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
        added: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()  # bytes
        for name in stored:
            array = self.contents.arrays[name]
            try:
                self._check_views(name)
                before, nbytes = array.shape, array.nbytes
                array.changed(change(array), verb)
            except RecipeError as error:
                self.steps.problems.append(f"cannot {verb} {escape(name)} {shape_text(array.shape)}: {error}")
                continue
            self.reshaped.add(name)
            groups.setdefault((before, array.shape), []).append(name)
            added[before, array.shape] += array.nbytes - nbytes
        for (before, after), names in groups.items():
            further = remark(before, after)
            shapes = f"{shape_text(before)} → {shape_text(after)}" + (f", {further}" if further else "")
            self.steps.add(verb, shapes, names, added[before, after])

    def cast(self, casts: Iterable[tuple[Any, str]]) -> None:
        """Sets the dtype of each floating-point array to that of the last query that matches it. A query for
        everything leaves the state of optimizers as it is."""
        wanted: dict[str, str] = {}
        for query, dtype in casts:
            everything = query == "**"
            matched = self._stored_of("cast", query)
            stored = [
                name
                for name in matched
                if is_float(self.contents.arrays[name].dtype)
                and not (everything and self.contents.arrays[name].kind == "s")
            ]
            if matched and not stored and not everything:
                self.steps.problems.append(f"cast= {query!r} matches no floating-point array")
            wanted |= dict.fromkeys(stored, dtype)
        groups: dict[tuple[str, str], list[str]] = {}
        added: Counter[tuple[str, str]] = Counter()  # bytes
        for name, dtype in wanted.items():
            array = self.contents.arrays[name]
            if array.dtype != dtype:
                key = array.dtype, dtype
                before = array.nbytes
                array.dtype = dtype
                array.changes.append(f"cast {key[0]} → {dtype}")
                groups.setdefault(key, []).append(name)
                added[key] += array.nbytes - before
        for key, names in groups.items():
            self.steps.add("cast", f"{key[0]} → {key[1]}", names, added[key])

    def _stored_of(self, option: str, query: Any) -> list[str]:
        """The arrays that a query matches under any of their names."""
        names = [name for name in self._named(query) if name in self.contents.arrays or name in self.contents.ties]
        if not names:
            self.steps.matched_nothing(option, query)
        return list(dict.fromkeys(self.contents.stored_name(name) for name in names))

    def _check_views(self, stored: str) -> None:
        """Raises if another name is a view of an array, which would not fit its new shape."""
        for name, tied in self.contents.ties.items():
            if tied.of == stored and tied.op != "same":
                raise RecipeError(f"{escape(name)} is tied to it{tied.op.describe()}; untie it, as in untie={name!r}")

    # -- several arrays ---------------------------------------------------------------------------------

    def split(self, parts: Parts) -> None:
        contents = self.contents
        pattern = NamePattern(parts.pattern)
        prefixes = {name: prefix for name in contents.names() if (prefix := pattern.prefix(name)) is not None}
        if not prefixes:
            self.steps.matched_nothing("split", parts.pattern)
            return
        made: list[str] = []
        sizes_used = set()
        for name, prefix in prefixes.items():
            if not self._is_free(name, "split"):
                continue
            array = contents.arrays[name]
            if not array.shape:
                continue  # a single number, such as the scale of a quantized layer, belongs to none of the parts
            try:
                recipes, sizes = _split(array.recipe, parts)
            except RecipeError as error:
                self.steps.problems.append(f"cannot split {escape(name)} {shape_text(array.shape)}: {error}")
                continue
            sizes_used.add(sizes)
            del contents.arrays[name]
            for part, recipe in zip(parts.names, recipes, strict=True):
                new = _replaced(name, prefix, part)
                made.append(new)
                self._put(new, EditedArray(recipe, array.dtype, array.kind, _part_role(array.role), None, ["split"]))
        into = ", ".join(parts.names)
        sizes_text = " or ".join("+".join(map(str, sizes)) for sizes in sorted(sizes_used))
        self.steps.add("split", f"{parts.pattern} → {into} ({sizes_text} along axis {parts.axis})", list(prefixes))
        self.reshaped.update(prefixes, made)

    def fuse(self, parts: Parts) -> None:
        contents = self.contents
        assert parts.whole is not None
        patterns = [NamePattern(f"{parts.pattern}{name}") for name in parts.names]
        groups: dict[tuple[str, str], dict[int, str]] = {}  # what is before and after the entry → names by part
        for name in contents.names():
            for number, pattern in enumerate(patterns):
                prefix = pattern.prefix(name)
                if prefix is not None:
                    groups.setdefault((prefix.rpartition(".")[0], name[len(prefix) :]), {})[number] = name
        shown = f"{parts.pattern}{{{','.join(parts.names)}}}"
        if not groups:
            self.steps.matched_nothing("fuse", shown)
            return
        used = []
        for (before, after), names in groups.items():
            if len(names) < len(patterns):
                lacking = next(part for number, part in enumerate(parts.names) if number not in names)
                there = escape(next(iter(names.values())))
                self.steps.problems.append(f"cannot fuse {there}: there is no part {lacking!r} beside it")
                continue
            ordered = [names[number] for number in range(len(patterns))]
            if all(self._is_free(name, "fuse") for name in ordered):
                self._fuse(ordered, parts, f"{before}.{parts.whole}{after}" if before else f"{parts.whole}{after}")
                used += ordered
        self.steps.add("fuse", f"{shown} → {parts.whole} (along axis {parts.axis})", used)
        self.reshaped.update(used)

    def _fuse(self, names: list[str], parts: Parts, new: str) -> None:
        arrays = [self.contents.arrays[name] for name in names]
        first = arrays[0]
        try:
            if len({array.dtype for array in arrays}) > 1:
                raise RecipeError(f"the dtypes differ: {', '.join(array.dtype for array in arrays)}")
            recipe = _fused([array.recipe for array in arrays], parts)
        except RecipeError as error:
            self.steps.problems.append(f"cannot fuse {', '.join(map(escape, names))}: {error}")
            return
        for name in names:
            del self.contents.arrays[name]
        role = _part_role(first.role) if len({array.role for array in arrays}) == 1 else (None, None)
        self.reshaped.add(new)
        self._put(new, EditedArray(recipe, first.dtype, first.kind, role, None, ["fuse"]))

    def _is_free(self, name: str, verb: str) -> bool:
        """Whether an array has one name only; adds a problem if it is tied."""
        contents = self.contents
        if name not in contents.arrays and name not in contents.ties:
            self.steps.problems.append(f"cannot {verb} {escape(name)}: another split= or fuse= uses it, too")
            return False
        names = contents.names_of(contents.stored_name(name))
        if len(names) > 1:
            others = ", ".join(escape(other) for other in names if other != name)
            self.steps.problems.append(
                f"cannot {verb} {escape(name)}: it is tied to {others}; untie it, as in untie={name!r}"
            )
        return len(names) == 1

    def _put(self, name: str, array: EditedArray) -> None:
        if name in self.contents.arrays or name in self.contents.ties:
            self.steps.problems.append(f"two arrays would be called {escape(name)!r}; drop or rename one of them")
        self.contents.arrays[name] = array

    # -- ties -------------------------------------------------------------------------------------------

    def tie(self, name: str, to: str) -> None:
        """Makes a name a further name of another array. An array that has the name must be equal to the other."""
        contents = self.contents
        known = {*contents.arrays, *contents.ties}
        transposed = to not in known and to.endswith(".T") and to[:-2] in known
        of = to[:-2] if transposed else to
        if of not in known:
            self.steps.problems.append(
                f"cannot tie {escape(name)} to {escape(to)}, which is not among the arrays that are written"
            )
            return
        op = Op("transpose", order=(1, 0)) if transposed else SAME
        if reason := self._cannot_tie(name, of, op):
            self.steps.problems.append(f"cannot tie {escape(name)} to {escape(of)}{op.describe()}: {reason}")
            return
        stored = contents.stored_name(of)
        own = contents.arrays.pop(name, None)
        role = own.role if own is not None else contents.arrays[stored].role
        for other, tied in list(contents.ties.items()):  # what was tied to this array is now tied to the other one
            if tied.of == name:
                contents.ties[other] = TiedName(stored, op, tied.role)
        contents.ties[name] = TiedName(stored, op, role)
        if own is not None:
            self.equal.append(MustEqual(name, own, stored, contents.arrays[stored], op))
        self.steps.add("tie", f"{name} = {of}{op.describe()}", [name], 0 if own is None else -own.nbytes)

    def _cannot_tie(self, name: str, of: str, op: Op) -> str:
        contents = self.contents
        stored = contents.stored_name(of)
        if contents.stored_name(name) == stored:
            return "they are tied already" if name != of else "it is the same array"
        if of in contents.ties and contents.ties[of].op != "same":
            return f"that is {escape(stored)}{contents.ties[of].op.describe()}, and only whole arrays can be tied to"
        if name in contents.ties:
            return f"it is tied to {escape(contents.ties[name].of)}; untie it, as in untie={name!r}"
        target, own = contents.arrays[stored], contents.arrays.get(name)
        shape = target.shape[::-1] if op != "same" else target.shape
        if op != "same" and len(target.shape) != 2:
            return f"only arrays with two axes can be tied transposed, and it has {len(target.shape)}"
        if own is not None and (own.shape, own.dtype) != (shape, target.dtype):
            return f"it is {shape_text(own.shape)} {own.dtype}, not {shape_text(shape)} {target.dtype}"
        if any(tied.of == name and tied.op != "same" for tied in contents.ties.values()):
            return "other names are views of it; untie them first"
        if op != "same" and any(tied.of == name for tied in contents.ties.values()):
            return "other names are tied to it; untie them first"
        return ""


def _replaced(name: str, prefix: str, entry: str) -> str:
    """A name in which the last entry of its prefix is another one."""
    before = prefix.rpartition(".")[0]
    return (f"{before}.{entry}" if before else entry) + name[len(prefix) :]


def _part_role(role: Role) -> Role:
    """The role of a part, or of parts that were joined: that of the whole, unless it describes all of an attention."""
    name, _ = role
    return (None, None) if name is not None and name.startswith(("attention.", "rnn.")) else role


def _axis(parts: Parts, recipe: Recipe) -> int:
    if len(recipe.shape) <= parts.axis:
        raise RecipeError(f"it has no axis {parts.axis}; axis=-1 is the last axis of weights and of biases")
    return axis_of(parts.axis, len(recipe.shape))


def _split(recipe: Recipe, parts: Parts) -> tuple[list[Recipe], tuple[int, ...]]:
    axis = _axis(parts, recipe)
    length, count = recipe.shape[axis], len(parts.names)
    sizes = parts.sizes
    if sizes is None:
        if length % count:
            raise RecipeError(f"axis {axis} has {length} elements, which is not a multiple of {count}; give sizes")
        sizes = (length // count,) * count
    if any(size % parts.heads for size in sizes):
        raise RecipeError(f"the sizes {', '.join(map(str, sizes))} are not multiples of {parts.heads} heads")
    pieces = cut(recipe, axis, [size // parts.heads for _ in range(parts.heads) for size in sizes])
    return [concatenated(pieces[number::count], axis) for number in range(count)], sizes


def _fused(recipes: list[Recipe], parts: Parts) -> Recipe:
    axis = _axis(parts, recipes[0])
    if parts.heads == 1:
        return concatenated(recipes, axis)
    for recipe in recipes:
        if len(recipe.shape) <= axis or recipe.shape[axis] % parts.heads:
            raise RecipeError(f"axis {axis} of {recipe.shape} is not a multiple of {parts.heads} heads")
    by_head = [cut(recipe, axis, [recipe.shape[axis] // parts.heads] * parts.heads) for recipe in recipes]
    return concatenated([pieces[head] for head in range(parts.heads) for pieces in by_head], axis)
