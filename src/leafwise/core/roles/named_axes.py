"""Arrays with named axes: how one layout becomes another.

Axes are those of roles (`core.roles.role_table`). Three things are more than another order. `heads` and `head_dim`
together are the outputs of a projection, or the inputs of the last one. `-h` is the axis `h` in reverse. And an axis
that only one side has must have length 1.
"""

from math import prod

from leafwise.core.roles.recipes import Flipped, Recipe, RecipeError, Reshaped, Shape, Turned

Names = tuple[str, ...]

_HEADS = ("heads", "head_dim")


def laid_out(recipe: Recipe, axes: Names, wanted: Names, shape: Shape | None) -> Recipe:
    """An array with `axes` as an array with the axes `wanted`. `shape` is the shape that it should have; it is needed
    only to divide an axis into heads. Raises `RecipeError` if the axes do not fit.

    >>> from leafwise.core.roles.recipes import Taken
    >>> laid_out(Taken("weight", (8, 3)), ("out", "in"), ("in", "out"), (3, 8)).words()
    ('transposed (out, in → in, out)',)
    """
    if axes == wanted:
        return recipe
    reason = f"its axes are ({', '.join(axes)}), and cannot become ({', '.join(wanted)})"
    inner, names = _merged(recipe, axes, wanted)
    names_wanted = _names_merged(wanted, axes)
    kept = [axis for axis, name in enumerate(names) if _bare(name) in map(_bare, names_wanted)]
    if len(kept) < len(names):
        if any(inner.shape[axis] != 1 for axis in range(len(names)) if axis not in kept):
            raise RecipeError(reason)
        inner = Reshaped(inner, tuple(inner.shape[axis] for axis in kept))
        names = tuple(names[axis] for axis in kept)
    bare = list(map(_bare, names))
    present = [name for name in names_wanted if _bare(name) in bare]
    if len(set(bare)) < len(bare) or len(present) < len(names):
        raise RecipeError(reason)
    order = tuple(bare.index(_bare(name)) for name in present)
    if order != tuple(range(len(order))):
        inner = Turned(inner, order, f"{', '.join(names)} → {', '.join(present)}")
    flips = tuple(place for place, name in enumerate(present) if name != names[order[place]])
    inner = Flipped(inner, flips) if flips else inner
    if len(present) < len(wanted) and shape is not None and prod(shape) == prod(inner.shape):
        inner = Reshaped(inner, shape)  # divided into heads, or with further axes of length 1
    return inner


def _bare(name: str) -> str:
    return name.removeprefix("-")


def _merged(recipe: Recipe, axes: Names, wanted: Names) -> tuple[Recipe, Names]:
    """With its heads as one axis, if the other side has them as one."""
    if not set(_HEADS) <= set(axes) or set(_HEADS) <= set(wanted):
        return recipe, axes
    at = axes.index("heads")
    size = recipe.shape[at] * recipe.shape[at + 1]
    merged = Reshaped(recipe, (*recipe.shape[:at], size, *recipe.shape[at + 2 :]))
    return merged, _names_merged(axes, wanted)


def _names_merged(axes: Names, other: Names) -> Names:
    """Axes with one name for both axes of heads, if the other side has them as one."""
    if not set(_HEADS) <= set(axes) or set(_HEADS) <= set(other):
        return axes
    at = axes.index("heads")
    return (*axes[:at], "in" if "out" in axes else "out", *axes[at + 2 :])


def regrouped(recipe: Recipe, axes: Names, wanted: Names, shape: Shape | None) -> Recipe:
    """The kernel of a transposed convolution with groups: PyTorch lists all inputs and the outputs of one group, other
    libraries all outputs and the inputs of one group. Other arrays stay as they are."""
    if shape is None or not {"in", "out"} <= set(axes) or len(shape) != len(recipe.shape) != 2:
        return recipe
    sizes, target = dict(zip(axes, recipe.shape, strict=True)), dict(zip(wanted, shape, strict=True))
    for full, part in (("in", "out"), ("out", "in")):
        groups = sizes[full] // max(target.get(full, 1), 1)
        if groups > 1 and sizes[full] == groups * target[full] and target[part] == groups * sizes[part]:
            order = (
                axes.index(full),
                axes.index(part),
                *(n for n, name in enumerate(axes) if name not in (full, part)),
            )
            ordered = Turned(recipe, order)
            space = ordered.shape[2:]
            inner: Recipe = Reshaped(ordered, (groups, target[full], sizes[part], *space))
            inner = Turned(inner, (0, 2, 1, *range(3, 3 + len(space))))
            inner = Reshaped(inner, (target[part], target[full], *space))
            names = (part, full, *(axes[axis] for axis in order[2:]))
            return laid_out(inner, names, axes, None)
    return recipe
