"""A plan: where each leaf gets its values, and every problem with loading it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from leafwise.core.memory.ops import Op
from leafwise.core.pairing.proposals import Proposal, as_renames
from leafwise.core.pairing.row_matching import Prefix
from leafwise.core.parts import not_understood
from leafwise.core.results.outline import Hint
from leafwise.core.results.result import Table
from leafwise.core.roles.recipes import Recipe
from leafwise.core.tree import Tree
from leafwise.share.tie_requests import TieRequest

if TYPE_CHECKING:
    from leafwise.checkpoint.planning.optimizer_plan import OptimizerPlan

Kind = Literal["missing", "unexpected", "shape", "dtype", "tie", "unsupported", "nothing"]
ALLOWABLE = ("missing", "unexpected", "shape")


class Problem(NamedTuple):
    """A problem that a load would have; see `lw.plan`.

    `kind` is "missing", "unexpected", "shape", "dtype", "tie", "unsupported" or "nothing"; `allow=` can permit the
    first three. `name` is the name of the leaf or value, and `message` explains the problem. Problems with the same
    `several` share a message if there are many: it is the message with {} for their names and how many leaves they are,
    or with {} for the names and {count} for their number.

    >>> import torch, leafwise as lw
    >>> lw.plan(torch.nn.Linear(4, 2, bias=False), {"weight": torch.zeros(3, 4)}).problems[0].kind
    'shape'
    """

    kind: Kind
    name: str
    message: str
    several: str = ""


def few(names: Sequence[str], count: int = 3) -> str:
    """The first names of a list.

    >>> few(["a", "b", "c"], 2), few(["a", "b"], 2)
    ('a, b, …', 'a, b')
    """
    return ", ".join(names[:count]) + (", …" if len(names) > count else "")


def turned_shape(shape: tuple[int, ...], order: tuple[int, ...] | None) -> tuple[int, ...]:
    """A shape whose axes are taken in another order; the same shape if that is None."""
    return shape if order is None else tuple(shape[axis] for axis in order)


def turned(array: Any, order: tuple[int, ...] | None) -> Any:
    """An array whose axes are taken in another order."""
    return array if order is None else array.transpose(order)


class Feed(NamedTuple):
    """Where a leaf of the target gets its values: the row of the source, and the order of its axes."""

    row: int
    name: str
    source: int
    order: tuple[int, ...] | None
    how: tuple[str, ...]


class MustAgree(NamedTuple):
    """Two rows of the source for one tied leaf of the target. Row `first`, with its axes in `order`, fills the leaf;
    row `second`, for the name `name`, must equal that leaf seen through `op`. `rows` are the two rows of the target."""

    name: str
    first: int
    order: tuple[int, ...] | None
    second: int
    op: Op
    rows: tuple[int, int]


class RestoredTie(NamedTuple):
    """A tie of the source that the target does not have yet. If the source has a value for each of the two names,
    `rows` are the rows that must be equal."""

    request: TieRequest
    rows: tuple[int, int] | None


def the_source(source: Tree) -> str:
    """What messages call a source: "the checkpoint" if it is a file, a folder or a URL."""
    return "the checkpoint" if source.is_file else "the source"


def _foreign(t: Tree, sharded: bool) -> dict[int, str]:
    ties = t.columns.ties
    return {ties.get(row, row): reason for row, reason in not_understood(t, sharded).items()}


class Plan(Table, kind="plan"):
    """The result of `lw.plan`: what a load would do. Prints as a table.

    `holds` is True if `lw.load` would succeed. `problems` lists the reasons why it would not, and `allowed` lists the
    differences that `allow=` permits. `missing` and `unexpected` list names. `coverage` is the share of the model's
    parameters that get values. `proposals` has possible renames; `rename="auto"` applies those that are certain, and
    `applied` lists them. `library` is the library whose names and layouts the source has, if it has other ones than the
    model, and `kept` lists the leaves that a checkpoint of this kind never has and that keep their values. `notes` has
    remarks.

    >>> import torch, leafwise as lw
    >>> plan = lw.plan(torch.nn.Linear(4, 2), {"weight": torch.zeros(2, 4), "scale": torch.ones(1)})
    >>> plan.holds, plan.missing, plan.unexpected, plan.coverage
    (False, ['bias'], ['scale'], 0.8)
    """

    def __init__(self, target: Tree, source: Tree, allow: frozenset[str]) -> None:
        self.target, self.source = target, source
        self.feeds: list[Feed] = []
        self.problems: list[Problem] = []
        self.allowed: list[Problem] = []
        self.prefixes: list[Prefix] = []
        self.proposals: list[Proposal] = []
        self.applied: list[Proposal] = []
        self.notes: list[str] = []
        self.warnings: list[str] = []  # what a load warns about
        self.must_agree: list[MustAgree] = []
        self.restored_ties: list[RestoredTie] = []
        self.scalars: dict[tuple[int, str], Any] = {}
        self.optimizers: list[OptimizerPlan] = []
        self.recomputed: dict[int, Any] = {}  # by row, computed values of non-persistent buffers on meta
        # By leaf, the reason why leafwise does not understand it, for each side.
        # Each rank fills its parts of sharded leaves; the source must have whole ones.
        self.foreign, self.foreign_sources = _foreign(target, True), _foreign(source, False)
        self.refused: dict[tuple[str, str], list[str]] = {}  # by reason and side, the names that are refused
        self.library = ""  # the library whose names and layouts the source is read by, if not by its own
        self.may_be_carried = False  # whether the source may have weights of another framework
        self.is_carried = False  # whether it has, and is read in the layout of that framework
        self.flatten: dict[str, int | None] = {}  # leaves whose inputs are reordered, with the channels if given
        self.recipes: dict[int, Recipe] = {}  # by row of the source, leaves that are made from stored ones
        self.keeps: frozenset[str] = frozenset()  # names that such a source never has, and which keep their values
        self.keeps_what = ""  # what these are
        self.kept: list[str] = []  # those of them that are in the model
        self.parameters = self.covered = self.leaves = 0
        self.castable = 0  # problems that `cast=True` would solve
        self.is_cast = False  # whether values are cast to the dtypes of the model
        self.saturate = False  # whether values that do not fit become the nearest that do
        self._allow = allow

    @property
    def holds(self) -> bool:
        """Whether `lw.load` would succeed."""
        return not self.problems

    @property
    def coverage(self) -> float:
        """The share of the model's parameters that get values from the source."""
        return self.covered / self.parameters if self.parameters else 1.0

    @property
    def missing(self) -> list[str]:
        """Names that are in the model but not in the source, allowed or not."""
        return self._names("missing")

    @property
    def unexpected(self) -> list[str]:
        """Names that are in the source but not in the model, allowed or not."""
        return self._names("unexpected")

    @property
    def renames(self) -> list[tuple[str, str]]:
        """The certain renames, which `rename="auto"` applies or has applied, in the form that `rename=` takes."""
        return as_renames(proposal for proposal in (*self.applied, *self.proposals) if proposal.certain)

    def _names(self, kind: str) -> list[str]:
        return [problem.name for problem in (*self.problems, *self.allowed) if problem.kind == kind]

    def add(self, kind: Kind, name: str, message: str, several: str = "") -> None:
        """Adds a problem, to `allowed` if its kind is allowed."""
        (self.allowed if kind in self._allow else self.problems).append(Problem(kind, name, message, several))

    @property
    def only_needs_cast(self) -> bool:
        """Whether `cast=True` would solve every problem."""
        return bool(self.problems) and self.castable == len(self.problems)


def advice(plan: Plan) -> Hint | None:
    """What to pass in order to load what can be loaded, if `allow=` and `cast=` can permit every problem. (A
    message about a dtype says what to pass.)"""
    kinds = [kind for kind in dict.fromkeys(problem.kind for problem in plan.problems) if kind != "dtype"]
    uncastable = sum(problem.kind == "dtype" for problem in plan.problems) > plan.castable
    if not kinds or not set(kinds) <= set(ALLOWABLE) or uncastable:
        return None
    listed = ", ".join(f'"{kind}"' for kind in kinds)
    flags = " ".join(f"--allow {kind}" for kind in kinds)
    cast = bool(plan.castable)
    return Hint(
        f"to load everything else, pass allow={{{listed}}}{' and cast=True' * cast}",
        f"to load everything else, pass {flags}{' --cast' * cast}",
    )
