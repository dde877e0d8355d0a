"""Paths are values: they can be compared, printed, parsed, fetched from an object and converted to code.

An entry of a path has a name, by which paths compare, and a kind, which is used only to fetch and to write code. So
`layers.0.weight` is the same path in a file, in a PyTorch model and in a JAX model.
"""

import json
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from leafwise.errors import PathError, QueryError
from leafwise.printable import escape as escape
from leafwise.printable import shown_file as shown_file
from leafwise.printable import shown_url as shown_url
from leafwise.printable import without_secrets as without_secrets

Kind = Literal["attribute", "index", "key", "part", "step", "any"]


class Entry(NamedTuple):
    """One component of a path.

    `raw` is used to fetch if the name is not enough: the position in a list, or the key of a dict. The kind `part` is
    a part of a dotted key before its last dot: it is printed and compared, but fetches nothing by itself. The kind
    `step` is for children that neither an attribute nor a subscript reaches: `raw` is a function, and `spelling` is
    its code. The kind `any` was parsed from text, so that only the name is known. A `hidden` entry (the `module` of a
    wrapper) is used to fetch and in code, but is neither printed nor compared.
    """

    name: str
    kind: Kind
    raw: Any = None
    hidden: bool = False
    spelling: str = ""

    def fetch(self, obj: Any) -> Any:
        if self.kind == "attribute":
            return getattr(obj, self.name)
        if self.kind == "part":
            return obj
        if self.kind == "any":
            return _fetch_by_name(obj, self.name)
        return self.raw(obj) if self.kind == "step" else obj[self.raw]

    def code(self, root: str) -> str:
        if self.kind == "step":
            return self.spelling.replace("{root}", root)
        if self.kind == "part":
            return root
        if self.kind == "attribute" or (self.kind == "any" and not self.name.isdecimal()):
            if self.name.isidentifier() and not keyword.iskeyword(self.name):
                return f"{root}.{self.name}"
            return f"getattr({root}, {self.name!r})"
        if self.kind == "any":
            return f"{root}[{self.name}]"
        return f"{root}[{self.raw!r}]"


class Path:
    """The path of a leaf, a node or a plain value in a tree, such as `layers.0.weight`.

    `names` are the names of its entries, by which paths are compared. An entry that contains a dot or an unusual
    character is printed in quotes.

    >>> import leafwise as lw
    >>> path = lw.Path.parse('layers.0."a.b".weight')
    >>> path.names
    ('layers', '0', 'a.b', 'weight')
    >>> print(path)
    layers.0."a.b".weight
    >>> path.parent
    Path('layers.0."a.b"')
    """

    __slots__ = ("entries", "names")

    def __init__(self, entries: "Iterable[Entry] | str" = ()) -> None:
        if isinstance(entries, str):
            entries = (Entry(name, "any") for name in split_names(entries))
        self.entries = tuple(entries)
        self.names = tuple([entry.name for entry in self.entries if not entry.hidden])

    @classmethod
    def parse(cls, text: "str | Path") -> "Path":
        """The path that prints as `text`. A Path is returned unchanged."""
        if isinstance(text, Path):
            return text
        if not isinstance(text, str):
            raise QueryError(f"a path is a string such as 'layers.0.weight', not {text!r}")
        return cls(text)

    def fetch(self, obj: Any) -> Any:
        """The object at this path in `obj`: a module, a tensor or any other value.

        >>> Path.parse("a.1").fetch({"a": [10, 20]})
        20
        """
        value = obj
        depth = 0
        while depth < len(self.entries):
            entry = self.entries[depth]
            steps = self._dotted_key(value, depth) if entry.kind == "any" else 0
            try:
                value = value[".".join(self.names[depth : depth + steps])] if steps else entry.fetch(value)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                at = f' below "{Path(self.entries[:depth])}"' if depth else ""
                raise PathError(
                    f'nothing at "{self}": {type(value).__name__}{at} has no {quote(entry.name)}'
                ) from error
            depth += steps or 1
        return value

    def _dotted_key(self, obj: Any, depth: int) -> int:
        """How many entries from here on form one key of a flat mapping, or 0."""
        if not isinstance(obj, Mapping) or self.names[depth] in obj:
            return 0
        ends = range(len(self.names), depth + 1, -1)
        return next((end - depth for end in ends if ".".join(self.names[depth:end]) in obj), 0)

    def code(self, root: str = "model") -> str:
        """The Python expression that reaches this place from a variable called `root`.

        >>> Path.parse("2.weight").code("net")
        'net[2].weight'
        """
        for entry in self.entries:
            root = entry.code(root)
        return root

    @property
    def parent(self) -> "Path":
        """The path without its last visible entry; the root is its own parent."""
        entries = list(self.entries)
        while entries and entries.pop().hidden:
            pass
        return Path(entries)

    @property
    def name(self) -> str:
        """The name of the last visible entry; empty at the root."""
        return self.names[-1] if self.names else ""

    def __str__(self) -> str:
        return ".".join(map(quote, self.names))

    def __repr__(self) -> str:
        return f"Path({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self.names == other.names if isinstance(other, Path) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)


