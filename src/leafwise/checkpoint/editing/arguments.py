"""The arguments of `lw.edit` that say what to change, checked."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from leafwise.core.glob import Glob
from leafwise.core.query import Query
from leafwise.errors import QueryError
from leafwise.files.casts import checked_dtype
from leafwise.files.formats.safetensors import CODES

Shape = tuple[int, ...]


def items_of(argument: Any) -> list[Any]:
    """The items of an argument that takes one or several."""
    if argument is None:
        return []
    return list(argument) if isinstance(argument, list | tuple | set | frozenset) else [argument]


def queries_of(argument: Any) -> list[Any]:
    """The queries of an argument that takes one or a list of them."""
    queries = items_of(argument)
    for query in queries:
        Query.of(query)  # raises if it is not one
    return queries


def pairs_of(argument: Any, option: str, example: str) -> list[tuple[Any, Any]]:
    """The items of an argument that takes a dict."""
    if argument is None:
        return []
    if not isinstance(argument, Mapping):
        raise QueryError(f"{option}= takes a dict such as {example}, not {argument!r}")
    return list(argument.items())


def casts_of(argument: Any) -> list[tuple[Any, str]]:
    """What `cast=` asks for: pairs of a query and a dtype."""
    if argument is None:
        return []
    checked = []
    for query, dtype in argument.items() if isinstance(argument, Mapping) else [("**", argument)]:
        Query.of(query)
        name = checked_dtype(dtype, CODES)
        if name is None:
            raise QueryError("cast= takes a dtype such as 'bfloat16', or a dict from queries to dtypes, not None")
        checked.append((query, name))
    return checked


def transposes_of(argument: Any) -> list[tuple[Any, Shape | None]]:
    """What `transpose=` asks for: pairs of a query and an order of axes, which is None for the only other order of two
    axes."""
    if not isinstance(argument, Mapping):
        return [(query, None) for query in queries_of(argument)]
    for query, order in argument.items():
        Query.of(query)
        if order is not None and not _is_order(order):
            raise QueryError(f"transpose= takes an order of axes such as (3, 2, 0, 1), not {order!r}")
    return [(query, None if order is None else tuple(order)) for query, order in argument.items()]


def _is_order(order: Any) -> bool:
    return isinstance(order, Sequence) and not isinstance(order, str) and sorted(order) == list(range(len(order)))


class Resize(NamedTuple):
    """The new size of an axis, and the values of new elements: a number, or "mean"."""

    size: int
    axis: int = 0
    fill: float | str = 0.0


def resizes_of(argument: Any) -> list[tuple[Any, Resize]]:
    """What `resize=` asks for: pairs of a query and a new size."""
    resizes = []
    for query, value in pairs_of(argument, "resize", '{"embed.weight": 32064}'):
        Query.of(query)
        resize = Resize(**_options(value, "resize", Resize._fields)) if isinstance(value, Mapping) else Resize(value)
        if not _is_whole(resize.size) or not _is_whole(resize.axis, -64):
            raise QueryError(f"resize= takes a size, or a dict such as {{'size': 32064, 'axis': 0}}, not {value!r}")
        is_number = isinstance(resize.fill, int | float) and not isinstance(resize.fill, bool)
        if not is_number and resize.fill != "mean":
            raise QueryError(f'fill takes a number or "mean", not {resize.fill!r}')
        resizes.append((query, resize))
    return resizes


class Parts(NamedTuple):
    """How an array is split, or how arrays are fused: the glob of the entry that is replaced, the names of the parts in
    order, the name of the whole, and the axis. With `heads`, the parts alternate: those of the first head come first.
    """

    pattern: str
    names: tuple[str, ...]
    whole: str | None = None
    axis: int = 0
    sizes: tuple[int, ...] | None = None
    heads: int = 1


_SPLIT = '{"blocks.*.attn.qkv": ["q", "k", "v"]}'
_FUSE = '{"blocks.*.attn.{q,k,v}": "qkv"}'


def splits_of(argument: Any) -> list[Parts]:
    """What `split=` asks for."""
    splits = []
    for pattern, value in pairs_of(argument, "split", _SPLIT):
        into, options = _into(value, "split", ("into", "axis", "sizes", "heads"))
        if not isinstance(pattern, str) or not _is_names(into) or len(into) < 2:
            raise QueryError(f"split= takes a dict such as {_SPLIT}, not {{{pattern!r}: {value!r}}}")
        splits.append(_checked(Parts(pattern, tuple(into), **options), "split"))
    return splits


def fuses_of(argument: Any) -> list[Parts]:
    """What `fuse=` asks for. The last entry of each pattern lists the parts in order."""
    fuses = []
    for pattern, value in pairs_of(argument, "fuse", _FUSE):
        into, options = _into(value, "fuse", ("into", "axis", "heads"))
        match = re.fullmatch(r"(.*?)([^.{}]*)\{([^{}]+)\}([^.{}]*)", pattern) if isinstance(pattern, str) else None
        before, start, listed, end = ("",) * 4 if match is None else match.groups()
        names = tuple(f"{start}{name.strip()}{end}" for name in listed.split(","))
        several_below_one = len(set(names)) == len(names) > 1 and (not before or before.endswith("."))
        if not several_below_one or not _is_names([into]):
            raise QueryError(f"fuse= takes a dict such as {_FUSE}, not {{{pattern!r}: {value!r}}}")
        fuses.append(_checked(Parts(before, names, into, **options), "fuse"))
    return fuses


def _into(value: Any, option: str, known: Iterable[str]) -> tuple[Any, dict[str, Any]]:
    """What `split=` or `fuse=` makes of one entry: names, and options if they are in a dict."""
    options = _options(value, option, known) if isinstance(value, Mapping) else {"into": value}
    return options.pop("into", None), options


def _checked(parts: Parts, option: str) -> Parts:
    if not _is_whole(parts.axis, -64) or not _is_whole(parts.heads, 1):
        raise QueryError(f"{option}= takes whole numbers for axis and heads, not {parts.axis!r} and {parts.heads!r}")
    if parts.sizes is None:
        return parts
    sizes: Any = parts.sizes
    if not isinstance(sizes, list | tuple) or len(sizes) != len(parts.names) or not all(_is_whole(n, 1) for n in sizes):
        raise QueryError(f"split= takes one size for each of {', '.join(parts.names)}, not {sizes!r}")
    return parts._replace(sizes=tuple(sizes))


def _options(value: Mapping[Any, Any], option: str, known: Iterable[str]) -> dict[str, Any]:
    if unknown := [key for key in value if key not in known]:
        raise QueryError(f"{option}= does not have the option {unknown[0]!r}; it has {', '.join(known)}")
    if option == "resize" and "size" not in value:
        raise QueryError("resize= needs a size, as in {'embed.weight': {'size': 32064, 'axis': 0}}")
    return dict(value)


def _is_whole(number: Any, least: int = 0) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= least


def _is_names(names: Any) -> bool:
    return (
        isinstance(names, list | tuple)
        and bool(names)
        and len(set(map(str, names))) == len(names)
        and all(isinstance(name, str) and all(name.split(".")) for name in names)
    )


def ties_of(argument: Any) -> list[tuple[str, str]]:
    """What `tie=` asks for: pairs of a name and the name to tie it to."""
    example = '{"lm_head.weight": "model.embed_tokens.weight"}'
    pairs = pairs_of(argument, "tie", example)
    for name, to in pairs:
        if not isinstance(name, str) or not isinstance(to, str):
            raise QueryError(f"tie= takes a dict of names such as {example}, not {{{name!r}: {to!r}}}")
    return pairs


class NamePattern:
    """A glob that is compared with names. As in queries for leaves, a glob without wildcards that names a node means
    everything below it; one with wildcards must match the whole name."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._glob = Glob(pattern)
        self._has_wildcards = "*" in pattern or "?" in pattern

    def prefix(self, name: str) -> str | None:
        """The shortest prefix of the name that matches, by entries; None if none does."""
        entries = name.split(".")
        length = self._glob.prefix_length(entries)
        return None if length is None else ".".join(entries[:length])

    def matches(self, name: str) -> bool:
        return self._glob.accepts(name.split(".")) if self._has_wildcards else self.prefix(name) is not None
