"""What models and optimizers themselves say about parameter groups. See `lw.groups`."""

from collections.abc import Callable
from typing import Any, ClassVar

from leafwise.core.capabilities import Capability


class Grouping(Capability):
    """`has_labels` is whether optimizers get labels of parameters, by `labelled` and `joined`, instead of lists."""

    has_defaults = True
    has_labels: ClassVar[bool] = False

    def optimizer_options(self, optimizer: Any) -> frozenset[str] | None:
        """The options of a group that an optimizer accepts; for None, the options that any optimizer accepts. None if
        they are not known."""
        return None

    def stepped(self, value: Any) -> Any:
        """The array that an optimizer must be given to step this one. Raises `RuleError` if there is none."""
        return value

    def sorts_children(self, obj: Any) -> bool:
        """Whether the framework sorts the children of this node by name, so that their order says nothing."""
        return False

    def depths_by(self, cls: type) -> Callable[[Any, list[str]], list[int | None]] | None:
        """If nodes of this type say how deep their leaves are, a function that asks a node. Its arguments are the node
        and the names of leaves relative to it; it returns the level of each leaf, counted from 0, or None for a leaf
        after all levels."""
        return None

    def undecayed_by(self, cls: type) -> Callable[[Any, list[str]], list[bool]] | None:
        """If nodes of this type say which of their leaves are not decayed, a function that asks a node. Its arguments
        are the node and the names of leaves relative to it."""
        return None

    def labelled(self, params: Any, label_of: Callable[[str], str]) -> Any:
        """A tree like `params`, in which each array is replaced by the label for its path."""
        raise self.missing("label parameters")

    def joined(self, transforms: dict[str, Any], labels: Callable[[Any], Any]) -> Any:
        """One transformation of gradients from those of all groups, by label; None for a group that does not change.
        `labels(params)` is a tree of labels."""
        raise self.missing("join transformations")
