"""The processes that load or save one checkpoint together: all of them succeed, or all of them raise."""

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from leafwise.checkpoint.planning.plan import Plan
from leafwise.core.capabilities.sharding import Distributing, Messages, Team
from leafwise.core.capabilities.stepping import Stepping
from leafwise.core.home import Spec
from leafwise.core.leaf import shape_text
from leafwise.core.parts import first_rows, sharded_rows
from leafwise.core.tree import Tree
from leafwise.core.work.ranks import agree
from leafwise.errors import Error, RankError
from leafwise.files.stored_file import StoredFile

T = TypeVar("T")
Rows = list[tuple[str, str]]
_ERROR_CHARACTERS = 2000  # characters of an error that other ranks show


class JointCall:
    """The ranks that call a verb together. A rank that leaves the context of its `messages` with an error lets the
    others raise, too."""

    def __init__(self, team: Team, verb: str) -> None:
        self.team, self._verb = team, verb
        agree(team, verb, [])  # first, as all verbs do: other ranks may have called another one
        self.messages: Messages = team.messages()

    def agree(self, rows: Rows) -> None:
        """Raises on every rank unless all have the same rows. Must not be called in the background."""
        agree(self.team, self._verb, rows)

    def attempt(self, action: Callable[[], T]) -> T:
        """Does something on every rank. If it fails on one, every rank raises: that one the error itself, and the
        others an error that names it."""
        result: Any = None
        failure: Exception | None = None
        try:
            result = action()
        except Exception as error:
            failure = error
        try:
            first = json.loads(self.messages.meet(_outcome(failure), _first_failure))
        except RankError:
            if failure is None:
                raise
        if failure is not None:
            raise failure
        if first is not None:
            rank = self.team.ranks[first[0]]
            raise RankError(f"rank {rank} failed: {first[1]}", rank)
        return result  # type: ignore[no-any-return]

    def meet(self, data: Any, answer: Callable[[list[Any]], list[Any]]) -> Any:
        """Sends JSON of every rank to the first, which answers each of them."""

        def encoded_answer(given: list[bytes]) -> list[bytes]:
            return [json.dumps(reply).encode() for reply in answer(list(map(json.loads, given)))]

        return json.loads(self.messages.meet(json.dumps(data).encode(), encoded_answer))


def _outcome(failure: Exception | None) -> bytes:
    if failure is None:
        return b'""'
    text = str(failure) if isinstance(failure, Error) else f"{type(failure).__name__}: {failure}"
    return json.dumps(" ".join(text.split())[:_ERROR_CHARACTERS]).encode()


def _first_failure(outcomes: list[bytes]) -> list[bytes]:
    """The position of the first rank that failed, and why; null if none has. The outcomes of all ranks would be too
    much to send to each of thousands."""
    texts = map(json.loads, outcomes)
    failure = next(((position, text) for position, text in enumerate(texts) if text), None)
    return [json.dumps(failure).encode()] * len(outcomes)


def joint_call_of(t: Tree, verb: str) -> JointCall | None:
    """The ranks over which leaves of a tree are sharded, or parameters that its optimizers step; None if there are
    none."""
    columns = t.columns
    values = [columns.current(row) for row in sharded_rows(t)]
    for node in columns.optimizers(t.root) if t.is_whole else ():
        optimizer = columns.node_objects[node]
        values += [value for _, value in columns.home(optimizer).capability(Stepping).held_by(optimizer)]
    for batch in columns.batches(first_rows(t)) if verb == "load" else ():
        values += batch.home.capability(Distributing).loaded_together(batch.values)
    for home in {columns.home(value) for value in values}:
        team = home.capability(Distributing).team([value for value in values if columns.home(value) is home])
        if team is not None:
            return JointCall(team, verb)
    return None


# -- what all ranks must have in common ----------------------------------------------------------------------


def model_rows(t: Tree) -> Rows:
    """The leaves of a tree, with their shape, dtype and sharding."""
    columns, rows = t.columns, first_rows(t)
    texts = [_spec_text(facts.spec) for facts in columns.facts(rows)]
    return list(zip(columns.row_texts(rows), texts, strict=True))


def _spec_text(spec: Spec) -> str:
    split = "" if spec.sharding is None else f", {spec.sharding}"
    return f"{shape_text(spec.shape)} {spec.dtype}{split}"


def plan_rows(plans: Iterable[Plan]) -> Rows:
    """What plans load, and from what: each rank opens the checkpoint by itself, perhaps another copy of it."""
    rows: Rows = []
    for plan in plans:
        columns = plan.source.columns
        root = columns.node_objects[0]
        if isinstance(root, StoredFile):
            rows.append(("the checkpoint", root.identity))
        for feed, facts in zip(plan.feeds, columns.facts([feed.source for feed in plan.feeds]), strict=True):
            rows.append((feed.name, f"{columns.row_text(feed.source)}, {_spec_text(facts.spec)}, {' '.join(feed.how)}"))
        rows += [(str(name), repr(value)) for (_, name), value in plan.scalars.items()]
        for optimizer in plan.optimizers:
            for (group, position), states in sorted(optimizer.states.items()):
                named = [f"{key} from {columns.row_text(row)}" for key, row in states.items()]
                rows.append((f"{optimizer.path}: parameter {position} of group {group}", ", ".join(named)))
    return rows
