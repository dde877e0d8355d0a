"""`lw.ties`: which leaves are tied, which ties were undone, and which leaves are equal but not tied."""

from typing import Any, NamedTuple

from leafwise.core import registry as homes
from leafwise.core.capabilities.comparing import Comparing
from leafwise.core.capabilities.stepping import Stepping, check_known
from leafwise.core.leaf import Leaf, SharedMemory, Tie, UndoneTie, shape_text
from leafwise.core.memory.ops import Op
from leafwise.core.parts import check_whole, first_rows
from leafwise.core.results.result import RowTable
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.errors import WalkError
from leafwise.share.equal import equal_leaves


class EqualUntied(NamedTuple):
    """Leaves that are bitwise equal but not tied, as `lw.ties(model, equal_untied=True)` lists them.

    `op` says how the other leaves relate to the first: `same` or `transpose`. `constant` is True if all elements are
    the same number, as in new biases and norms. Then it means little that the leaves are equal.

    >>> import copy, torch, leafwise as lw
    >>> layer = torch.nn.Linear(4, 4, bias=False)
    >>> equal = lw.ties(torch.nn.Sequential(layer, copy.deepcopy(layer)), equal_untied=True).equal_untied[0]
    >>> [str(leaf.path) for leaf in equal.leaves], equal.constant
    (['0.weight', '1.weight'], False)
    """

    leaves: tuple[Leaf, ...]
    op: Op
    constant: bool


class OptimizerMismatch(NamedTuple):
    """A problem with a parameter in an optimizer, as `lw.ties(model, optimizer=optimizer)` lists it.

    `problem` is "twice" if the optimizer steps a leaf twice, "stale" if it steps a parameter that is no longer in the
    model, and "shared memory" if it steps two parameters that share memory. `message` explains it.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> net.weight = torch.nn.Parameter(torch.zeros(2, 4))
    >>> [problem.problem for problem in lw.ties(net, optimizer=optimizer).optimizer]
    ['stale']
    """

    problem: str
    path: str
    message: str
    like: tuple[str, ...] = ()  # if stale: the leaves that may have replaced it
    place: str = ""  # if stale: where it is in the optimizer, and its shape


class Ties(RowTable[Tie], kind="ties"):
    """The result of `lw.ties`: a sequence of `Tie`. Prints as a table with the bytes saved.

    `undone` lists declared ties that were undone, and `shared_memory` lists parameters that share memory but are not
    tied. `equal_untied` and `optimizer` are None unless `lw.ties` was asked for them.

    >>> import torch, leafwise as lw
    >>> shared = torch.nn.Linear(4, 4, bias=False)
    >>> ties = lw.ties(torch.nn.Sequential(shared, shared))
    >>> len(ties), ties.bytes_saved, ties.undone
    (1, 64, [])
    """

    def __init__(
        self, t: Tree, equal_untied: list[EqualUntied] | None = None, optimizer: list[OptimizerMismatch] | None = None
    ) -> None:
        self._rows = t.ties
        self.tree = t
        self.undone: list[UndoneTie] = t.undone
        self.shared_memory: list[SharedMemory] = t.shared_memory
        self.equal_untied = equal_untied
        self.optimizer = optimizer

    @property
    def bytes_saved(self) -> int:
        """How many more bytes the model would take if every name had its own memory."""
        return sum(saved for tie in self._rows for saved in bytes_saved(self.tree, tie))


def bytes_saved(t: Tree, tie: Tie) -> list[int]:
    """The bytes that each further name of a tie saves."""
    columns = t.columns
    return [facts.spec.nbytes for facts in columns.facts(columns.further_rows[tie.leaf.number])]


def ties(source: Any, *, equal_untied: bool = False, optimizer: Any = None) -> Ties:
    """Lists the ties of a model or checkpoint: the leaves that have several names.

    `source` is anything that `lw.tree` takes. The result is a sequence of `Tie`, which prints as a table with the bytes
    saved. Its attribute `undone` lists declared ties that were undone, and `shared_memory` lists parameters that share
    memory but have separate gradients.

    With `equal_untied=True`, the result also lists leaves that are bitwise equal but not tied, as `equal_untied`. With
    `optimizer=`, it also lists parameters that the optimizer steps twice, or that are no longer in the model, as
    `optimizer`.

    >>> import torch, leafwise as lw
    >>> model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(100, 16), "head": torch.nn.Linear(16, 100)})
    >>> model["head"].weight = model["embed"].weight
    >>> print(lw.ties(model))
    embed.weight          100×16  float32  6.2 KiB
    └─ head.weight  same                            saves 6.2 KiB
    <BLANKLINE>
    1 tie, 2 names · 6.2 KiB saved
    """
    with opened(source, "ties") as t:
        if equal_untied:
            check_whole(t, "compare")
        return Ties(
            t,
            equal_untied=_equal_untied(t) if equal_untied else None,
            optimizer=None if optimizer is None else optimizer_mismatches(t, optimizer),
        )


