"""What models say about their own training: the depth of each parameter, and which ones are not decayed.

timm's models have two methods for this, which other libraries have adopted: `group_matcher(coarse)` and
`no_weight_decay()`. The Swin repository also has `no_weight_decay_keywords()`. They are looked up by name, so that no
library needs to be imported.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from math import inf
from typing import Any

import torch

from leafwise.core.capabilities.grouping import Grouping
from leafwise.errors import RuleError
from leafwise.homes.torch.parallel.flat_shards import FlatShard

_WITH_PREVIOUS = 99999.0  # at the end of an order: same level as the order before
_AFTER_ALL = (inf,)

_Order = tuple[float, ...]

_FROM_SCHEDULERS = frozenset({"initial_lr"})  # schedulers store it in groups


class TorchGrouping(Grouping):
    def stepped(self, value: Any) -> Any:
        if not isinstance(value, FlatShard):
            return value
        if reason := value.owner.cannot_train_alone():
            raise RuleError(
                f"cannot put a parameter into a group: {reason}, or give model.parameters() to the optimizer"
            )
        return value.owner.stepped()

    def depths_by(self, cls: type) -> Callable[[Any, list[str]], list[int | None]] | None:
        return depths if callable(getattr(cls, "group_matcher", None)) else None

    def undecayed_by(self, cls: type) -> Callable[[Any, list[str]], list[bool]] | None:
        methods = ("no_weight_decay", "no_weight_decay_keywords")
        return undecayed if any(callable(getattr(cls, method, None)) for method in methods) else None

    def optimizer_options(self, optimizer: Any) -> frozenset[str] | None:
        """The options of a group that an optimizer (a class or an instance) accepts; for None, any of PyTorch's own."""
        if optimizer is None:
            classes = (cls for cls in vars(torch.optim).values() if isinstance(cls, type))
            optimizers = (cls for cls in classes if issubclass(cls, torch.optim.Optimizer))
            return _FROM_SCHEDULERS.union(
                *(_options(cls) or () for cls in optimizers if cls is not torch.optim.Optimizer)
            )
        if isinstance(optimizer, torch.optim.Optimizer):
            return frozenset(optimizer.defaults) | _FROM_SCHEDULERS
        if not callable(optimizer):
            raise RuleError(f"optimizer= takes an optimizer class, such as torch.optim.AdamW, not {optimizer!r}")
        options = _options(optimizer)
        return None if options is None else options | _FROM_SCHEDULERS


def depths(model: Any, names: list[str]) -> list[int | None]:
    """The level of each name according to `group_matcher`, which gives every name an order. Names with the same order
    are at the same level, and levels are sorted by order."""
    matcher = model.group_matcher(coarse=False)
    if isinstance(matcher, Mapping):
        order_of = _by_patterns(matcher)
    elif callable(matcher):
        order_of = _by_function(matcher)
    else:
        raise TypeError(f"it returns {type(matcher).__name__}, not a dict of patterns or a function of names")
    orders = [order_of(name) for name in names]
    levels: dict[_Order, int] = {}
    level = -1
    for order in sorted(set(orders) - {_AFTER_ALL}):
        if level < 0 or order[-1] != _WITH_PREVIOUS:
            level += 1
        levels[order] = level
    return [levels.get(order) for order in orders]


def _by_patterns(matcher: Mapping[str, Any]) -> Callable[[str], _Order]:
    """A function that returns the order of a name: the number of the first part with a matching pattern, the numbers
    that the pattern captures, and the order given with the pattern. A name that matches nothing comes last."""
    patterns = []
    for number, (part, spec) in enumerate(matcher.items()):
        if spec is None:
            continue
        for pair in [(spec, None)] if isinstance(spec, str | re.Pattern) else spec:
            try:
                pattern, then = pair
                patterns.append((re.compile(pattern), number, tuple(then or ())))
            except (TypeError, ValueError) as error:
                raise TypeError(f"its part {part!r} has {pair!r}, not a pair of pattern and order") from error

    def order_of(name: str) -> _Order:
        for pattern, number, then in patterns:
            match = pattern.match(name)
            if match:
                return tuple(map(float, (number, *match.groups(), *then)))
        return _AFTER_ALL

    return order_of


def _by_function(matcher: Callable[[str], Any]) -> Callable[[str], _Order]:
    def order_of(name: str) -> _Order:
        order = matcher(name)
        return tuple(map(float, order)) if isinstance(order, Iterable) else (float(order),)

    return order_of


def undecayed(model: Any, names: list[str]) -> list[bool]:
    """Which names the model excludes from weight decay: the names that it lists, perhaps with wildcards, and names that
    contain one of its keywords."""
    listed, keywords = (_strings(model, method) for method in ("no_weight_decay", "no_weight_decay_keywords"))
    exact, patterns = set(listed), [name for name in listed if set(name) & set("*?[")]
    return [
        name in exact
        or any(fnmatchcase(name, pattern) for pattern in patterns)
        or any(keyword in name for keyword in keywords)
        for name in names
    ]


def _strings(model: Any, method: str) -> list[str]:
    ask = getattr(model, method, None)
    if not callable(ask):
        return []
    answer = ask()
    names = list(answer) if isinstance(answer, Iterable) and not isinstance(answer, str) else [answer]
    if isinstance(answer, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{method}() returns {answer!r}, not a set of names")
    return [name for name in names if name]


def _options(cls: Any) -> frozenset[str] | None:
    """The keyword arguments of an optimizer class, without the parameters; None if it accepts any."""
    try:
        parameters = list(inspect.signature(cls).parameters.values())
    except ValueError:  # a built-in has no signature
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters[1:])
