"""The Tree: the result of a walk, or a part of it. Verbs are functions, not methods."""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from leafwise.core.columns import Columns, tally
from leafwise.core.find import nothing_at, words_query
from leafwise.core.leaf import Leaf, Node, SharedMemory, Tie, UndoneTie
from leafwise.core.memory.ops import SAME
from leafwise.core.opaque import OpaqueObject, opaque_objects
from leafwise.core.parts import bytes_counted_twice, check_found, leaves_of, node_numbers, nodes_at, rows_below
from leafwise.core.path import Path, quote
from leafwise.core.query import Query
from leafwise.core.results.result import Table, rendered, whole_number
from leafwise.core.walk import walk
from leafwise.errors import PathError, QueryError, TieWarning, WalkError, warn

if TYPE_CHECKING:
    from leafwise.core.results.totals import Largest, Totals

# The module that opens files; a string, because core must not import it.
FILES = "leafwise.files"
BY = ("dtype", "kind", "section", "role", "module", "type", "depth", "device", "file")  # what `Tree.by` takes
_MAX_COMPLETIONS = 10_000  # keys that are offered for completion
_FOR_CONTRIBUTORS = {"columns", "is_whole", "root", "rows"}  # attributes that are not offered


class Counts(NamedTuple):
    """The size of a tree. Each leaf counts once, however many names it has.

    `parameters`, `buffers` and `state` are numbers of elements. Of the parameters, `trainable` and `frozen` ones are
    counted separately; of the state, that of an `optimizer` and the `rest`, which is random states, counters and the
    like. `bytes` is the memory of all leaves, with shared memory counted once, and `local_bytes` is what this process
    has of it: less if leaves are sharded. `unknown` is the number of leaves whose shape is not known yet, as in a lazy
    layer.

    >>> import torch, leafwise as lw
    >>> counts = lw.tree(torch.nn.BatchNorm1d(8)).counts
    >>> counts.leaves, counts.parameters, counts.buffers
    (5, 16, 17)
    """

    names: int
    leaves: int
    parameters: int
    trainable: int
    frozen: int
    buffers: int
    state: int
    bytes: int
    unknown: int
    optimizer: int
    rest: int
    local_bytes: int


def tree(source: Any) -> "Tree":
    """Returns the tree of a model, an optimizer, a container of these, or a checkpoint.

    A checkpoint is given by its path or URL, and only its header is read. Values are never copied: the leaves refer to
    the framework's own arrays. A Tree is returned as it is. If a declared tie was undone, this warns (`TieWarning`).

    >>> import torch, leafwise as lw
    >>> t = lw.tree(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
    >>> t["2.weight"].shape
    (1, 8)
    >>> len(t), t.counts.parameters
    (4, 49)
    """
    if isinstance(source, Tree):
        return source
    if isinstance(source, str | os.PathLike):
        source = import_module(FILES).open_file(source)
    walked = Tree(walk(source))
    if not walked.columns.row_values:
        check_found(walked, "walk")
    for undone in walked.undone:
        warn(TieWarning(f"{undone}; {undone.repair()}"))
    return walked


def open(
    path: "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]",
    *,
    strict: bool | None = None,
    max_bytes: int | None = None,
    max_steps: int | None = None,
    max_download: int | None = None,
) -> "Tree":
    """Opens a checkpoint: a file, a folder of files, or a URL. Only its header is read. Close it by using `with`.

    Reads safetensors, PyTorch's `.pt` and `.bin`, whole models, TorchScript and `.pt2`, distributed checkpoints, plain
    pickles, `.npz` and `.npy`, GGUF, MXNet's `.params`, Flax's `.msgpack`, Orbax, and formats that installed packages
    add, recognized by their content. Code in a file is never run: an object of a class that leafwise does not know is
    kept as a description, listed in `opaque`. With `strict`, a file with such an object is refused.

    A list of files that each process of a training run wrote for itself is opened as one checkpoint: tensors of which
    each file has a part are put together. A folder with only such files, called `rank0.pt` and so on, is one, too.

    A file is refused if listing its leaves needs more than `max_bytes` of memory or `max_steps` steps of work. With the
    default limits, a file of 100 MB never takes more than a few seconds and 500 MB of memory, whatever it contains.
    Raise the limits for a file that you trust. If a web server can only send whole files, the file is downloaded to a
    temporary file, unless it has more than `max_download` bytes (5 GB by default).

    >>> import numpy, tempfile, leafwise as lw
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     numpy.savez(f"{folder}/model.npz", **{"0.weight": numpy.ones((2, 3))})
    ...     with lw.open(f"{folder}/model.npz") as t:
    ...         t["0.weight"].shape, t["0.weight"].numpy((0, slice(1, None)))
    ((2, 3), array([1., 1.]))
    """
    limits = {"max_bytes": max_bytes, "max_steps": max_steps, "max_download": max_download}
    if isinstance(path, list | tuple) and all(isinstance(part, str | os.PathLike) for part in path):
        return tree(import_module(FILES).open_files(path, strict=strict, **limits))
    if not isinstance(path, str | os.PathLike):
        raise WalkError(
            f"lw.open takes a path or a URL, not {type(path).__name__}; for an object in memory, use lw.tree"
        )
    return tree(import_module(FILES).open_file(path, strict=strict, **limits))