# Names are printed as they are, unless they could not be parsed back, are invisible, or mean something else in a glob.
# Those are quoted as in JSON.
_BARE = re.compile(r'[^."\\*?{}]+')
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^."]+')


def quote(name: str) -> str:
    """A name as it appears in a printed path.

    >>> quote("weight"), quote("a.b"), quote("")
    ('weight', '"a.b"', '""')
    >>> print(quote("red\\x1b[31m"))
    "red\\u001b[31m"
    """
    if name.isprintable() and _BARE.fullmatch(name):
        return name
    return '"' + escape(json.dumps(name, ensure_ascii=False)[1:-1]) + '"'


def split_names(text: str) -> list[str]:
    """The names in a printed path: split at dots outside of quotes.

    >>> split_names('layers.0."a.b"')
    ['layers', '0', 'a.b']
    """
    if not text:
        return []
    names = []
    position = 0
    while True:
        token = _TOKEN.match(text, position)
        if token is None:
            raise QueryError(f"cannot read the path {text!r}: a name is missing at character {position}")
        word = token.group()
        if word.startswith('"'):
            try:
                word = json.loads(word)
            except ValueError as error:
                raise QueryError(f"cannot read the path {text!r}: {word} is not a quoted name") from error
        names.append(word)
        position = token.end()
        if position == len(text):
            return names
        if text[position] != ".":
            raise QueryError(f"cannot read the path {text!r}: expected a dot at character {position}")
        position += 1


def _fetch_by_name(obj: Any, name: str) -> Any:
    """Fetches by name alone: a key of a mapping, an attribute, or a position."""
    if isinstance(obj, Mapping):
        if name in obj:
            return obj[name]
        for key in obj:
            if str(key) == name:
                return obj[key]
        raise KeyError(name)
    if name.isdecimal() and isinstance(obj, list | tuple):
        return obj[int(name)]
    return getattr(obj, name)


def spelled(path: str) -> str:
    """A path as a Python string literal. A path that contains quotes needs the other kind of quotes around it.

    >>> print(spelled("0.weight"), spelled('"a b".weight'))
    "0.weight" '"a b".weight'
    """
    return f'"{path}"' if not set(path) & set('"\\\n') else repr(path)


def plural(count: int, noun: str, nouns: str) -> str:
    """A number with its noun.

    >>> plural(1, "leaf", "leaves"), plural(1200, "leaf", "leaves")
    ('1 leaf', '1,200 leaves')
    """
    return f"{count:,} {noun if count == 1 else nouns}"


def listed(names: Sequence[str], limit: int = 8) -> str:
    """A list of names for a message: the first ones, and how many more there are.

    >>> listed(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    return ", ".join(names[:limit]) + (f" and {len(names) - limit:,} more" if len(names) > limit else "")
