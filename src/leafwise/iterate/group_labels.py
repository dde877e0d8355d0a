"""Labels of groups, for frameworks whose optimizers find parameters by label instead of taking lists of them."""

import re
from collections import Counter
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

    def __init__(self, t: Tree, home: Home, groups: Sequence[tuple[dict[str, Any], Sequence[int]]]) -> None:
        self._grouping = home.capability(Grouping)
        columns = t.columns
        number_of = {leaf: number for number, (_, leaves) in enumerate(groups) for leaf in leaves}
        start = len(columns.node_text(t.root)) + 1 if t.root else 0
        numbers = {
            path[start:]: number_of.get(columns.ties.get(row, row))
            for row, path in zip(t.rows, columns.row_texts(t.rows), strict=True)
        }
        first_paths = [min(path for path, number in numbers.items() if number == each) for each in range(len(groups))]
        self._labels = _labels([options for options, _ in groups], first_paths)
        self._by_path = {
            path: NOT_TRAINED if number is None else self._labels[number] for path, number in numbers.items()
        }

    def of(self, params: Any) -> Any:
        """A tree like `params`, with labels in place of arrays."""
        return self._grouping.labelled(params, self._label_at)

    def transformation(self, groups: Sequence[dict[str, Any]], make: Callable[..., Any]) -> Any:
        """One transformation of gradients for groups with these options; `make(**options)` makes that of one group."""
        labelled = zip(self._labels, groups, strict=True)
        transforms = {label: self._made(label, options, make) for label, options in labelled}
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


def _labels(groups: Sequence[dict[str, Any]], first_paths: Sequence[str]) -> list[str]:
    """A label for each group that a later run gives it, too: from its options, not from the order of leaves, because
    states of optax are saved by label. Options with equal texts, such as two lambdas, get a path of the group.

    >>> _labels([{"weight_decay": 0.1, "lr": 0.5}, {}], ["a", "b"])
    ['lr=0.5, weight_decay=0.1', 'no options']
    """
    labels = [_label(options, option_text) for options in groups]
    if len({*labels}) < len(labels):  # numbers that differ only in digits that are not shown
        labels = [
            _label(options, lambda option: repr(option) if isinstance(option, float) else option_text(option))
            for options in groups
        ]
    repeated = {label for label, times in Counter(labels).items() if times > 1}
    pairs = zip(labels, first_paths, strict=True)
    return [f"{label} for {path}" if label in repeated else label for label, path in pairs]


def _label(options: dict[str, Any], text: Callable[[Any], str]) -> str:
    texts = [f"{name}={text(option)}" for name, option in sorted(options.items())]
    return re.sub(r" at 0x[0-9a-f]+", "", ", ".join(texts)) or "no options"


class LabelledGroups:
    """What the groups of JAX parameters can do beyond being a list."""

    groups: list[Any]
    label_table: GroupLabels | None = None  # set by `lw.groups`

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
        table = self._table("make an optax transformation")
        return table.transformation([account.options for account in self.groups], make)

    def labels(self, params: Any) -> Any:
        """The label of the group of each parameter, in a tree like `params`: its options in the order of their names,
        such as `"lr=0.1, weight_decay=0"`, or `"no options"`. The label of leaves that are frozen, or are not trained,
        is `"not trained"`. `groups.labels` is also a function for `optax.multi_transform(transforms, groups.labels)`.

        >>> import jax.numpy as jnp, leafwise as lw
        >>> params = {"dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}}
        >>> lw.groups(params, [lw.no_decay()]).labels(params)
        {'dense': {'bias': 'weight_decay=0', 'kernel': 'no options'}}
        """
        return self._table("label parameters for optax").of(params)

    def _table(self, action: str) -> GroupLabels:
        if self.label_table is None:
            why = "the parameters are not arrays of JAX; pass the groups to an optimizer: torch.optim.AdamW(groups)"
            raise Unsupported("lw.groups", action, why)
        return self.label_table
