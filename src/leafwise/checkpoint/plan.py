"""A plan: where each leaf gets its values, and every problem with loading it."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from leafwise.core.match import Prefix
from leafwise.core.memory import Op
from leafwise.core.outline import Shown
from leafwise.core.proposals import Proposal, as_renames
from leafwise.core.tree import Tree
from leafwise.share.tie_requests import TieRequest

if TYPE_CHECKING:
    from leafwise.checkpoint.optimizer_plan import OptimizerPlan

Kind = Literal["missing", "unexpected", "shape", "dtype", "tie", "unsupported", "nothing"]
ALLOWABLE = ("missing", "unexpected", "shape")


class Problem(NamedTuple):
    """A reason not to load, unless its kind is allowed."""

    kind: Kind
    name: str
    message: str


class Feed(NamedTuple):
    """Where a target leaf gets its values: the row of the source, and in which order its axes are taken."""

    row: int
    name: str
    source: int
    order: tuple[int, ...] | None
    how: tuple[str, ...]


class MustAgree(NamedTuple):
    """Two rows of the source for one tied leaf of the target. Row `first`, with its axes in `order`, fills the leaf;
    row `second`, called `name`, must equal what `op` shows of that leaf. `rows` are the two rows of the target."""

    name: str
    first: int
    order: tuple[int, ...] | None
    second: int
    op: Op
    rows: tuple[int, int]


class RestoredTie(NamedTuple):
    """A tie of the source that the target lacks, and gets. `rows` are those of the source that must agree for it, where
    it holds both names."""

    request: TieRequest
    rows: tuple[int, int] | None


def the_source(source: Tree) -> str:
    """What messages call a source: "the checkpoint" if it is a file, a folder or a URL."""
    return "the checkpoint" if source.is_file else "the source"


def _foreign(t: Tree) -> dict[int, str]:
    ties = t.columns.ties
    return {ties.get(row, row): reason for row, reason in t.not_understood().items()}


class Plan(Shown, kind="plan"):
    """What a load would do. Prints as a table; see `lw.plan`.

    `holds` is whether `lw.load` would go through with it. `problems` is everything that speaks against it, `allowed`
    what was found and is allowed. `coverage` is the share of the target's parameters that get values. `proposals` are
    renames that would fit; of these, `rename="auto"` applies those that are `certain`, and lists them in `applied`.
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
        self.must_agree: list[MustAgree] = []
        self.restored_ties: list[RestoredTie] = []
        self.scalars: dict[tuple[int, str], Any] = {}
        self.optimizers: list[OptimizerPlan] = []
        self.recomputed: dict[int, Any] = {}  # by row, values of buffers on meta that no checkpoint holds
        # By leaf, what leafwise does not understand of either side.
        self.foreign, self.foreign_sources = _foreign(target), _foreign(source)
        self.refused: dict[tuple[str, str], list[str]] = {}  # by reason and side, the names of what is
        self.parameters = self.covered = self.leaves = 0
        self.saturate = False  # whether values that a cast has no room for become the nearest that it has
        self._allow = allow

    @property
    def holds(self) -> bool:
        return not self.problems

    @property
    def coverage(self) -> float:
        """The share of the target's parameters that get values from the source."""
        return self.covered / self.parameters if self.parameters else 1.0

    @property
    def missing(self) -> list[str]:
        """Leaves of the target that the source does not fill, allowed or not."""
        return self._names("missing")

    @property
    def unexpected(self) -> list[str]:
        """Leaves of the source that the target does not take, allowed or not."""
        return self._names("unexpected")

    @property
    def renames(self) -> list[tuple[str, str]]:
        """What `rename="auto"` applies, or has applied, as `rename=` takes it. Nothing that is not certain."""
        return as_renames(proposal for proposal in (*self.applied, *self.proposals) if proposal.certain)

    def _names(self, kind: str) -> list[str]:
        return [problem.name for problem in (*self.problems, *self.allowed) if problem.kind == kind]

    def add(self, kind: Kind, name: str, message: str) -> None:
        """Writes down something that speaks against the plan, or that is allowed."""
        (self.allowed if kind in self._allow else self.problems).append(Problem(kind, name, message))

    def text(self, *, full: bool = False) -> str:
        """The table as plain text; `full` leaves out nothing."""
        return self.render_text(full=full)


def allow_advice(plan: Plan) -> str:
    """How to load what can be loaded, where every problem may be allowed; otherwise empty."""
    kinds = list(dict.fromkeys(problem.kind for problem in plan.problems))
    if not kinds or not set(kinds) <= set(ALLOWABLE):
        return ""
    listed = ", ".join(f'"{kind}"' for kind in kinds)
    return f"to load the rest, pass allow={{{listed}}}"
