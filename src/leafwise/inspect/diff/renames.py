"""Leaves that have another name in the second tree: found by their statistics, and confirmed bit by bit."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from leafwise.core.capabilities.delegating import Delegating
from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.capabilities.sharding import Team
from leafwise.core.pairing.row_pairs import NamedArray
from leafwise.core.results.moments import Moments
from leafwise.core.work.executor_tasks import Workers
from leafwise.core.work.progress import Count
from leafwise.inspect.ranks.teamwork import cannot_use

# Returns for each pair whether its values are the same, possibly transposed.
Prove = Callable[[list[tuple[NamedArray, NamedArray]]], list[bool]]
Pairs = list[tuple[NamedArray, NamedArray]]

_TRIES = 16  # how often leaves with the same statistics are paired again in another order


class _Measured(NamedTuple):
    """An array with its statistics."""

    held: NamedArray
    moments: Moments


# The unpaired leaves of the two sides.
Unpaired = tuple[list[_Measured], list[_Measured]]


def find_renamed(
    removed: list[NamedArray],
    added: list[NamedArray],
    prove: Prove,
    count: Count,
    workers: Workers | None,
    team: Team | None,
) -> Pairs:
    """Pairs of removed and added leaves with the same values; each leaf is in at most one pair. If several leaves have
    the same values, such as zero biases, those next to leaves that are already paired belong together, then those with
    the same last name, then by order. `count` is called with the number of bytes read. If there are workers, they
    measure the leaves; if leaves are sharded over the ranks of a team, all ranks measure them together."""
    left = _measured(*_candidates(removed, added), count, workers, team)
    renamed: Pairs = []
    new_ancestors: dict[str, str] = {}  # the nodes above renamed leaves: the new name by the old one
    # First by all statistics, whose last digits depend on the memory layout; then by those that do not depend on it.
    for key in (_by_all_moments, _by_order_free_moments):
        groups = _groups(left, key)
        unique = [(a[0].held, b[0].held) for a, b in groups if len(a) == len(b) == 1]
        renamed += _keep_proven(unique, prove, new_ancestors)
        left = _without(left, renamed)
        groups = _groups(left, key)
        chosen = [_choose_pairs(a, b, new_ancestors) for a, b in groups]
        renamed += _keep_proven([pair for pairs in chosen for pair in pairs], prove, new_ancestors)
        rows = {old.row for old, _ in renamed}
        for group, pairs in zip(groups, chosen, strict=True):
            if any(old.row not in rows for old, _ in pairs):
                renamed += _try_rotations(_without(group, renamed), prove, new_ancestors)
        left = _without(left, renamed)
    return renamed


def _try_rotations(left: Unpaired, prove: Prove, new_ancestors: dict[str, str]) -> Pairs:
    """Pairs among leaves with the same statistics but not the same values: each is tried with several others in
    turn."""
    renamed: Pairs = []
    for _ in range(min(max(map(len, left)), _TRIES)):
        first, second = left
        if len(first) > len(second):
            first = first[1:] + first[:1]
        else:
            second = second[1:] + second[:1]
        renamed += _keep_proven([(a.held, b.held) for a, b in zip(first, second, strict=False)], prove, new_ancestors)
        left = _without((first, second), renamed)
        if not left[0] or not left[1]:
            break
    return renamed


def _candidates(removed: list[NamedArray], added: list[NamedArray]) -> tuple[list[NamedArray], list[NamedArray]]:
    """The leaves with values whose dtype and shape, possibly transposed, also occur on the other side."""
    readable = [
        [held for held in side if held.spec.shape is not None and not cannot_use(held.home, held.value)]
        for side in (removed, added)
    ]
    common = set(map(_dtype_and_shape, readable[0])) & set(map(_dtype_and_shape, readable[1]))
    first, second = ([held for held in side if _dtype_and_shape(held) in common] for side in readable)
    return first, second


def _dtype_and_shape(held: NamedArray) -> tuple[Any, ...]:
    shape = held.spec.shape or ()
    return held.spec.dtype, tuple(sorted(shape)) if len(shape) == 2 else shape


def _measured(
    removed: list[NamedArray], added: list[NamedArray], count: Count, workers: Workers | None, team: Team | None
) -> Unpaired:
    arrays = [*removed, *added]
    measured = list(map(_Measured, arrays, _moments(arrays, count, workers, team) if arrays else []))
    return measured[: len(removed)], measured[len(removed) :]


def _moments(arrays: list[NamedArray], count: Count, workers: Workers | None, team: Team | None) -> list[Moments]:
    if team is not None:
        from leafwise.inspect.ranks.team_measuring import TeamMeasurement

        of_team = TeamMeasurement(team, [(held.home, held.value) for held in arrays], False, count)
        return of_team.moments(lambda: None)
    by_home: dict[Any, list[int]] = {}
    for number, held in enumerate(arrays):
        by_home.setdefault(held.home, []).append(number)
    moments: dict[int, Moments] = {}
    for home, numbers in by_home.items():
        values = [arrays[number].value for number in numbers]
        if workers is None:
            measured = home.capability(Measuring).measure(values, False, count)()
        else:
            measured = home.capability(Delegating).measure(workers, values, False, count)
        moments.update(zip(numbers, measured, strict=True))
    return [moments[number] for number in range(len(arrays))]


def _by_all_moments(leaf: _Measured) -> object:
    return leaf.held.spec.dtype, leaf.held.spec.shape, repr(leaf.moments)


def _by_order_free_moments(leaf: _Measured) -> object:
    """The statistics that are exact and do not depend on the order of the values."""
    return _dtype_and_shape(leaf.held), repr(leaf.moments.order_free())


def _groups(left: Unpaired, key: Callable[[_Measured], object]) -> list[Unpaired]:
    groups: dict[object, Unpaired] = {}
    for side in (0, 1):
        for leaf in left[side]:
            groups.setdefault(key(leaf), ([], []))[side].append(leaf)
    return [group for group in groups.values() if group[0] and group[1]]


def _without(left: Unpaired, renamed: Pairs) -> Unpaired:
    rows = [{pair[side].row for pair in renamed} for side in (0, 1)]
    first, second = ([leaf for leaf in left[side] if leaf.held.row not in rows[side]] for side in (0, 1))
    return first, second


def _keep_proven(pairs: Pairs, prove: Prove, new_ancestors: dict[str, str]) -> Pairs:
    """The pairs with the same values; also records that the nodes above them correspond."""
    kept = [pair for pair, holds in zip(pairs, prove(pairs), strict=True) if holds] if pairs else []
    for old, new in kept:
        for old_ancestor, new_ancestor in zip(_ancestors(old.name), _ancestors(new.name), strict=False):
            new_ancestors.setdefault(old_ancestor, new_ancestor)
    return kept


def _ancestors(name: str) -> Iterator[str]:
    """The names of the nodes that a leaf is in, the nearest first.

    >>> list(_ancestors("a.b.weight"))
    ['a.b', 'a']
    """
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _choose_pairs(removed: list[_Measured], added: list[_Measured], new_ancestors: dict[str, str]) -> Pairs:
    """Pairs of leaves among those that all have the same values."""
    # By node and last entry of the name ("" for any), then by row.
    free: dict[tuple[str, str], dict[int, NamedArray]] = {}
    for new in (leaf.held for leaf in added):
        last = new.name.rpartition(".")[2]
        for node in (*_ancestors(new.name), ""):
            free.setdefault((node, last), {})[new.row] = new
            free.setdefault((node, ""), {})[new.row] = new
    pairs: Pairs = []
    later = []

    def take(old: NamedArray, nodes: Iterable[str], last: str) -> bool:
        for node in nodes:
            for new in free.get((node, last), {}).values():
                pairs.append((old, new))
                new_last = new.name.rpartition(".")[2]
                for above in (*_ancestors(new.name), ""):
                    free[above, new_last].pop(new.row)
                    free[above, ""].pop(new.row)
                return True
        return False

    for old in (leaf.held for leaf in removed):
        nodes = [new_ancestors[node] for node in _ancestors(old.name) if node in new_ancestors]
        last = old.name.rpartition(".")[2]
        if not take(old, nodes, last) and not take(old, nodes[:1], ""):
            later.append(old)
    # The rest, which are not below any renamed node, are paired only if there are equally many on both sides; otherwise
    # it would be a guess. A leaf with several names may be several leaves on the other side.
    rest = free.get(("", ""), {}).values()
    if len(later) == len(rest) or sum(old.leaf_names for old in later) == sum(new.leaf_names for new in rest):
        for old in later:
            _ = take(old, [""], old.name.rpartition(".")[2]) or take(old, [""], "")
    return pairs
