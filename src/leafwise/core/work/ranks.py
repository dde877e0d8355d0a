"""Whether all ranks do the same. Otherwise, a sum over ranks would silently combine different things."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from itertools import zip_longest
from typing import Any

from leafwise.core.capabilities.sharding import Distributing, Team
from leafwise.core.leaf import shape_text
from leafwise.core.parts import first_rows, sharded_rows
from leafwise.core.tree import Tree
from leafwise.errors import RankError

Rows = Sequence[tuple[str, str]]
LARGE = 1 << 20  # bytes that a rank may receive in one collective


def team_of(t: Tree) -> Team | None:
    """The ranks over which leaves of a tree are sharded; None if none is."""
    columns = t.columns
    for batch in columns.batches(sharded_rows(t)):
        return batch.home.capability(Distributing).team(batch.values)
    return None


def drop_gathered(t: Tree) -> None:
    """Drops copies of sharded arrays that a forward has left gathered, before the arrays are changed: the next forward
    would use the copies."""
    columns = t.columns
    for home in columns.homes if columns.may_be_sharded else ():
        home.capability(Distributing).drop_gathered(columns.node_objects)


def agreeing(t: Tree, verb: str, team: Team | None) -> AbstractContextManager[list[tuple[str, str]]]:
    """A context in which a verb plans what it does to a tree, and adds rows about it: a path, and a fact about it. At
    the end, all ranks compare their models and their rows, as `agree` does. If planning fails on some ranks only, every
    rank raises `RankError`. Without a team, nothing is compared."""
    return comparing(team, verb, [] if team is None else _model_rows(t))


@contextmanager
def comparing(team: Team | None, verb: str, rows: list[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Like `agreeing`, but compares only these rows, and the rows that are added to them."""
    try:
        yield rows
    except Exception as error:
        if team is not None:
            agree(team, verb, [*rows, ("", f"{type(error).__name__}: {error}")])
        raise
    if team is not None:
        agree(team, verb, rows)


def _model_rows(t: Tree) -> list[tuple[str, str]]:
    columns, rows = t.columns, first_rows(t)
    texts: dict[object, str] = {}
    specs = [(*facts.spec[:2], facts.spec.sharding) for facts in columns.facts(rows)]
    for spec in specs:
        if spec not in texts:
            shape, dtype, sharding = spec
            texts[spec] = f"{shape_text(shape)} {dtype}" + ("" if sharding is None else f", {sharding}")
    return [(path, texts[spec]) for path, spec in zip(columns.row_texts(rows), specs, strict=True)]


def same_text(value: Any) -> str:
    """A text about an argument that is the same in every process: a function and an object are not shown with their
    addresses."""
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def agree(team: Team, verb: str, facts: Rows) -> None:
    """Raises `RankError` on every rank unless all ranks call this with the same verb, and the same rows of a path and a
    fact about it. Rows are sent only if their digests differ."""
    start_agreeing(team, verb, facts)()


def start_agreeing(team: Team, verb: str, facts: Rows) -> Callable[[], None]:
    """Like `agree`, but only starts to compare. The result waits, and raises."""
    data = json.dumps([verb, *facts]).encode()
    wait = team.start_gather(sha256(data).digest())

    def finish() -> None:
        digests = wait()
        if len(set(digests)) == 1:
            return
        usual = digests.index(Counter(digests).most_common(1)[0][0])
        odd = next(number for number, digest in enumerate(digests) if digest != digests[usual])
        # Only two ranks send their rows: those of thousands would fill the memory.
        calls = team.gather_any(data if team.rank in (odd, usual) else b"")
        raise _difference(team.ranks[odd], json.loads(calls[odd]), team.ranks[usual], json.loads(calls[usual]))

    return finish


def is_shared_out(team: Team, size: int) -> bool:
    """Whether ranks should combine results of `size` bytes each with `combined`, because together they are large."""
    return team.size > 2 and team.size * size > LARGE


def combined(
    team: Team, items: int, own: Callable[[range], bytes], combine: Callable[[range, list[bytes]], bytes]
) -> list[bytes]:
    """Combines the results of all ranks for a number of items. Each rank combines a share of the items, and sends the
    result to the others: it receives about twice as many bytes as it has, however many ranks there are. (Collecting the
    results of every rank on every rank takes one collective less.)

    `own(share)` returns the results of this rank for the items of a share, and `combine(share, results)` what the
    results of all ranks are together, which it gets in the order of the ranks. Returns this for each share, in order,
    with the same bits on every rank."""
    shares = [range(number * items // team.size, (number + 1) * items // team.size) for number in range(team.size)]
    results = team.exchange([own(share) for share in shares])
    return team.gather_any(combine(shares[team.rank], results))


def _difference(rank: int, call: list[Any], usual_rank: int, usual_call: list[Any]) -> RankError:
    """The error for the first rank that differs from most others."""
    (verb, *rows), (usual_verb, *usual_rows) = call, usual_call
    every = "every rank must call it with the same model and the same arguments"
    if verb != usual_verb:
        return RankError(f"rank {rank} calls lw.{verb}, but rank {usual_rank} calls lw.{usual_verb}", rank)
    for row, usual_row in zip_longest(rows, usual_rows):
        if row != usual_row:
            if "" in ((row or usual_row)[0], (usual_row or row)[0]):
                ours, theirs = f"rank {rank} {_raised(row)}", f"rank {usual_rank} {_raised(usual_row)}"
                return RankError(f"lw.{verb} stopped: {ours}, but {theirs}; {every}", rank)
            path = (row or usual_row)[0]
            ours, theirs = _described(row, usual_row), _described(usual_row, row)
            reason = f"rank {rank} has {ours}, but rank {usual_rank} has {theirs}"
            return RankError(f"lw.{verb} stopped at {path}: {reason}; {every}", rank, path)
    raise AssertionError("the rows of all ranks are equal")  # pragma: no cover


def _raised(row: list[str] | None) -> str:
    """What happened on a rank, one of several that raised an error; see `agreeing`."""
    return "raised no error" if row is None or row[0] else f"raised {row[1]}"


def _described(row: list[str] | None, other: list[str] | None) -> str:
    """One side of a difference; with the path if the other side has another path."""
    if row is None:
        return "nothing more"
    path, fact = row
    return fact if other is not None and other[0] == path else f"{path} ({fact})" if fact else path
