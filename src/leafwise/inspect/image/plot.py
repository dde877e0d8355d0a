"""`lw.image`: the values of a leaf as a picture."""

import math
from importlib import import_module
from numbers import Real
from operator import index
from typing import Any, Literal

from leafwise.core import registry
from leafwise.core.arguments import renamed_arguments
from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.home import Home
from leafwise.core.leaf import Leaf, shape_text
from leafwise.core.path import Path, listed, spelled
from leafwise.core.reader import reader
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.errors import Error, PathError, QueryError, WalkError
from leafwise.inspect.image.picture import Image

STYLES = ("filters", "matrix", "norms", "strip")
_SIZE = 1024
_FILTERS_SIZE = 2048  # so that 512 filters of 3×3, with 512 inputs each, are drawn value by value
_SIZES = range(16, 8193)

Style = Literal["filters", "matrix", "norms", "strip"]


@renamed_arguments(x="source")
def image(
    source: Any,
    path: "str | int | Path | None" = None,
    *,
    of: Literal["value", "grad"] = "value",
    limit: float | None = None,
    size: int | None = None,
    style: Style | None = None,
) -> Image:
    """Draws the values of a leaf, or with `of="grad"` its gradient: blue is negative, red positive, zero nearly white.

    `source` is a leaf, an array, or whatever `lw.tree` takes, with the path of a leaf in it. Convolutions are drawn as
    a grid of `filters`, embeddings by the `norms` of their rows, vectors as a `strip`, everything else as a `matrix`;
    `style` says otherwise. `limit` is the value at the ends of the scale, by default the largest magnitude. No side has
    more than `size` pixels; where values share one, it shows the one of the largest magnitude. Files and what is on a
    GPU are read in bands.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5), torch.nn.Linear(8, 4))
    >>> picture = lw.image(net, "0.weight", limit=1)
    >>> picture.style, picture.width, picture.height
    ('filters', 510, 350)
    >>> print(picture.caption)
    0.weight 8×3×5×5 float32 · 8 filters of 5×5, 3 inputs each · -1 … 1
    """
    check_options(of, limit, size, style)
    is_array = _is_array(source)
    if (is_array or isinstance(source, Leaf)) and path is not None:
        raise QueryError(f"a path leads to a leaf in a tree, and this is a {type(source).__name__}; leave it out")
    whole = Tree(source.columns) if isinstance(source, Leaf) else [source] if is_array else source
    with opened(whole, "image") as t:
        leaf = source if isinstance(source, Leaf) else _leaf_in(t, path)
        name = "" if is_array else str(leaf.path)
        return _drawn(
            leaf, name, of, None if limit is None else float(limit), None if size is None else index(size), style
        )


def check_options(of: Any, limit: Any, size: Any, style: Any, spelling: str = "{}=") -> None:
    """Raises where an option is not valid; `spelling` is how the caller writes the names of options."""
    if of not in ("value", "grad"):
        raise QueryError(f'{spelling.format("of")} is "value" or "grad", not {of!r}')
    if limit is not None and not _is_limit(limit):
        raise QueryError(
            f"{spelling.format('limit')} is a positive number, the value at the ends of the scale, not {_short(limit)}"
        )
    if size is not None and not _is_size(size):
        raise QueryError(
            f"{spelling.format('size')} is a whole number of pixels from {_SIZES[0]} to {_SIZES[-1]}, "
            f"not {_short(size)}"
        )
    if style is not None and style not in STYLES:
        raise QueryError(f"{spelling.format('style')} is one of {', '.join(STYLES)}, not {style!r}")


def _is_size(size: Any) -> bool:
    try:
        return not isinstance(size, bool) and index(size) in _SIZES
    except TypeError:
        return False


def _is_limit(limit: Any) -> bool:
    is_number = isinstance(limit, Real) and not isinstance(limit, bool)
    try:
        return is_number and 0 < float(limit) < math.inf
    except OverflowError:  # a whole number that no float can hold
        return False


def _short(number: Any) -> str:
    """As it was given, unless that is thousands of digits, which Python does not even print."""
    is_long = type(number) is int and number.bit_length() > 128
    return f"a number of {number.bit_length():,} bits" if is_long else repr(number)


def _is_array(x: Any) -> bool:
    entry = registry.find(type(x))
    return entry is not None and entry[1] == "leaf"


