"""The names and layouts under which a library stores its models, where they differ from those in the model."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from leafwise.core.capabilities import Capability
from leafwise.core.roles.recipes import Recipe, Shape


class Reading(NamedTuple):
    """A way to read a checkpoint: what each leaf of a model is made from.

    `library` is the library that stores models in this way. `recipes` are the leaves that get values, by name, with the
    arrays of the checkpoint that they are made from. `keeps` are names of leaves that such a checkpoint never contains
    and that keep their values, and `keeps_what` says what they are. `refused` has the reason why a conversion of the
    library cannot be applied, by the name of a stored array.
    """

    library: str
    recipes: dict[str, Recipe]
    keeps: frozenset[str] = frozenset()
    keeps_what: str = ""
    refused: Mapping[str, str] = {}


class Converting(Capability):
    """`only_renames` says that all readings keep the arrays as they are. They are tried before a checkpoint is taken
    for one of another framework."""

    has_defaults = True
    only_renames = False

    def framework(self, cls: type) -> str:
        """The framework whose layers nodes of this type are, as plans call it. Weights are carried between models of
        different frameworks by the roles of their leaves."""
        return ""

    def may_convert(self, cls: type) -> bool:
        """Whether nodes of this type may be stored with other names or in another layout."""
        return False

    def converts(self, obj: Any) -> bool:
        """Whether this node is."""
        return False

    def readings(
        self, obj: Any, stored: Mapping[str, Shape | None], wanted: Mapping[str, Shape | None]
    ) -> list[Reading]:
        """The ways in which a checkpoint with the arrays `stored` could be read into a node with the leaves `wanted`,
        besides by equal names. Both are names relative to the node, with shapes."""
        return []
