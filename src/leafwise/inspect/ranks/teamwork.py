"""The team of ranks over which the arrays of trees are sharded, what they compare first, and collecting results."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from leafwise.core.capabilities.comparing import Comparing
from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.capabilities.sharding import Distributing, Team
from leafwise.core.columns import Columns
from leafwise.core.home import Home, Spec
from leafwise.core.leaf import shape_text
from leafwise.core.memory.sharding import LocalPart
from leafwise.core.parts import first_rows
from leafwise.core.tree import Tree
from leafwise.core.work.ranks import combined
from leafwise.errors import RankError

_WORKED, _FAILED = b"\0", b"\1"
_LONGEST_MESSAGE = 500  # bytes of an error that are sent in place of a result of a fixed size


def team_of_trees(*trees: Tree) -> Team | None:
    """The ranks over which leaves of these trees are sharded; None, after a fast check, if all leaves are whole."""
    arrays: list[Any] = []
    columns: Columns | None = None
    for t in trees:
        if t.columns.may_be_sharded:
            columns = t.columns
            arrays += columns.current_arrays([columns.ties.get(row, row) for row in first_rows(t)])
    return None if columns is None else columns_team(columns, arrays)


def columns_team(columns: Columns, arrays: list[Any]) -> Team | None:
    """The ranks over which arrays are sharded; None if all of them are whole. `columns` only knows their homes."""
    batches = columns.by_home(arrays) if arrays else {}
    teams = (
        home.capability(Distributing).team([arrays[number] for number in numbers]) for home, numbers in batches.items()
    )
    return next((team for team in teams if team is not None), None)


def cannot_use(home: Home, value: Any, spec: Spec | None = None) -> str:
    """Why an array cannot be measured, even if each rank measures its parts; empty if it can."""
    local, reason = _local(home, value, spec)
    return reason or home.capability(Measuring).cannot_measure(local)


def cannot_match(home: Home, value: Any, spec: Spec | None = None) -> str:
    """Why an array cannot be compared, even if each rank compares its parts; empty if it can."""
    local, reason = _local(home, value, spec)
    return reason or home.capability(Comparing).cannot_compare(local)


def _local(home: Home, value: Any, spec: Spec | None) -> tuple[Any, str]:
    """The array in this process, and why its values are not those of the whole array."""
    if (spec or home.spec(value)).sharding is None:
        return value, ""
    distributing = home.capability(Distributing)
    return distributing.local(value), distributing.cannot_use_parts(value)


def counted_parts(home: Home, value: Any, team: Team) -> list[LocalPart]:
    """The parts of an array that count on this rank: over all ranks, every element once."""
    distributing = home.capability(Distributing)
    return distributing.parts(value) if distributing.counts_here(value, team) else []


def array_fact(spec: Spec, reason: str) -> str:
    """What all ranks must have at a path: shape, dtype and sharding, and why it cannot be used, as text."""
    return spec_fact(spec) + (f" ({reason})" if reason else "")


@lru_cache(maxsize=1000)
def spec_fact(spec: Spec) -> str:
    """The shape, dtype and sharding of an array, as text. Cached, because models repeat a few of them many times."""
    split = "" if spec.sharding is None else f", {spec.sharding}"
    return f"{shape_text(spec.shape)} {spec.dtype}{split}"


def tree_facts(t: Tree, prefix: str = "") -> list[tuple[str, str]]:
    """The path of each leaf of a tree, and what all ranks must have there."""
    columns, rows = t.columns, first_rows(t)
    leaves = [columns.ties.get(row, row) for row in rows]
    facts = []
    for row, array, (spec, *_) in zip(rows, columns.current_arrays(leaves), columns.facts(leaves), strict=True):
        reason = "" if spec.sharding is None else cannot_use(columns.home(array), array, spec)
        facts.append((prefix + columns.row_text(row), array_fact(spec, reason)))
    return facts


def file_facts(*trees: Tree) -> list[tuple[str, str]]:
    """Which checkpoints trees are of: each rank opens them by itself, and may find other files there."""
    facts = []
    for root in [t.columns.node_objects[0] for t in trees if t.is_file]:
        try:
            facts.append(("the checkpoint", str(root.identity)))
        except Exception as error:  # the other ranks must not wait for this one
            facts.append(("the checkpoint", f"{type(error).__name__}: {error}"))
    return facts


def collect(team: Team, work: Callable[[], bytes], size: int | None = None) -> list[bytes]:
    """Calls `work` on every rank and collects the results, in the order of the ranks. They have `size` bytes each; if
    it is None, any number. If a rank fails, all ranks raise, instead of waiting for it."""
    failure: Exception | None = None
    try:
        data = _WORKED + work()
    except RankError:
        raise  # a rank cannot be reached, so nothing can be collected
    except Exception as error:
        failure = error
        data = _FAILED + f"{type(error).__name__}: {error}".encode()
    if size is None:
        results = team.gather_any(data)
    else:
        longest = max(size, _LONGEST_MESSAGE) + 1
        results = team.gather(data[:longest].ljust(longest, b"\0"))
    if failure is not None:
        raise failure
    for rank, result in zip(team.ranks, results, strict=True):
        if result[:1] == _FAILED:
            reason = result[1:].rstrip(b"\0").decode(errors="replace").partition("\n")[0]
            raise RankError(f"rank {rank} failed: {reason}", rank)
    return [result[1:] if size is None else result[1 : size + 1] for result in results]


def collect_combined(
    team: Team, items: int, work: Callable[[], Callable[[range], bytes]], combine: Callable[[range, list[bytes]], bytes]
) -> list[bytes]:
    """Calls `work` on every rank, and combines the results by shares of the items, as `combined` does: `work` returns
    what it takes as `own`. If a rank fails, all ranks raise, instead of waiting for it."""
    own: list[Callable[[range], bytes]] = []

    def worked() -> bytes:
        own.append(work())
        return b""

    collect(team, worked)
    return combined(team, items, own[0], combine)
