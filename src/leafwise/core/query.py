"""Queries: which leaves. A leaf matches if any of its names does."""

import re
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from leafwise.core.glob import Glob, compiled_word
from leafwise.core.leaf import Leaf
from leafwise.core.path import Path, escape
from leafwise.errors import QueryError

if TYPE_CHECKING:
    from leafwise.core.columns import Columns

_ANY: Final[Any] = type("_Any", (), {"__repr__": lambda self: "any"})()


class Query:
    """Selects leaves of a tree. Queries are combined with `&`, `|` and `~`.

    `lw.where(...)` returns a query. Every argument `where` takes one, or something that `Query.of` turns into one: a
    glob over paths, a compiled regular expression that is searched in the path, a callable that gets each leaf and
    returns a bool, or a path. A glob or a path that names a node matches every leaf below it. A leaf matches if any of
    its names does.

    >>> import torch, leafwise as lw
    >>> t = lw.tree(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)))
    >>> [str(path) for path, _ in t.select(lw.where(ndim=2) & ~lw.where(owner="Conv*")).items()]
    ['0.weight', '1.weight']
    """

    def __init__(self, text: str, rows: "Callable[[Columns, int, Collection[int]], Iterable[int]]") -> None:
        self._text = text
        self._rows = rows

    @classmethod
    def of(cls, where: Any, *, nodes: bool = True) -> "Query":
        """Turns an argument `where` into a query. With `nodes=False`, a glob or a path names leaves only.

        >>> Query.of("**.weight")
        Query('**.weight')
        """
        if isinstance(where, Query):
            return where
        if isinstance(where, str):
            return Query(repr(where), partial(Glob(where).rows, nodes=nodes))
        if isinstance(where, Path):
            return Query(repr(where), _by_path(where, nodes))
        if isinstance(where, re.Pattern):
            return Query(repr(where), _by_text(where))
        if isinstance(where, type):
            raise QueryError(f"{where.__name__} is a class; lw.where(owner={where.__name__}) selects its leaves")
        if callable(where):
            return Query(repr(where), _by_leaf(where))
        raise QueryError(
            f"cannot select by {type(where).__name__} {where!r}; give a glob such as '**.weight', "
            "a compiled regular expression, a callable that takes a Leaf, or lw.where(...)"
        )

    def leaves(self, columns: "Columns", node: int, rows: Collection[int]) -> set[int]:
        """The leaves that match under any of `rows`. Globs are relative to `node`."""
        ties = columns.ties
        return {ties.get(row, row) for row in self._rows(columns, node, rows)}

    def names(self, columns: "Columns", node: int, rows: Collection[int]) -> list[int]:
        """The rows that match by themselves, whatever other names their leaves have."""
        return list(self._rows(columns, node, rows))

    def __and__(self, other: Any) -> "Query":
        return self._with(other, "&", set.intersection)

    def __or__(self, other: Any) -> "Query":
        return self._with(other, "|", set.union)

    def __rand__(self, other: Any) -> "Query":
        return Query.of(other) & self

    def __ror__(self, other: Any) -> "Query":
        return Query.of(other) | self

    def __invert__(self) -> "Query":
        def rows(columns: "Columns", node: int, rows: Collection[int]) -> Iterable[int]:
            mine = self.leaves(columns, node, rows)
            return (row for row in rows if columns.ties.get(row, row) not in mine)

        return Query(f"~{self._text}", rows)

    def _with(self, where: Any, sign: str, join: Callable[[set[int], set[int]], set[int]]) -> "Query":
        query = Query.of(where)

        def rows(columns: "Columns", node: int, rows: Collection[int]) -> Iterable[int]:
            leaves = join(self.leaves(columns, node, rows), query.leaves(columns, node, rows))
            return (row for row in rows if columns.ties.get(row, row) in leaves)

        return Query(f"({self._text} {sign} {query._text})", rows)

    def __repr__(self) -> str:
        return escape(f"Query({self._text})")