def _leaf_in(t: Tree, path: Any) -> Leaf:
    place = t if path is None else t[path]
    if isinstance(place, Leaf):
        return place
    if not isinstance(place, Tree):
        raise PathError(f"{spelled(str(path))} is a plain value, and no leaf")
    if path is None and len(place) == 1:
        return next(iter(place))
    names = [spelled(str(name)) for name, _ in place.items()]
    if path is None:
        raise QueryError(
            f"say which leaf to draw, by its path: {listed(names, 3)}" if names else "there is no leaf here"
        )
    below = f"below it: {listed(names, 3)}" if names else "it has none"
    raise PathError(f"{spelled(str(path))} is a node and no leaf; {below}")


def _drawn(leaf: Leaf, name: str, of: str, limit: float | None, size: int | None, style: str | None) -> Image:
    home, values = _values(leaf, name, of)
    spec = home.spec(values)
    shape = spec.shape or ()
    grids = import_module("leafwise.inspect.image.grids")
    style = style or grids.style_of(leaf.role, leaf.axes, shape)
    axes, groups = leaf.axes, _groups(leaf, shape)
    if style == "filters" and not 3 <= len(shape) <= 5:
        raise QueryError(
            f"filters have from 3 to 5 axes (out, in, and those in space), and {_subject(name)} is "
            f"{shape_text(shape)}; choose another style"
        )
    size = size or (_FILTERS_SIZE if style == "filters" else _SIZE)
    try:
        laid_out, read = shape, reader(home, values)
        if groups > 1 and axes and style != "strip":
            laid_out, read = grids.by_groups(shape, groups, read)
            axes = ("out", "in", *axes[2:])
        grid = grids.grid_of(style, laid_out, axes, size, read)
    except (Error, MemoryError, ModuleNotFoundError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise WalkError(f"could not look at the values of {_subject(name)}: {reason}") from error
    if not groups and style != "strip":
        grid = grid._replace(notes=(f"{grid.notes[0]} (as of one group: nothing says how many)", *grid.notes[1:]))
    facts = {"path": name, "shape": shape, "dtype": spec.dtype, "of": of, "style": style, "size": size}
    return Image(facts, grid, limit)


def _groups(leaf: Leaf, shape: tuple[int, ...]) -> int:
    """Into how many groups inputs and outputs are split where the axes do not show it; 0 where nobody says."""
    if leaf.role != "conv_transpose.weight" or not leaf.axes or leaf.axes[:2] != ("in", "out"):
        return 1  # elsewhere inputs are those of a group, and outputs all there are
    columns = leaf.columns
    groups = getattr(columns.node_objects[columns.row_nodes[leaf.row]], "groups", 0)
    is_count = type(groups) is int and groups > 0 and len(shape) == len(leaf.axes) and shape[0] % groups == 0
    return groups if is_count else 0


def _values(leaf: Leaf, name: str, of: str) -> tuple[Home, Any]:
    """The array that is drawn, and its home; raises where it cannot be a picture."""
    columns = leaf.columns
    array = columns.current(leaf.row)
    home = columns.home(array)
    if of == "grad":
        array = home.grads([array])[0]
        if array is None:
            is_file = leaf.device == "file"
            raise WalkError(
                "a file holds no gradients; leave out of="
                if is_file
                else f'{_subject(name)} has no gradient; call lw.image(…, of="grad") after backward()'
            )
        home = columns.home(array)
    if reason := _no_picture(home, array):
        if "sparse" in str(getattr(array, "layout", "")):
            reason = _if_sparse(name, of)
        raise WalkError(f"there is no picture of {_subject(name)}: {reason}")
    return home, array


def _if_sparse(name: str, of: str) -> str:
    subject = "its gradient is" if of == "grad" else "it is"
    if not name:
        return f"{subject} sparse; lw.image(array{'.grad' * (of == 'grad')}.to_dense()) draws it"
    return f"{subject} sparse; lw.image(leaf.{of}.to_dense()) draws it, with leaf = lw.tree(…)[{spelled(name)}]"


def _no_picture(home: Home, array: Any) -> str:
    shape, dtype, *_ = home.spec(array)
    if shape == ():
        return "it is a scalar, one value; leaf.numpy() gives it"
    if shape is not None and 0 in shape:
        return f"it is empty, of shape {shape_text(shape)}"
    if "complex" in dtype:
        return f"{dtype} has no scale about zero; draw its real or its imaginary part"
    return home.capability(Measuring).cannot_measure(array)


def _subject(name: str) -> str:
    return spelled(name) if name else "the array"
