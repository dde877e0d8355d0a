"""Searching the leaves of a tree where they are: all that one home searches together, so that a GPU is asked once."""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from leafwise.core.capabilities.searching import Searching
from leafwise.inspect.check.leaf_evidence import LeafEvidence, ValuesOf

Place: TypeAlias = tuple[LeafEvidence, int]  # a leaf and an axis
T = TypeVar("T")


def searched_together(
    places: list[Place], of: ValuesOf, search: Callable[[Searching, list[Place]], list[T] | None]
) -> tuple[dict[int, T], list[int]]:
    """The results of `search`, by the number of the place, and the numbers of the places whose values must be read."""
    numbers_by_searching: dict[Searching | None, list[int]] = {}
    for number, (leaf, _) in enumerate(places):
        numbers_by_searching.setdefault(leaf.searching(of), []).append(number)
    results: dict[int, T] = {}
    others = numbers_by_searching.pop(None, [])
    for searching, numbers in numbers_by_searching.items():
        assert searching is not None
        by_place = search(searching, [places[number] for number in numbers])
        if by_place is None:
            others += numbers
        else:
            results |= zip(numbers, by_place, strict=True)
    return results, sorted(others)
