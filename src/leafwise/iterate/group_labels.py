"""Labels of groups, for frameworks whose optimizers find parameters by label instead of taking lists of them."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from inspect import signature
from typing import Any

from leafwise.core.capabilities.grouping import Grouping
from leafwise.core.home import Home
from leafwise.core.tree import Tree
from leafwise.errors import RuleError, Unsupported
from leafwise.iterate.rules import option_text

NOT_TRAINED = "not trained"


class GroupLabels:
    """The label of each leaf by its path, under all of its names. Paths are relative to the tree of `lw.groups`."""

    def __init__(self, t: Tree, home: Home, groups: Sequence[Sequence[int]]) -> None:
        self._grouping = home.capability(Grouping)
        columns = t.columns
        number_of = {leaf: number for number, leaves in enumerate(groups) for leaf in leaves}
        start = len(columns.node_text(t.root)) + 1 if t.root else 0
        self._by_path = {
            path[start:]: _label(number_of.get(columns.ties.get(row, row)))
            for row, path in zip(t.rows, columns.row_texts(t.rows), strict=True)
        }

    def of(self, params: Any) -> Any:
        """A tree like `params`, with labels in place of arrays."""
        return self._grouping.labelled(params, self._label_at)

    def transformation(self, groups: Sequence[dict[str, Any]], make: Callable[..., Any]) -> Any:
        """One transformation of gradients for groups with these options; `make(**options)` makes that of one group."""
        transforms = {
            _label(number): self._made(_label(number), options, make) for number, options in enumerate(groups)
        }
        return self._grouping.joined({**transforms, NOT_TRAINED: None}, self.of)

    def _made(self, label: str, options: dict[str, Any], make: Callable[..., Any]) -> Any:
        arguments = {name: option for name, option in options.items() if name != "frozen"}
        if options.get("frozen"):
            return None
        try:
            signature(make).bind(**arguments)
        except TypeError as error:
            given = ", ".join(f"{name}={option_text(option)}" for name, option in arguments.items()) or "no options"
            example = next(path for path, group_label in self._by_path.items() if group_label == label)
            raise RuleError(
                f"groups.optax cannot call make for the group of {example}, which has {given}: {error}; make gets the "
                "options of a group as keyword arguments; give those a default that not every group has"
            ) from error
        return make(**arguments)

    def _label_at(self, path: str) -> str:
        label = self._by_path.get(path)
        if label is None:
            near = get_close_matches(path, self._by_path, n=1) or list(self._by_path)[:1]
            raise RuleError(
                f"{path or 'the root'} is in none of the groups, whose leaves have paths such as {near[0]}; call "
                "lw.groups with the tree that the optimizer gets"
            )
        return label


def _label(group: int | None) -> str:
    return NOT_TRAINED if group is None else f"group {group}"


class LabelledGroups:
    """What the groups of JAX parameters can do beyond being a list."""

    groups: list[Any]
    _labels: GroupLabels | None = None

    def optax(self, make: Callable[..., Any]) -> Any:
        """A transformation of optax that steps each group in its own way, for parameters of JAX.

        `make` gets the options of a group as keyword arguments and returns its transformation. Frozen leaves, and
        groups with the option `frozen=True`, do not change. The parameters are found by their paths, so the
        transformation works for the tree that `lw.groups` was called with, for `nnx.Optimizer`, and inside of
        `jax.jit`. A parameter that is in no group is an error.

        >>> import jax.numpy as jnp, optax, leafwise as lw
        >>> params = {"dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}}
        >>> groups = lw.groups(params, [lw.no_decay()], lr=0.1, weight_decay=0.5)
        >>> tx = groups.optax(lambda lr, weight_decay: optax.adamw(lr, weight_decay=weight_decay))
        >>> state = tx.init(params)
        """
        table = self._label_table("make an optax transformation")
        return table.transformation([account.options for account in self.groups], make)

    def labels(self, params: Any) -> Any:
        """The label of the group of each parameter, such as `"group 0"`, in a tree like `params`. The label of leaves
        that are frozen, or are not trained, is `"not trained"`. `groups.labels` is also a function for
        `optax.multi_transform(transforms, groups.labels)`.

        >>> import jax.numpy as jnp, leafwise as lw
        >>> params = {"dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}}
        >>> lw.groups(params, [lw.no_decay()]).labels(params)
        {'dense': {'bias': 'group 1', 'kernel': 'group 0'}}
        """
        return self._label_table("label parameters for optax").of(params)

    def set_labels(self, labels: GroupLabels) -> None:
        """For `lw.groups`: the labels of all leaves."""
        self._labels = labels

    def _label_table(self, action: str) -> GroupLabels:
        if self._labels is None:
            why = "the parameters are not arrays of JAX; pass the groups to an optimizer: torch.optim.AdamW(groups)"
            raise Unsupported("lw.groups", action, why)
        return self._labels
