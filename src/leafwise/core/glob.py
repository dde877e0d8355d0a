"""Globs over paths.

A glob is compiled to a small automaton that runs down the tree once, one transition for each node, so that paths need
not be converted to text. `*` is one entry or a part of an entry, `?` is one character, `**` is any number of entries,
`{a,b}` and `{0..3}` are alternatives; an entry in quotes is literal.

A glob that names nodes means the leaves below them. A pattern without wildcards names the leaf and the node at its
path. One with wildcards names nodes only if it matches no leaf, so that `**.weight` means the weights, and not also
the optimizer state that is stored below the name of each weight. A pattern that ends with `*` never names nodes:
`layers.*` has always meant the leaves of `layers` itself.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from leafwise.core.path import split_names
from leafwise.errors import QueryError

if TYPE_CHECKING:
    from leafwise.core.columns import Columns

_DEEP = None  # `**` among the words of a pattern
_ANY = ("*", "**")  # entries that match any name
_MAX_ALTERNATIVES = 10_000


class _Step(dict[str, "_Step"]):
    """One state of the automaton: maps the next name to the next state, which is computed on first use."""

    __slots__ = ("accepts", "complete", "machine", "naming", "positions")

    def __init__(self, machine: "Glob", positions: frozenset[tuple[int, int]]) -> None:
        super().__init__()
        self.machine = machine
        self.positions = positions
        self.complete = frozenset(number for number, at in positions if at == len(machine.patterns[number]))
        self.accepts = bool(self.complete)
        self.naming = self.complete & machine.naming  # the patterns that name a node here

    def __missing__(self, name: str) -> "_Step":
        step = self[name] = self.machine.after(self.positions, name)
        return step


class Glob:
    """A compiled glob."""

    def __init__(self, text: str) -> None:
        texts = [pattern for alternative in _alternatives(text) for pattern in _ends(alternative)]
        self.patterns = [_words(pattern) for pattern in texts]
        # Patterns that may name nodes; and of these, the ones without wildcards.
        self.naming = frozenset(number for number, pattern in enumerate(texts) if _split(pattern, ".")[-1] not in _ANY)
        self._exact = frozenset(number for number in self.naming if not has_wildcards(texts[number]))
        self._steps: dict[frozenset[tuple[int, int]], _Step] = {}

    def rows(self, columns: "Columns", node: int, rows: Collection[int], nodes: bool = True) -> Iterable[int]:
        """The rows whose own path matches; with `nodes`, also those below the nodes that the glob names."""
        steps = self._run(columns, node)
        row_nodes, row_names = columns.row_nodes, columns.row_names
        if nodes and (named := self._named_nodes(columns, steps)):
            return [row for row in rows if row_nodes[row] in named or steps[row_nodes[row]][row_names[row]].accepts]
        return [row for row in rows if steps[row_nodes[row]][row_names[row]].accepts]

    def _named_nodes(self, columns: "Columns", steps: dict[int, _Step]) -> set[int]:
        """The nodes that the glob names, and all nodes below them."""
        # At the first use of a glob, the automaton has been at nodes only: few globs need a look at every node.
        if not any(step.naming for step in self._steps.values()):
            return set()
        reached = [(node, step.naming) for node, step in steps.items() if step.naming]
        naming = self._exact
        if any(not numbers <= naming for _, numbers in reached):
            naming = self.naming - (self._matching_leaves(columns, steps) - self._exact)
        named: set[int] = set()
        for node, numbers in reached:
            if numbers & naming and node not in named:
                node = columns.repeats[node] if node in columns.listed_elsewhere else node
                named.update(range(node, columns.node_ends[node]))
        return named

    def _matching_leaves(self, columns: "Columns", steps: dict[int, _Step]) -> set[int]:
        """The patterns that match a leaf. It may be any leaf below the root of the tree, not only one of a selection:
        otherwise `t.select(a).select(b)` and `t.select(a & b)` would differ."""
        row_nodes, row_names = columns.row_nodes, columns.row_names
        ends = (steps[node][name].complete for node, name in zip(row_nodes, row_names, strict=True) if node in steps)
        return {number for numbers in {id(end): end for end in ends}.values() for number in numbers}

    def nodes(self, columns: "Columns", node: int) -> list[int]:
        """The nodes below `node` whose paths match; the wrapper, not the node that it wraps."""
        hidden = columns.hidden if columns.wrapped else None
        steps = self._run(columns, node)
        return [below for below, step in steps.items() if step.accepts and not (hidden and hidden(below))]

    def accepts(self, entries: Sequence[str]) -> bool:
        """Whether a path matches.

        >>> Glob("a.*").accepts(["a", "b"]), Glob("a.*").accepts(["a", "b", "c"]), Glob("a.**").accepts(["a", "b", "c"])
        (True, False, True)
        """
        step = self._start()
        for name in entries:
            step = step[name]
        return step.accepts

    def prefix_length(self, entries: Sequence[str]) -> int | None:
        """How many entries the shortest beginning of a path has that matches; None if none does.

        >>> Glob("a.*").prefix_length(["a", "b", "c"]), Glob("b").prefix_length(["a", "b"])
        (2, None)
        """
        step = self._start()
        for length, name in enumerate(entries, 1):
            step = step[name]
            if step.accepts:
                return length
        return None

    def _run(self, columns: "Columns", node: int) -> dict[int, _Step]:
        """The state of the automaton at each node from `node` down."""
        steps = {node: self._start()}
        parents, names = columns.node_parents, columns.node_names
        hidden = columns.hidden if columns.wrapped else None
        for below in range(node + 1, columns.node_ends[node]):
            step = steps[parents[below]]
            steps[below] = step if hidden and hidden(below) else step[names[below]]
        return steps

    def after(self, positions: Iterable[tuple[int, int]], name: str) -> _Step:
        reached: set[tuple[int, int]] = set()
        for number, at in positions:
            pattern = self.patterns[number]
            if at == len(pattern):
                continue
            word = pattern[at]
            if word is _DEEP:
                reached.add((number, at))
            elif word.fullmatch(name):
                reached.add((number, at + 1))
        return self._step(reached)

    def _start(self) -> _Step:
        return self._step({(number, 0) for number in range(len(self.patterns))})

    def _step(self, positions: set[tuple[int, int]]) -> _Step:
        """The state at these positions, and at those that need no further name: `**` may match no entry at all."""
        for number, at in tuple(positions):
            pattern = self.patterns[number]
            while at < len(pattern) and pattern[at] is _DEEP:
                at += 1
                positions.add((number, at))
        key = frozenset(positions)
        step = self._steps.get(key)
        if step is None:
            step = self._steps[key] = _Step(self, key)
        return step


def has_wildcards(text: str) -> bool:
    """Whether a glob contains `*` or `?` outside of quotes.

    >>> has_wildcards("layers.*.weight"), has_wildcards("layers.{0..3}"), has_wildcards('"a*b"')
    (True, False, False)
    """
    return any(sign in token for token in _tokens(text) for sign in "*?" if not token.startswith('"'))


def _ends(pattern: str) -> list[str]:
    """The patterns after expanding the braces of the last entry: each alternative may name a leaf or a node. Ranges
    stay, because they may have thousands of numbers."""
    *above, last = _split(pattern, ".")
    for start, end in _braces(last):
        options = _split(last[start + 1 : end], ",")
        if len(options) > 1:
            braced = [f"{{{option}}}" if _RANGE.fullmatch(option) else option for option in options]
            ends = [".".join([*above, last[:start] + option + last[end + 1 :]]) for option in braced]
            patterns = [expanded for ending in ends for expanded in _ends(ending)]
            if len(patterns) > _MAX_ALTERNATIVES:
                raise QueryError(f"the glob {pattern!r} expands to more than {_MAX_ALTERNATIVES} patterns")
            return patterns
    return [pattern]


def _words(pattern: str) -> list[re.Pattern[str] | None]:
    """The entries of one pattern, each as a regular expression, or None for `**`."""
    words = _split(pattern, ".")
    if "" in words:
        raise QueryError(f"cannot read the glob {pattern!r}: it has an empty entry")
    if any("**" in word and word != "**" and '"' not in word for word in words):
        raise QueryError(f"cannot read the glob {pattern!r}: ** matches whole entries; write **.name or *name")
    return [_DEEP if word == "**" else compiled_word(word) for word in words]


def _alternatives(text: str) -> list[str]:
    """The patterns after expanding braces that contain dots; other braces stay, as a part of one entry."""
    for start, end in _braces(text):
        options = _split(text[start + 1 : end], ",")
        if all(_RANGE.fullmatch(option) or len(_split(option, ".")) == 1 for option in options):
            continue
        patterns = [pattern for option in options for pattern in _alternatives(text[:start] + option + text[end + 1 :])]
        if len(patterns) > _MAX_ALTERNATIVES:
            raise QueryError(f"the glob {text!r} expands to more than {_MAX_ALTERNATIVES} patterns")
        return patterns
    return [text]


_RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})")


def compiled_word(word: str) -> re.Pattern[str]:
    """One entry of a glob, or any word with wildcards, as a regular expression."""
    return re.compile(_word_regex(word), re.DOTALL)


def _word_regex(word: str) -> str:
    parts = []
    for token in _tokens(word):
        if token.startswith('"'):
            parts.append(re.escape(split_names(token)[0]))
        elif token.startswith("{"):
            parts.append(f"(?:{'|'.join(map(_option_regex, _split(token[1:-1], ',')))})")
        else:
            parts.append({"*": ".*", "?": "."}.get(token) or re.escape(token))
    return "".join(parts)


def _option_regex(option: str) -> str:
    span = _RANGE.fullmatch(option)
    if span is None:
        return _word_regex(option)
    low, high = int(span[1]), int(span[2])
    if low > high:
        raise QueryError(f"the range {{{option}}} is empty; write {{{high}..{low}}}")
    if high - low >= _MAX_ALTERNATIVES:
        raise QueryError(f"the range {{{option}}} has more than {_MAX_ALTERNATIVES} numbers")
    return "|".join(map(str, range(low, high + 1)))


def _split(text: str, separator: str) -> list[str]:
    """Splits at separators outside of quotes and braces."""
    parts = [""]
    for token in _tokens(text):
        if token == separator:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _tokens(text: str) -> Iterator[str]:
    """Whole quotes, whole outermost braces, and the characters between them."""
    braces = dict(_braces(text))
    position = 0
    while position < len(text):
        end = position
        if text[position] == '"':
            end = _quoted_end(text, position)
        elif text[position] == "{":
            end = braces[position]
        yield text[position : end + 1]
        position = end + 1


def _braces(text: str) -> list[tuple[int, int]]:
    """The outermost pairs of braces."""
    pairs = []
    depth = start = position = 0
    while position < len(text):
        char = text[position]
        if char == '"':
            position = _quoted_end(text, position)
        elif char == "{":
            start = start if depth else position
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                pairs.append((start, position))
        if depth < 0:
            break
        position += 1
    if depth:
        raise QueryError(f"cannot read the glob {text!r}: its braces do not match")
    return pairs


def _quoted_end(text: str, start: int) -> int:
    quoted = re.compile(r'"(?:[^"\\]|\\.)*"').match(text, start)
    if quoted is None:
        raise QueryError(f"cannot read the glob {text!r}: a quote is not closed")
    return quoted.end() - 1
