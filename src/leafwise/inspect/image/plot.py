"""`lw.image`: the values of a leaf as a picture."""

import math
from importlib import import_module
from numbers import Real
from operator import index
from typing import Any, Literal

from leafwise.core import registry
from leafwise.core.capabilities.clipping import Clipping
from leafwise.core.capabilities.measuring import Reader, reader
from leafwise.core.home import Home
from leafwise.core.leaf import Leaf, shape_text
from leafwise.core.parts import check_not_gathered
from leafwise.core.path import Path, listed, spelled
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.core.work.ranks import agree
from leafwise.errors import Error, PathError, QueryError, WalkError
from leafwise.inspect.image.picture import Image
from leafwise.inspect.ranks.teamwork import cannot_use, columns_team, spec_fact

STYLES = ("filters", "matrix", "norms", "strip")
_SIZE = 1024
_FILTERS_SIZE = 2048  # so that 512 filters of 3×3, with 512 inputs each, are drawn value by value
_SIZES = range(16, 8193)

Style = Literal["filters", "matrix", "norms", "strip"]


def image(
    source: Any,
    path: "str | int | Path | None" = None,
    *,
    of: Literal["value", "grad"] = "value",
    limit: float | None = None,
    size: int | None = None,
    style: Style | None = None,
) -> Image:
    """Draws a leaf as a picture. Negative values are blue, positive ones are red, and zero is nearly white.

    `source` is a leaf, an array, or anything that `lw.tree` takes; then `path` is the path of the leaf. `of="grad"`
    draws the gradient. Convolutions are drawn as a grid of `"filters"`, embeddings by the `"norms"` of their rows,
    vectors as a `"strip"`, and everything else as a `"matrix"`; `style` chooses another of these. `limit` is the value
    at the ends of the color scale, by default the largest magnitude. No side is longer than `size` pixels. If several
    values share a pixel, it shows the one with the largest magnitude. Files and arrays on a GPU are read in parts.
    If the leaf is sharded over processes, every rank must call it, and draws the whole leaf.

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
        raise QueryError(f"cannot look up a path in a {type(source).__name__}; leave the path out")
    whole = Tree(source.columns) if isinstance(source, Leaf) else [source] if is_array else source
    with opened(whole, "image") as t:
        check_not_gathered(t, "draw")
        leaf = source if isinstance(source, Leaf) else _leaf_in(t, path)
        name = "" if is_array else str(leaf.path)
        return _drawn(
            leaf, name, of, None if limit is None else float(limit), None if size is None else index(size), style
        )


def check_options(of: Any, limit: Any, size: Any, style: Any, spelling: str = "{}=") -> None:
    """Raises if an option is not valid; `spelling` is how the caller spells option names."""
    if of not in ("value", "grad"):
        raise QueryError(f'{spelling.format("of")} takes "value" or "grad", not {of!r}')
    if limit is not None and not _is_limit(limit):
        raise QueryError(
            f"{spelling.format('limit')} takes a positive number, the value at the ends of the scale, "
            f"not {_short(limit)}"
        )
    if size is not None and not _is_size(size):
        raise QueryError(
            f"{spelling.format('size')} takes a whole number of pixels from {_SIZES[0]} to {_SIZES[-1]}, "
            f"not {_short(size)}"
        )
    if style is not None and style not in STYLES:
        raise QueryError(f"{spelling.format('style')} takes one of {', '.join(STYLES)}, not {style!r}")


def _is_size(size: Any) -> bool:
    try:
        return not isinstance(size, bool) and index(size) in _SIZES
    except TypeError:
        return False


def _is_limit(limit: Any) -> bool:
    is_number = isinstance(limit, Real) and not isinstance(limit, bool)
    try:
        return is_number and 0 < float(limit) < math.inf
    except OverflowError:  # an integer too large for a float
        return False


def _short(number: Any) -> str:
    """The number as it was given, or its size if it has too many digits to print."""
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
        raise PathError(f"cannot draw {spelled(str(path))}: it is a plain value, not a leaf")
    if path is None and len(place) == 1:
        return next(iter(place))
    names = [spelled(str(name)) for name, _ in place.items()]
    if path is None:
        raise QueryError(
            f"give the path of the leaf to draw: {listed(names, 3)}" if names else "there is no leaf to draw"
        )
    below = f"give the path of a leaf: {listed(names, 3)}" if names else "there is no leaf below it"
    raise PathError(f"cannot draw {spelled(str(path))}: it is a node, not a leaf; {below}")


def _drawn(leaf: Leaf, name: str, of: str, limit: float | None, size: int | None, style: str | None) -> Image:
    home, values = _values(leaf, name, of)
    spec = home.spec(values)
    shape = spec.shape or ()
    grids = import_module("leafwise.inspect.image.grids")
    style = style or grids.style_of(leaf.role, leaf.axes, shape)
    axes, groups = leaf.axes, groups_of(leaf, shape)
    if style == "filters" and not 3 <= len(shape) <= 5:
        raise QueryError(
            f"the filters style needs 3 to 5 axes (out, in and one to three in space), but {_subject(name)} is "
            f"{shape_text(shape)}; choose another style"
        )
    size = size or (_FILTERS_SIZE if style == "filters" else _SIZE)
    try:
        laid_out, read = shape, _reader(leaf, name, home, values, (of, size, style))
        if groups > 1 and axes and style != "strip":
            laid_out, read = grids.by_groups(shape, groups, read)
            axes = ("out", "in", *axes[2:])
        grid = grids.grid_of(style, laid_out, axes, size, read)
    except (Error, MemoryError, ModuleNotFoundError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise WalkError(f"cannot read the values of {_subject(name)}: {reason}") from error
    if not groups and style != "strip":
        grid = grid._replace(
            notes=(f"{grid.notes[0]} (drawn as one group, as their number is not known)", *grid.notes[1:])
        )
    facts = {"path": name, "shape": shape, "dtype": spec.dtype, "of": of, "style": style, "size": size}
    return Image(facts, grid, limit)


def _reader(leaf: Leaf, name: str, home: Home, values: Any, options: tuple[str, int, str]) -> Reader:
    """A function that reads parts of the values. If they are sharded over ranks, all ranks read them together, so that
    each draws the same picture."""
    sharded = columns_team(leaf.columns, [values])
    if sharded is None:
        return reader(home, values)
    from leafwise.inspect.ranks.spread_arrays import read_boxes

    of, size, style = options
    facts = f"{spec_fact(home.spec(values))}, {leaf.role}, {of}, size {size}, {style}"
    agree(sharded, "image", [(name or "the array", facts)])
    return lambda box: read_boxes(sharded, [(home, values)], [box])[0]


def groups_of(leaf: Leaf, shape: tuple[int, ...]) -> int:
    """The number of groups of a convolution whose axes do not show it; 0 if it is not known."""
    if leaf.role != "conv_transpose.weight" or not leaf.axes or leaf.axes[:2] != ("in", "out"):
        return 1  # other layers store the inputs of one group and all outputs
    columns = leaf.columns
    groups = getattr(columns.node_objects[columns.row_nodes[leaf.row]], "groups", 0)
    is_count = type(groups) is int and groups > 0 and len(shape) == len(leaf.axes) and shape[0] % groups == 0
    return groups if is_count else 0


def _values(leaf: Leaf, name: str, of: str) -> tuple[Home, Any]:
    """The array to draw, and its home; raises if it cannot be drawn."""
    columns = leaf.columns
    array = columns.current(leaf.row)
    home = columns.home(array)
    if of == "grad":
        array = home.grads([array])[0]
        if array is None:
            if leaf.device == "file":
                raise WalkError("a file contains no gradients; leave out of=")
            if home.capability(Clipping).takes_gradients:
                raise WalkError(
                    f"{_subject(name)} has no gradient: in JAX, gradients are a tree of their own; draw a leaf of it: "
                    "lw.image(gradients, …)"
                )
            raise WalkError(f'{_subject(name)} has no gradient; call lw.image(…, of="grad") after backward()')
        home = columns.home(array)
    if reason := _no_picture(home, array):
        if "sparse" in str(getattr(array, "layout", "")):
            reason = _if_sparse(name, of)
        raise WalkError(f"cannot draw {_subject(name)}: {reason}")
    return home, array


def _if_sparse(name: str, of: str) -> str:
    subject = "its gradient is" if of == "grad" else "it is"
    if not name:
        return f"{subject} sparse; use lw.image(array{'.grad' * (of == 'grad')}.to_dense())"
    return f"{subject} sparse; use lw.image(leaf.{of}.to_dense()) with leaf = lw.tree(…)[{spelled(name)}]"


def _no_picture(home: Home, array: Any) -> str:
    shape, dtype, *_ = home.spec(array)
    if shape == ():
        return "it is a scalar; leaf.numpy() returns its value"
    if shape is not None and 0 in shape:
        return f"it is empty (shape {shape_text(shape)})"
    if "complex" in dtype:
        return f"its dtype is {dtype}; draw its real or imaginary part instead"
    return cannot_use(home, array)


def _subject(name: str) -> str:
    return spelled(name) if name else "the array"
