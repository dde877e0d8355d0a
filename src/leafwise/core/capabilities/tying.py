"""Ties made, undone and kept. See `leafwise.share`."""

from typing import Any, Literal, NamedTuple

from leafwise.core.capabilities import Capability
from leafwise.core.memory import Op

Keep = Literal["source", "target", "mean"]


class Place(NamedTuple):
    """Where a name of a leaf stands: who holds it, what it is called there, and the path that leads to it."""

    owner: Any
    name: str
    path: str


class TiedPlaces(NamedTuple):
    """One tie: its distinct places, the source first, with how each sees it; and all its names, by the number of the
    place that each leads to. `above` are the objects that have several of the names below them, each with those names
    and the keys that lead there."""

    places: tuple[Place, ...]
    ops: tuple[Op, ...]
    names: tuple[int, ...]
    above: tuple[tuple[Any, tuple[tuple[int, str], ...]], ...]


class DeclaredTie(NamedTuple):
    """A tie that somebody asked to be kept: the names that shall be one leaf, each with its op, by keys from where
    it is declared."""

    keys: tuple[tuple[str, Op], ...]


class Tying(Capability):
    """Making several names one leaf, and independent leaves again. The verbs return `root`, or what takes its place."""

    action = "tie"

    def declared(self, objects: list[Any]) -> list[tuple[int, DeclaredTie]]:
        """The ties that shall be kept, by the number of the object that they are declared at."""
        return []

    def cannot_tie(self, place: Place, value: Any, op: Op) -> str:
        """Why what stands at this place cannot be tied so; an empty string where it can."""
        raise NotImplementedError

    def tied_elsewhere(self, place: Place, known: list[Place]) -> list[str]:
        """The names that this one is kept tied to and that are not among the known ones: they lie outside of the
        tree."""
        return []

    def tie(self, root: Any, groups: list[TiedPlaces], keep: Keep | None) -> Any:
        """Makes the further places of each group names of its source, after their values by `keep`."""
        raise NotImplementedError

    def untie(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        """Gives each place an independent array with equal values."""
        raise NotImplementedError

    def separate(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        """Gives each place, which holds a node used elsewhere too, a node of its own with equal values."""
        raise NotImplementedError

    def keep_ties(self, root: Any, objects: list[Any], groups: list[TiedPlaces], keep: Keep | None) -> Any:
        """Keeps the ties from now on; `objects` are all nodes of the tree. See `lw.keep_ties`."""
        raise NotImplementedError

    def release_ties(self, root: Any, objects: list[Any]) -> Any:
        """Lets go of the ties that are kept among these objects."""
        raise NotImplementedError
