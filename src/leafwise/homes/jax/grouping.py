"""Groups for optax: labels of parameters, and one transformation of gradients for all groups."""

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from leafwise.core.capabilities.grouping import Grouping
from leafwise.errors import Error, RuleError
from leafwise.homes.jax.flat_leaves import mapped


class JaxGrouping(Grouping):
    has_labels = True

    def optimizer_options(self, optimizer: Any) -> frozenset[str] | None:
        if optimizer is not None:
            raise RuleError(
                "optimizer= takes a class of optimizers, which optax does not have; leave it out: groups.optax(make) "
                "checks the options of groups against the arguments of make"
            )
        return None

    def sorts_children(self, obj: Any) -> bool:
        if isinstance(obj, Mapping):
            return not isinstance(obj, OrderedDict)
        nnx = sys.modules.get("flax.nnx")
        return nnx is not None and isinstance(obj, nnx.Pytree) and not isinstance(obj, nnx.List)

    def labelled(self, params: Any, label_of: Callable[[str], str]) -> Any:
        return mapped(params, lambda path, leaf: label_of(path))

    def joined(self, transforms: dict[str, Any], labels: Callable[[Any], Any]) -> Any:
        try:
            import optax
        except ModuleNotFoundError as error:
            raise Error("groups.optax needs optax: pip install optax") from error
        made = {label: optax.set_to_zero() if each is None else each for label, each in transforms.items()}
        return optax.multi_transform(made, labels)
