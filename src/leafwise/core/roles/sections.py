"""Which arrays of a plain mapping are weights, which are optimizer state, and which are the rest of a training run.

A model and an optimizer in memory know what their arrays are. For files and for dicts of arrays it is decided here:
from the structure first, then from the keys that training loops use. What is not certain is a weight. docs/tree.md
documents the rules.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from leafwise.core.capabilities.sorting import Sorting
from leafwise.core.dotted import VirtualNode
from leafwise.core.dtypes import DTYPES, is_float
from leafwise.core.home import LeafKind, Spec, capability_or_none
from leafwise.core.roles import section_keys

if TYPE_CHECKING:
    from leafwise.core.columns import Columns

_KIND_OF_KEY: dict[str, LeafKind] = {
    **dict.fromkeys(section_keys.OPTIMIZER, "state"),
    **dict.fromkeys(section_keys.REST, "rest"),
    **dict.fromkeys(section_keys.BUFFERS, "buffer"),
}

# The states of random generators: of PyTorch on a CPU and on a GPU, and of NumPy and Python.
_RANDOM_FORMS = frozenset({("uint8", (5056,)), ("uint8", (16,)), ("uint32", (624,))})
_RANDOM_WORDS = frozenset(
    {"cpu", "cuda", "generator", "generators", "np", "numpy", "python", "random", "rng", "rngs", "seed", "seeds"}
)
_WORD = re.compile(r"[a-z]+")

_NOT_NUMBERS = frozenset({"object", "structured"})
_WHOLE = frozenset(name for name, dtype in DTYPES.items() if dtype.kind in ("int", "bool"))
_NEVER_PACKED = frozenset({"bool", "int64", "uint64"})  # quantized weights are packed into smaller integers,
_PACKED = frozenset({"codes", "indices", "qidxs", "qweight", "weight"})  # except these
_INDEX_ENDINGS = ("mask", "_ids", "_idx", "_index")
_BUFFER_NAMES = frozenset({"_extra_state", "inv_freq", "masked_bias", "running_mean"})


def is_optimizer_state(keys: Iterable[object]) -> bool:
    """Whether a mapping with these keys is the `state_dict()` of an optimizer, in which no tensor is a parameter."""
    return {"state", "param_groups"}.issubset(keys)


def resolve_kinds(columns: "Columns") -> tuple[list[LeafKind], dict[int, Spec]]:
    """The kind of each row: as the walk found it, or as it is decided here if the walk found only an array. Also the
    specs that were needed for it, by row."""
    found = columns.found_kinds
    if {"array", "recorded", "rest"}.isdisjoint(found):
        return found, {}
    resolver = _Resolver(columns)
    return resolver.kinds, resolver.specs


class _Resolver:
    """Decides the kinds of arrays in plain mappings; `kinds` has those of all rows."""

    def __init__(self, columns: "Columns") -> None:
        self.columns = columns
        self.kinds = list(columns.found_kinds)
        if "recorded" in self.kinds:
            self.kinds = ["array" if kind == "recorded" else kind for kind in self.kinds]
        self.specs = _specs(columns)
        self._has_states = "state" in columns.found_kinds
        self._random_nodes: dict[int, bool] = {}  # whether the path of a node says so; each is computed once
        self._mark_flat_optimizers()
        top = columns.nodes_at_path(0)[-1]
        if "rest" in self.kinds:
            self._mark_state_of_optimizers(top)
        if isinstance(columns.node_objects[top], Mapping):
            self._mark_checkpoint(top)
        self._mark_inside_nodes()
        self._mark_statistics()
        self._mark_by_form()
        for leaf, rows in columns.further_rows.items():
            if columns.found_kinds[leaf] == "array" and "array" in (self.kinds[row] for row in rows):
                self.kinds[leaf] = "array"  # a weight that also has a name in another section

    def _mark(self, rows: Iterable[int], kind: LeafKind) -> None:
        """Gives a kind to those of the rows that are arrays whose kind is not known."""
        for row in rows:
            if row in self.specs:
                self.kinds[row] = kind

    # -- by structure ------------------------------------------------------------------------------------

    def _mark_flat_optimizers(self) -> None:
        """Marks the optimizers in files whose names are flat. In nested dicts, the walk has found them."""
        columns = self.columns
        names, parents = columns.node_names, columns.node_parents
        if "param_groups" not in names:
            return
        with_groups = {parents[node] for node, name in enumerate(names) if name == "param_groups"}
        with_state = {parents[node] for node, name in enumerate(names) if name == "state"}
        end = 0
        for node in sorted(with_groups & with_state):
            if node < end:
                continue  # inside the one before
            end = columns.node_ends[node]
            for row in self._rows(node):
                if row in self.specs or self.kinds[row] == "rest":
                    self.kinds[row] = "state"

    def _mark_state_of_optimizers(self, top: int) -> None:
        """Marks what is known to be state, and is below the key of an optimizer."""
        for child in self.columns.children(top):
            if _key(self.columns.node_names[child]) in section_keys.OPTIMIZER:
                for row in self._rows(child):
                    self.kinds[row] = "state" if self.kinds[row] == "rest" else self.kinds[row]

    def _mark_inside_nodes(self) -> None:
        """Marks the arrays in containers that belong to a node which knows their kind."""
        columns = self.columns
        objects, parents = columns.node_objects, columns.node_parents
        examples = {type(obj): obj for obj in objects}
        offers = {cls: capability_or_none(columns.home(obj), Sorting) for cls, obj in examples.items()}
        if not any(offers.values()):
            return
        for node in range(1, len(objects)):
            owner = objects[parents[node]]
            sorting = offers[type(owner)]
            if sorting is not None and (kind := sorting.kind_inside(owner, columns.node_names[node])) is not None:
                self._mark(self._rows(node), kind)

    def _mark_statistics(self) -> None:
        """Marks `batch_stats`, the running statistics of Flax Linen, beside `params` or alone in a node: also in the
        states of a training run, which are dataclasses and named tuples."""
        columns = self.columns
        nodes = [
            node
            for node, name in enumerate(columns.node_names)
            if name in section_keys.BUFFERS and node and not isinstance(columns.node_objects[node], VirtualNode)
        ]
        rows = [row for row, name in enumerate(columns.row_names) if name in section_keys.BUFFERS]
        places = [(columns.node_parents[node], self._rows(node)) for node in nodes]
        places += [(columns.row_nodes[row], range(row, row + 1)) for row in rows]
        for owner, inside in places:
            names = {columns.node_names[child] for child in columns.children(owner)}
            names.update(columns.row_names[row] for row in columns.own_rows(owner))
            if "params" in names or names <= section_keys.BUFFERS:
                self._mark(inside, "buffer")

    # -- by the keys of a training checkpoint --------------------------------------------------------------

    def _mark_checkpoint(self, top: int, is_wrapped: bool = False) -> None:
        """Marks the sections of a mapping if it is a training checkpoint: if it has weights below the key of a model,
        or an optimizer. Names with dots are those of a model, whatever they are."""
        columns = self.columns
        children = {
            child: _key(columns.node_names[child])
            for child in columns.children(top)
            if not isinstance(columns.node_objects[child], VirtualNode)
        }
        has_model = any(_is_model(key) and self._rows(child) for child, key in children.items())
        if has_model or any(self._is_optimizer(child, key) for child, key in children.items()):
            for child, key in children.items():
                if key in _KIND_OF_KEY:
                    self._mark(self._rows(child), _KIND_OF_KEY[key])
            for row in columns.own_rows(top):
                key = _key(columns.row_names[row])
                # A single number beside the weights is a loss, a score or a counter.
                if key in _KIND_OF_KEY or (has_model and row in self.specs and self.specs[row].shape == ()):
                    self._mark([row], _KIND_OF_KEY.get(key, "rest"))
        for child, key in children.items() if not is_wrapped else ():
            if key in section_keys.WRAPPERS and isinstance(columns.node_objects[child], Mapping):
                self._mark_checkpoint(child, is_wrapped=True)

    def _rows(self, node: int) -> range:
        return range(*self.columns.row_ranges[node])

    def _is_optimizer(self, node: int, key: str) -> bool:
        columns = self.columns
        if self._has_states and any(columns.found_kinds[row] == "state" for row in self._rows(node)):
            return True
        parts = (columns.node_names[child] for child in columns.children(node))
        return key in section_keys.OPTIMIZER and not section_keys.INSIDE_OPTIMIZER.isdisjoint(parts)

    # -- by the form of an array ---------------------------------------------------------------------------

    def _mark_by_form(self) -> None:
        """Marks the states of random generators, and the arrays in a state dict that a model would have as buffers."""
        names, kinds = self.columns.row_names, self.kinds
        dtypes = {spec.dtype for spec in {id(spec): spec for spec in self.specs.values()}.values()}
        if all(map(is_float, dtypes)) and _BUFFER_NAMES.isdisjoint(names):
            return  # as in almost all state dicts: nothing below applies
        candidates = [
            (row, spec) for row, spec in self.specs.items() if spec.dtype in _WHOLE or names[row] in _BUFFER_NAMES
        ]
        for row, spec in self.specs.items():
            if kinds[row] == "array" and spec.kind is not None:
                kinds[row] = spec.kind
            elif kinds[row] == "array" and (spec.dtype in _NOT_NUMBERS or spec.dtype[:2] in ("<U", "|S", ">U")):
                kinds[row] = "rest"  # text or Python objects, as in an npz file
        for row, spec in candidates:
            if kinds[row] != "array" or spec.trainable is not None:
                continue
            if names[row] == "running_mean":
                self._mark_running(row, spec)
            elif names[row] in _BUFFER_NAMES:
                kinds[row] = "buffer"
            elif (spec.dtype, spec.shape) in _RANDOM_FORMS and self._is_random(row):
                kinds[row] = "rest"
            elif _is_whole_buffer(names[row], spec):
                kinds[row] = "buffer"

    def _is_random(self, row: int) -> bool:
        """Whether the path of an array says that it is the state of a random generator."""
        columns = self.columns
        node = columns.row_nodes[row]
        if ("0", "MT19937") in columns.own_scalars.get(node, ()):  # the first item of NumPy's own tuple
            return True
        if _has_random_word(columns.row_names[row]):
            return True
        above = []
        while node > 0 and node not in self._random_nodes:
            above.append(node)
            node = columns.node_parents[node]
        is_random = self._random_nodes.get(node, False)
        for node in reversed(above):
            is_random = is_random or _has_random_word(columns.node_names[node])
            self._random_nodes[node] = is_random
        return is_random

    def _mark_running(self, row: int, spec: Spec) -> None:
        """Marks the running mean of a batch norm, and the running variance beside it."""
        columns = self.columns
        siblings = {columns.row_names[sibling]: sibling for sibling in columns.own_rows(columns.row_nodes[row])}
        variance = siblings.get("running_var", -1)
        if variance in self.specs and spec.shape == self.specs[variance].shape and len(spec.shape or ()) == 1:
            self._mark([row, variance], "buffer")


def _specs(columns: "Columns") -> dict[int, Spec]:
    """The specs of the arrays whose kind is not known, except of those that raise."""
    found, values = columns.found_kinds, columns.row_values
    rows: Sequence[int] = range(len(found))
    if found.count("array") < len(found):
        rows = [row for row in rows if found[row] == "array"]
        values = [values[row] for row in rows]
    specs: dict[int, Spec] = {}
    for batch in columns.batches(rows, values):
        try:
            specs.update(zip(batch.rows, batch.specs, strict=True))
        except Exception:
            for row, value in zip(batch.rows, batch.values, strict=True):
                with suppress(Exception):
                    specs[row] = batch.home.spec(value)
    return specs


def _key(name: str) -> str:
    return name.lower().replace("-", "_").strip("_")


def _has_random_word(name: str) -> bool:
    return not _RANDOM_WORDS.isdisjoint(_WORD.findall(name.lower()))


def _is_model(key: str) -> bool:
    # Megatron has model0, model1, …
    return key in section_keys.MODEL or (key.startswith("model") and key[5:].isdecimal())


def _is_whole_buffer(name: str, spec: Spec) -> bool:
    """Whether an array of integers or booleans is an index, a mask or a counter, not a packed quantized weight."""
    shape, name = spec.shape or (), name.lower()
    if not shape or name.endswith(_INDEX_ENDINGS):
        return True
    if spec.dtype in _NEVER_PACKED:
        return name not in _PACKED
    return len(shape) == 4 and shape[:2] == (1, 1) and shape[2] == shape[3]  # the causal mask of GPT-2, in uint8