def where(
    *,
    role: Any = _ANY,
    owner: Any = _ANY,
    kind: Any = _ANY,
    section: Any = _ANY,
    dtype: Any = _ANY,
    device: Any = _ANY,
    trainable: Any = _ANY,
    persistent: Any = _ANY,
    ndim: Any = _ANY,
    tied: Any = _ANY,
    contains: Any = _ANY,
) -> Query:
    """A query for leaves with certain properties. A leaf must match all arguments.

    The arguments are properties of `Leaf`, and `tied`, which is whether a leaf has several names. Strings are globs
    (`role="norm.*"`, `owner="*Linear"`), and a tuple lists alternatives. `role=None` selects leaves without a role.
    `owner` may be a class, which includes its subclasses. If a leaf has several names, one of them must match both
    `role` and `owner`. `contains` is a text that is part of the path, such as `"q_proj"`; upper and lower case are
    distinguished only if the text has upper-case letters.

    >>> import torch, leafwise as lw
    >>> t = lw.tree(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8)))
    >>> [str(path) for path, _ in t.select(lw.where(role=("bias", "norm.*"))).items()]
    ['0.bias', '1.weight', '1.bias']
    >>> [str(path) for path, _ in t.select(lw.where(contains="0.w")).items()]
    ['0.weight']
    """
    facts = {name: value for name, value in locals().items() if value is not _ANY}
    text = f"where({', '.join(f'{name}={value!r}' for name, value in facts.items())})"
    contained = _texts(facts.pop("contains")) if "contains" in facts else None
    tests = {fact: _fact_test(fact, wanted) for fact, wanted in facts.items()}
    of_role, of_owner = tests.pop("role", None), tests.pop("owner", None)

    def rows(columns: "Columns", node: int, rows: Collection[int]) -> Iterable[int]:
        for row in rows if contained is None else _containing(contained, columns, node, rows):
            if tests:
                leaf = columns.leaf_of(row)
                if not all(test(_fact(columns, leaf, row, fact)) for fact, test in tests.items()):
                    continue
            if of_role is not None and not of_role(columns.row_role(row)[0]):
                continue
            if of_owner is not None and not of_owner(_owner(columns, columns.row_nodes[row])):
                continue
            yield row

    return Query(text, rows)


def _texts(wanted: Any) -> tuple[str, ...]:
    texts = (wanted,) if isinstance(wanted, str) else tuple(wanted) if isinstance(wanted, tuple | list | set) else ()
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise QueryError(f"cannot select by contains={wanted!r}; give a part of a path, or a tuple of these")
    return texts


def _containing(texts: tuple[str, ...], columns: "Columns", node: int, rows: Collection[int]) -> Iterable[int]:
    """The rows whose path below `node` contains one of the texts."""
    keys = columns.keys(list(rows), node)
    exact = tuple(text for text in texts if text != text.lower())
    folded = tuple(text for text in texts if text == text.lower())
    for row, key in zip(rows, keys, strict=True):
        lower = key.lower() if folded else ""
        if any(text in key for text in exact) or any(text in lower for text in folded):
            yield row


def _owner(columns: "Columns", node: int) -> tuple[Any, str]:
    return columns.node_objects[node], columns.type_name(node)


def _fact(columns: "Columns", leaf: Leaf, row: int, fact: str) -> Any:
    if fact == "tied":
        return row in columns.ties or row in columns.further_rows
    return getattr(leaf, fact)


def _fact_test(fact: str, wanted: Any) -> Callable[[Any], bool]:
    """A test for a fact. For the owner, its argument is the object with the name of its type."""
    if isinstance(wanted, tuple | list | set | frozenset):
        tests = [_fact_test(fact, alternative) for alternative in wanted]
        return lambda value: any(test(value) for test in tests)
    if fact == "owner" and isinstance(wanted, type):
        return lambda owner: isinstance(owner[0], wanted)
    if fact == "dtype" and not isinstance(wanted, str):
        # Other ways to write float32: torch.float32, numpy.float32, numpy.dtype("float32").
        wanted = getattr(wanted, "__name__", None) or str(wanted).rpartition(".")[2]
    if fact == "device":
        wanted = str(wanted)
    if not isinstance(wanted, str):
        if wanted is not None and not isinstance(wanted, bool | int):
            raise QueryError(f"cannot select by {fact}={wanted!r}; give {_EXAMPLES[fact]}, or a tuple of these")
        return lambda value: bool(value == wanted)
    pattern = compiled_word(wanted)
    if fact == "owner":
        return lambda owner: pattern.fullmatch(owner[1]) is not None
    return lambda value: value is not None and pattern.fullmatch(str(value)) is not None


_EXAMPLES = {
    "role": "'norm.*'",
    "owner": "'Linear' or a class",
    "kind": "'parameter', 'buffer' or 'state'",
    "section": "'weights', 'optimizer' or 'rest'",
    "dtype": "'float32' or a dtype",
    "device": "'cuda:0'",
    "trainable": "True or False",
    "persistent": "True or False",
    "ndim": "a number",
    "tied": "True or False",
}


def _by_path(path: Path, nodes: bool) -> "Callable[[Columns, int, Collection[int]], Iterable[int]]":
    glob = Glob(str(path) or "**")  # a printed path is a glob that matches only this path
    # Absolute, like the paths of leaves: the glob starts at the root of the walk.
    return lambda columns, node, rows: glob.rows(columns, 0, rows, nodes)


def _by_text(pattern: re.Pattern[str]) -> "Callable[[Columns, int, Collection[int]], Iterable[int]]":
    return lambda columns, node, rows: (row for row in rows if pattern.search(columns.row_text(row)))


def _by_leaf(wanted: Callable[[Leaf], Any]) -> "Callable[[Columns, int, Collection[int]], Iterable[int]]":
    def rows(columns: "Columns", node: int, rows: Collection[int]) -> Iterable[int]:
        answers: dict[int, bool] = {}
        for row in rows:
            leaf = columns.ties.get(row, row)
            if leaf not in answers:
                answers[leaf] = bool(wanted(columns.leaf_of(leaf)))
            if answers[leaf]:
                yield row

    return rows
