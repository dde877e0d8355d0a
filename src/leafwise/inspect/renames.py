"""Leaves that have another name in the other tree: found by statistics of their values, and proven bit by bit."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from leafwise.core.moments import Moments
from leafwise.inspect.pairing import Held

# Proves pairs: says of each whether its values are the same, turned or not.
Prove = Callable[[list[tuple[Held, Held]]], list[bool]]
Pairs = list[tuple[Held, Held]]

_TRIES = 16  # how often leaves with the same statistics are tried with others


class _Found(NamedTuple):
    held: Held
    moments: Moments


Left = tuple[list[_Found], list[_Found]]


def find_renamed(ones: list[Held], others: list[Held], prove: Prove, count: Callable[[int], None]) -> Pairs:
    """Pairs of what is left on either side that hold the same values; no leaf twice. Where several do (zero biases),
    those that stand beside leaves that were told apart belong together, then those of one name or order. `count` is
    told how many bytes were looked at."""
    left = _measured(*_candidates(ones, others), count)
    found: Pairs = []
    mapped: dict[str, str] = {}
    # First by everything that is known, which depends on how values lie in memory; then by what does not.
    for key in (_every_moment, _in_any_order):
        groups = _groups(left, key)
        unique = [(a[0].held, b[0].held) for a, b in groups if len(a) == len(b) == 1]
        found += _proven(unique, prove, mapped)
        left = _without(left, found)
        groups = _groups(left, key)
        chosen = [_chosen(a, b, mapped) for a, b in groups]
        found += _proven([pair for pairs in chosen for pair in pairs], prove, mapped)
        rows = {one.row for one, _ in found}
        for group, pairs in zip(groups, chosen, strict=True):
            if any(one.row not in rows for one, _ in pairs):
                found += _crossed(_without(group, found), prove, mapped)
        left = _without(left, found)
    return found


def _crossed(left: Left, prove: Prove, mapped: dict[str, str]) -> Pairs:
    """Pairs of leaves with the same statistics that are not all the same: each is tried with one after another."""
    found: Pairs = []
    for _ in range(min(max(map(len, left)), _TRIES)):
        first, second = left
        if len(first) > len(second):
            first = first[1:] + first[:1]
        else:
            second = second[1:] + second[:1]
        found += _proven([(a.held, b.held) for a, b in zip(first, second, strict=False)], prove, mapped)
        left = _without((first, second), found)
        if not left[0] or not left[1]:
            break
    return found


def _candidates(ones: list[Held], others: list[Held]) -> tuple[list[Held], list[Held]]:
    """Those that have a dtype and a shape, turned or not, in common with one of the other side, and values."""
    readable = [
        [one for one in side if one.spec.shape is not None and not one.home.cannot_measure(one.value)]
        for side in (ones, others)
    ]
    common = {_facts(one) for one in readable[0]} & {_facts(one) for one in readable[1]}
    first, second = ([one for one in side if _facts(one) in common] for side in readable)
    return first, second


def _facts(held: Held) -> tuple[Any, ...]:
    shape = held.spec.shape or ()
    return held.spec.dtype, tuple(sorted(shape)) if len(shape) == 2 else shape


def _measured(ones: list[Held], others: list[Held], count: Callable[[int], None]) -> tuple[list[_Found], list[_Found]]:
    first, second = (_with_moments(side, count) for side in (ones, others))
    return first, second


def _with_moments(side: list[Held], count: Callable[[int], None]) -> list[_Found]:
    by_home: dict[Any, list[int]] = {}
    for number, held in enumerate(side):
        by_home.setdefault(held.home, []).append(number)
    moments: dict[int, Moments] = {}
    for home, numbers in by_home.items():
        wait = home.measure([side[number].value for number in numbers], False, count)
        moments.update(zip(numbers, wait(), strict=True))
    return [_Found(held, moments[number]) for number, held in enumerate(side)]


def _every_moment(found: _Found) -> object:
    return found.held.spec.dtype, found.held.spec.shape, repr(found.moments)


def _in_any_order(found: _Found) -> object:
    """What does not depend on the order of values, and is exact everywhere."""
    return _facts(found.held), repr(found.moments.order_free())


def _groups(left: Left, key: Callable[[_Found], object]) -> list[Left]:
    groups: dict[object, Left] = {}
    for side in (0, 1):
        for one in left[side]:
            groups.setdefault(key(one), ([], []))[side].append(one)
    return [group for group in groups.values() if group[0] and group[1]]


def _without(left: Left, found: Pairs) -> Left:
    rows = [{pair[side].row for pair in found} for side in (0, 1)]
    first, second = ([one for one in left[side] if one.held.row not in rows[side]] for side in (0, 1))
    return first, second


def _proven(pairs: Pairs, prove: Prove, mapped: dict[str, str]) -> Pairs:
    """The pairs that hold; what stands above them belongs together, too."""
    kept = [pair for pair, holds in zip(pairs, prove(pairs), strict=True) if holds] if pairs else []
    for one, other in kept:
        above = zip(_above(one.name), _above(other.name), strict=False)
        for ours, theirs in above:
            mapped.setdefault(ours, theirs)
    return kept


def _above(name: str) -> Iterator[str]:
    """The names of what a leaf stands in, the nearest first.

    >>> list(_above("a.b.weight"))
    ['a.b', 'a']
    """
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _chosen(ones: list[_Found], others: list[_Found], mapped: dict[str, str]) -> Pairs:
    """Pairs of leaves that all hold the same."""
    free: dict[tuple[str, str], dict[int, Held]] = {}
    for _, other in ((one.moments, one.held) for one in others):
        last = other.name.rpartition(".")[2]
        for place in (*_above(other.name), ""):
            free.setdefault((place, last), {})[other.row] = other
            free.setdefault((place, ""), {})[other.row] = other
    pairs: Pairs = []
    later = []

    def take(one: Held, places: Iterable[str], last: str) -> bool:
        for place in places:
            for other in free.get((place, last), {}).values():
                pairs.append((one, other))
                theirs = other.name.rpartition(".")[2]
                for above in (*_above(other.name), ""):
                    free[above, theirs].pop(other.row)
                    free[above, ""].pop(other.row)
                return True
        return False

    for one in (found.held for found in ones):
        places = [mapped[place] for place in _above(one.name) if place in mapped]
        last = one.name.rpartition(".")[2]
        if not take(one, places, last) and not take(one, places[:1], ""):
            later.append(one)
    # Of those that stand beside nothing known, only as many as there are: else it would be a guess.
    # A leaf of several names may be several on the other side.
    rest = free.get(("", ""), {}).values()
    if len(later) == len(rest) or sum(one.names for one in later) == sum(one.names for one in rest):
        for one in later:
            _ = take(one, [""], one.name.rpartition(".")[2]) or take(one, [""], "")
    return pairs
