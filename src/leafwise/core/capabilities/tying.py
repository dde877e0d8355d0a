"""Making, undoing and keeping ties. See `leafwise.share`."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from leafwise.core.capabilities import Capability
from leafwise.core.memory.ops import Op
from leafwise.core.path import Path

if TYPE_CHECKING:
    from leafwise.core.home import Spec

Keep = Literal["source", "target", "mean"]


class Place(NamedTuple):
    """One name of a leaf: the object that has it, its name there, and its path."""

    owner: Any
    name: str
    path: str


class TiedPlaces(NamedTuple):
    """One tie: its distinct places, the source first, with the op of each; and all its names, each as the number of its
    place. `above` are the objects that have several of the names below them, each with the numbers of those names and
    the keys that lead to them."""

    places: tuple[Place, ...]
    ops: tuple[Op, ...]
    names: tuple[int, ...]
    above: tuple[tuple[Any, tuple[tuple[int, str], ...]], ...]


class DeclaredTie(NamedTuple):
    """A tie that is kept: the names that must be one leaf, each with its op. A name is a key relative to the object at
    which the tie is declared."""

    keys: tuple[tuple[str, Op], ...]


class Tying(Capability):
    """Making several names one leaf, and independent leaves again. Methods that change `root` return it, or the object
    that replaces it. They are called on the home of the node that has the leaf, not on the home of the array.

    `lw.tie` calls `tie` and then `keep_ties`. A home keeps a tie by recording it, at best at every object of
    `TiedPlaces.above`, and by making the framework's own operations (copies, casts, loads) respect it as far as
    possible. `declared` returns the recorded ties of the objects that have all names of the tie below them; the next
    walk reports the ties that were undone.
    """

    action = "tie"

    def declared(self, objects: list[Any]) -> list[tuple[int, DeclaredTie]]:
        """The ties that are kept, each with the number of the object at which it is declared."""
        return []

    def cannot_tie(self, place: Place, value: Any, op: Op) -> str:
        """Why the array at this place cannot be tied with this op; an empty string where it can."""
        raise self.missing("tie")

    def way_to_tie(self, root: Any, target: Path, source: Path, op: Op) -> str:
        """For arrays that are values (not `Home.ties_by_identity`): why they cannot be tied, and what to do instead.
        This is called on the home of the arrays."""
        return "the same array at two places is two leaves"

    def way_to_match(self, place: Place, spec: "Spec", other: "Spec") -> str:
        """What users can do if the dtype or the device of the array at a place, in `spec`, is not that of the array to
        which it is to be tied."""
        return f"cast or move {place.path} first"

    def tied_elsewhere(self, place: Place, known: list[Place]) -> list[str]:
        """The paths of names to which this place is kept tied and which are not among the known places, because they
        are outside of the tree."""
        return []

    def tie(self, root: Any, groups: list[TiedPlaces], keep: Keep | None) -> Any:
        """Makes the other places of each group names of its source. `keep` says which values the leaf gets."""
        raise self.missing("tie")

    def untie(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        """Gives each place an independent array with equal values."""
        raise self.missing("untie")

    def separate(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        """Each place has a node that is also used elsewhere; replaces it by an independent node with equal values."""
        raise self.missing("untie")

    def keep_ties(self, root: Any, objects: list[Any], groups: list[TiedPlaces], keep: Keep | None) -> Any:
        """Keeps the ties from now on; `objects` are all nodes of the tree. See `lw.keep_ties`."""
        raise self.missing("keep ties")

    def release_ties(self, root: Any, objects: list[Any], places: list[Place] | None) -> Any:
        """Stops keeping these names tied, or all names of these objects where `places` is None."""
        raise self.missing("keep ties")