def _equal_untied(t: Tree) -> list[EqualUntied]:
    """Compares leaves by a fingerprint first, then bit by bit. Leaves that are transposes of each other are equal."""
    columns = t.columns
    candidates: dict[object, list[int]] = {}
    constants: set[int] = set()
    for leaf in t:
        row = leaf.row
        value = columns.current(row)
        fingerprint = columns.home(value).capability(Comparing, "compare values").fingerprint(value)
        spec = columns.facts([row])[0].spec
        if fingerprint is None or not spec.size:
            continue
        candidates.setdefault((spec.dtype, *sorted(spec.shape or ()), fingerprint), []).append(row)
        if fingerprint[1]:
            constants.add(row)
    if not candidates:
        _check_any_is_read(t)
    shared = {frozenset(memory.leaves) for memory in t.shared_memory}
    groups: list[EqualUntied] = []
    for first, ops in equal_leaves(columns, candidates.values()):
        for name in ("same", "transpose"):
            rows = [row for row, op in ops.items() if op == name]
            leaves = tuple(columns.leaf_of(row) for row in (first, *rows))
            if rows and frozenset(leaves) not in shared:
                groups.append(EqualUntied(leaves, ops[rows[0]], first in constants))
    return groups


def _check_any_is_read(t: Tree) -> None:
    """Raises if no leaf has values, so that nothing was compared."""
    values = [(leaf.path, t.columns.current(leaf.row)) for leaf in t]
    reasons = [(path, t.columns.home(value).cannot_read(value)) for path, value in values]
    if reasons and all(reason for _, reason in reasons):
        raise WalkError(f"no leaf has values to compare; {reasons[0][0]}: {reasons[0][1]}")


def optimizer_mismatches(t: Tree, optimizer: Any) -> list[OptimizerMismatch]:
    """The problems with the parameters that an optimizer steps: stepped twice, not in the tree, or sharing memory."""
    found_home = homes.find(type(optimizer))
    if found_home is None or found_home[1] != "node":
        raise WalkError(f"optimizer= takes an optimizer, not {type(optimizer).__name__}")
    check_known(found_home[0], optimizer)
    columns = t.columns
    held = found_home[0].capability(Stepping).held_by(optimizer)
    rows = {id(value): row for row, value in reversed(list(enumerate(columns.row_values)))}
    problems: list[OptimizerMismatch] = []
    where: dict[int, list[str]] = {}
    values: dict[int, Any] = {}
    for place, value in held:
        where.setdefault(id(value), []).append(place)
        values[id(value)] = value
    absent = [row for row in first_rows(t) if id(columns.row_values[row]) not in where]
    for key, places in where.items():
        row = rows.get(key)
        if row is None:
            spec = columns.home(values[key]).spec(values[key])
            like = [columns.row_text(r) for r in absent if columns.facts([r])[0].spec[:2] == spec[:2]]
            place = f"{places[0]} ({shape_text(spec.shape or ())})"
            problems.append(OptimizerMismatch("stale", "", _stale(place, like), tuple(like), place))
        elif len(places) > 1:
            path = columns.row_text(row)
            problems.append(
                OptimizerMismatch(
                    "twice",
                    path,
                    f"{path} is stepped {len(places)} times, as {' and as '.join(places)}; pass it to the optimizer "
                    "once: model.parameters() lists every parameter once",
                )
            )
    for shared in t.shared_memory:
        stepped = [leaf for leaf in shared.leaves if id(columns.row_values[leaf.row]) in where]
        if len(stepped) > 1:
            names = " and ".join(str(leaf.path) for leaf in stepped)
            path = str(stepped[0].path)
            problems.append(
                OptimizerMismatch(
                    "shared memory",
                    path,
                    f"{names} share memory and are stepped separately, so the same values are updated more than once "
                    f'per step; tie them: lw.tie(model, "{stepped[1].path}", to="{path}", …)',
                )
            )
    return problems


def _stale(place: str, like: list[str]) -> str:
    replaced = f"; it may have been replaced by {' or '.join(like[:3])}, not in the optimizer" if like else ""
    return (
        f"{place} is no longer a parameter of the model, so stepping it changes nothing{replaced}; "
        "create the optimizer after load_state_dict(assign=True), to_empty() or lw.untie(), which replace parameters"
    )