class Tree(Table, kind="tree"):
    """The leaves and nodes of a model or a checkpoint, or of a part of it; see `lw.tree`.

    Iterating over a tree yields every leaf once. `t["0.weight"]` is a leaf, and `t["0"]` is the part below a node: a
    tree, too. Such paths are relative to the root of the tree, whereas `leaf.path` is always the full path. A tree
    prints as a picture, and `with` closes its file.

    >>> import torch, leafwise as lw
    >>> t = lw.tree(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()))
    >>> t["0"]["weight"].path
    Path('0.weight')
    >>> [str(path) for path, leaf in t.select("**.bias").items()]
    ['0.bias']

    For contributors: `columns` is the result of the walk, and a tree is a part of it. `root` is the number of its root
    node, `rows` are its names, and `is_whole` is False for a selection; leafwise/core/parts.py has what verbs ask.
    """

    def __init__(self, columns: Columns, node: int = 0, rows: Sequence[int] | None = None) -> None:
        self.columns = columns
        self.root = node
        self.is_whole = rows is None
        if rows is None:
            rows = range(*columns.row_ranges[node]) if node else range(len(columns.row_nodes))
        self.rows = rows

    # -- leaves ----------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Leaf]:
        """Yields every leaf once, in the framework's own order."""
        columns = self.columns
        return (columns.leaf_of(row) for row in self._first_rows)

    def __len__(self) -> int:
        return len(self._first_rows)

    def items(self) -> list[tuple[Path, Leaf]]:
        """Every leaf once, each with its first path in this tree."""
        columns = self.columns
        return [(columns.row_path(row), columns.leaf_of(row)) for row in self._first_rows]

    def select(self, where: Any) -> "Tree":
        """The leaves that match a query, as a tree.

        `where` is a glob such as `"**.weight"`, relative to the root of this tree; `lw.where(...)`; a compiled regular
        expression; a function of a leaf; or a path. A glob or a path that names a node means the leaves below it:
        `"layers.0"`, `"layers.{0..3}"`, `"**.attn"`. See `Query`. If nothing matches, the result is an empty tree.
        """
        columns = self.columns
        matches = Query.of(where).leaves(columns, self.root, self.rows)
        ties = columns.ties
        return Tree(columns, self.root, [row for row in self.rows if ties.get(row, row) in matches])

    def find(self, *words: str) -> "Tree":
        """The leaves whose path contains every word, as a tree. If nothing matches, it is empty.

        A word that is the path of a node means the leaves below it, and a word with wildcards is a glob. Upper and
        lower case are distinguished only if the word has upper-case letters.

        >>> import torch, leafwise as lw
        >>> t = lw.tree(torch.nn.TransformerEncoderLayer(8, 2))
        >>> [str(path) for path, _ in t.find("proj", "bias").items()]
        ['self_attn.in_proj_bias', 'self_attn.out_proj.bias']
        """
        return self.select(words_query(self, words))

    def top(self, count: int = 10) -> "Largest":
        """The largest leaves by bytes, as a table. Each leaf counts once, however many names it has.

        >>> import torch, leafwise as lw
        >>> [(row.path, row.bytes) for row in lw.tree(torch.nn.Linear(4, 8)).top(1)]
        [('weight', 128)]
        """
        from leafwise.core.results.totals import largest  # it imports this module, and is rarely needed

        return largest(self, count)

    def by(self, what: str, *, depth: int | None = None, top: int | None = None) -> "Totals":
        """Totals by `dtype`, `kind`, `section`, `role`, `module`, `type`, `depth`, `device` or `file`, as a table.

        Each leaf counts once, however many names it has, so that the totals add up to `counts`. `module` is the node
        below the root of this tree, or, with `depth`, that many entries of the path. `type` is the class of the layer,
        `depth` the number of entries of the path, and `file` the file of a checkpoint. With `top`, only the largest
        groups are listed, and the others are one row.

        >>> import torch, leafwise as lw
        >>> t = lw.tree(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)))
        >>> {row.name: (row.leaves, row.parameters, row.bytes) for row in t.by("type")}
        {'Linear': (2, 40, 160), 'BatchNorm1d': (5, 16, 136)}
        """
        from leafwise.core.results.totals import totals

        return totals(self, what, depth, top)

    @cached_property
    def _first_rows(self) -> Sequence[int]:
        ties = self.columns.ties
        if not ties:
            return self.rows
        if self.is_whole and not self.root:
            return [row for row in self.rows if row not in ties]
        chosen: dict[int, int] = {}
        for row in self.rows:
            leaf = ties.get(row, row)
            if leaf == row or leaf not in chosen:
                chosen[leaf] = row
        return sorted(chosen.values())

    # -- places ----------------------------------------------------------------------------------------

    def __getitem__(self, path: str | int | Path) -> Any:
        """What is at a path: a leaf, the tree below a node, or a plain value."""
        names = self._names_of(path)
        content = self._find(names)
        if content is None:
            raise PathError(nothing_at(self, names))
        return content[0]

    def __contains__(self, path: object) -> bool:
        if isinstance(path, Leaf):
            return any(path == leaf for leaf in self)
        try:
            return self._find(self._names_of(path)) is not None
        except QueryError:
            return False

    def _ipython_key_completions_(self) -> list[str]:
        """The completions that IPython offers after `t["` and Tab: nodes and leaves, the upper levels first."""
        columns = self.columns
        depth = len(self.path.names)
        names = [columns.node_path(node).names[depth:] for node in node_numbers(self) if not columns.hidden(node)]
        names += [columns.row_path(row).names[depth:] for row in self.rows]
        upper = sorted(dict.fromkeys(steps for steps in names if steps), key=len)[:_MAX_COMPLETIONS]
        return [".".join(map(quote, steps)) for steps in upper]

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _FOR_CONTRIBUTORS]

    def _names_of(self, path: Any) -> tuple[str, ...]:
        """The names from the root of this tree to a path. Text is relative; a Path that begins with the path of the
        root is absolute."""
        names = Path.parse(str(path) if isinstance(path, int) else path).names
        prefix = self.path.names
        absolute = isinstance(path, Path) and prefix and names[: len(prefix)] == prefix
        return names[len(prefix) :] if absolute else names

    def _find(self, names: tuple[str, ...]) -> tuple[Any] | None:
        """The object at these names, in a tuple, because a plain value may be None; None if there is nothing."""
        columns = self.columns
        if not names:
            return (self,)
        owners = nodes_at(self, names[:-1])
        for owner in owners:
            for row in columns.own_rows(owner):
                if columns.row_names[row] == names[-1] and (self.is_whole or row in self.rows):
                    return (columns.leaf_of(row),)
        for child in columns.children_named(owners, names[-1]):
            node = columns.repeats[child] if child in columns.listed_elsewhere else child
            return (Tree(columns, node, None if self.is_whole else rows_below(self, node)),)
        for owner in owners:
            for name, value in columns.own_scalars.get(owner, ()):
                if name == names[-1]:
                    return (value,)
        return None

    # -- facts -----------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The path of the root of this tree; empty if the tree is the whole walk."""
        return self.columns.node_path(self.root)

    @property
    def nodes(self) -> list[Node]:
        """All nodes, including those without parameters; for a selection, the nodes that lead to its leaves."""
        columns = self.columns
        return [Node(columns, node) for node in node_numbers(self) if not columns.hidden(node)]

    @property
    def ties(self) -> list[Tie]:
        """The ties of this tree: one `Tie` for each leaf with several names."""
        columns = self.columns
        ties = []
        for row in self._first_rows:
            leaf = columns.ties.get(row, row)
            if leaf in columns.further_rows:
                names = tuple(columns.name(row) for row in columns.rows_of(leaf))
                op = next((name.op for name in names if name.op != "same"), SAME)
                ties.append(Tie(columns.leaf_of(leaf), names, op))
        return ties

    @property
    def shared_memory(self) -> list[SharedMemory]:
        """Leaves that share memory and are not tied, with the reason."""
        columns = self.columns
        leaves = leaves_of(self) if columns.overlaps else set()
        return [
            SharedMemory(
                tuple(columns.leaf_of(leaf) for leaf in members if leaf in leaves),
                "shared memory, separate gradients" if separate else "partly shared memory",
            )
            for members, separate in columns.overlaps
            if len(leaves.intersection(members)) > 1
        ]

    @property
    def undone(self) -> list[UndoneTie]:
        """Ties that were declared, by `lw.tie` or `lw.keep_ties`, and have been undone."""
        return [undone for undone, rows in self.columns.undone.items() if any(row in self.rows for row in rows)]

    @property
    def scalars(self) -> dict[Path, Any]:
        """The plain values (numbers, strings, other objects) in containers and optimizers."""
        columns = self.columns
        if not self.is_whole:
            return {}
        nodes = range(self.root, columns.node_ends[self.root])
        return {columns.scalar_path(node, name, value): value for node, name, value in columns.scalars if node in nodes}

    @property
    def opaque(self) -> list[OpaqueObject]:
        """Objects of a file whose classes leafwise does not load, outermost first. Arrays in them are leaves.

        >>> import datetime, tempfile, torch, leafwise as lw
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torch.save({"weight": torch.ones(2), "made": datetime.date(2026, 1, 31)}, f"{folder}/model.pt")
        ...     with lw.open(f"{folder}/model.pt") as t:
        ...         [(str(path), class_name) for path, class_name in t.opaque]
        [('made', 'datetime.date')]
        """
        return opaque_objects(self.columns, self.root) if self.is_file else []

    @property
    def counts(self) -> Counts:
        """The numbers of names, leaves, parameters and bytes. Each leaf counts once, however many names it has.

        >>> import torch, leafwise as lw
        >>> shared = torch.nn.Linear(8, 8)
        >>> counts = lw.tree(torch.nn.Sequential(shared, torch.nn.ReLU(), shared)).counts
        >>> counts.names, counts.leaves, counts.parameters, counts.bytes
        (4, 2, 72, 288)
        """
        sizes = {"parameter": 0, "buffer": 0, "state": 0}
        optimizer = 0
        trainable = frozen = memory = local = unknown = 0
        for (spec, kind, _, section), times in tally(self.columns.facts(self._first_rows)):
            sizes[kind] += spec.size * times
            memory += spec.nbytes * times
            local += spec.nbytes_here * times
            unknown += times if spec.shape is None else 0
            optimizer += spec.size * times if section == "optimizer" else 0
            if kind == "parameter":
                trainable += spec.size * times if spec.trainable else 0
                frozen += spec.size * times if spec.trainable is False else 0
        shared = bytes_counted_twice(self)
        return Counts(
            names=len(self.rows),
            leaves=len(self),
            parameters=sizes["parameter"],
            trainable=trainable,
            frozen=frozen,
            buffers=sizes["buffer"],
            state=sizes["state"],
            optimizer=optimizer,
            rest=sizes["state"] - optimizer,
            bytes=memory - shared,
            unknown=unknown,
            local_bytes=local - shared,
        )

    # -- files -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the file of this tree. Arrays that were read stay valid. Does nothing for a model in memory."""
        close = getattr(self.columns.node_objects[0], "close", None) if self.is_file else None
        if close is not None:
            close()

    @property
    def is_file(self) -> bool:
        """Whether this is the tree of a file, a folder of files or a URL."""
        return type(self.columns.node_objects[0]).__module__.startswith(FILES)

    def __enter__(self) -> "Tree":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- pictures (render is imported on first use) ------------------------------------------------------

    def text(self, *, width: int | None = None, full: bool = False, depth: int | None = None) -> str:
        """The picture as plain text, `width` columns wide. `depth` limits the levels; `full=True` shows everything."""
        return rendered(self, width, full=full, depth=whole_number(depth, "depth", 0))
