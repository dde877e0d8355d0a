"""What models say about their own training: how deep each parameter lies, and which are not to be decayed.

timm's models say it by two methods, and other libraries took them over: `group_matcher(coarse)` and
`no_weight_decay()`; the repository of Swin has `no_weight_decay_keywords()` besides. They are asked by name, so that no
library needs to be imported for them.
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

_WITH_PREVIOUS = 99999.0  # at the end of an order: at the level of what comes before
_AFTER_ALL = (inf,)

_Order = tuple[float, ...]

_FROM_SCHEDULERS = frozenset({"initial_lr"})  # which schedulers write into groups, and read there


class TorchGrouping(Grouping):
    def depths_by(self, cls: type) -> Callable[[Any, list[str]], list[int | None]] | None:
        return depths if callable(getattr(cls, "group_matcher", None)) else None

    def undecayed_by(self, cls: type) -> Callable[[Any, list[str]], list[bool]] | None:
        methods = ("no_weight_decay", "no_weight_decay_keywords")
        return undecayed if any(callable(getattr(cls, method, None)) for method in methods) else None

    def optimizer_options(self, optimizer: Any) -> frozenset[str] | None:
        """The options of a group that an optimizer takes: a class, an instance, or None for any of PyTorch's own."""
        if optimizer is None:
            found = frozenset().union(
                *(_options(cls) or () for cls in vars(torch.optim).values() if _is_optimizer(cls))
            )
            return found | _FROM_SCHEDULERS
        if isinstance(optimizer, torch.optim.Optimizer):
            return frozenset(optimizer.defaults) | _FROM_SCHEDULERS
        if not callable(optimizer):
            raise RuleError(f"optimizer= takes the class of an optimizer, such as torch.optim.AdamW, not {optimizer!r}")
        found_options = _options(optimizer)
        return None if found_options is None else found_options | _FROM_SCHEDULERS


def depths(model: Any, names: list[str]) -> list[int | None]:
    """The level of each name by `group_matcher`, which gives every name an order: names of one order are at one level,
    and levels follow each other as orders do."""
    matcher = model.group_matcher(coarse=False)
    if isinstance(matcher, Mapping):
        order_of = _by_patterns(matcher)
    elif callable(matcher):
        order_of = _by_function(matcher)
    else:
        raise TypeError(f"it gives {type(matcher).__name__}, neither a dict of patterns nor a function of names")
    orders = [order_of(name) for name in names]
    levels: dict[_Order, int] = {}
    level = -1
    for order in sorted(set(orders) - {_AFTER_ALL}):
        if level < 0 or order[-1] != _WITH_PREVIOUS:
            level += 1
        levels[order] = level
    return [levels.get(order) for order in orders]


def _by_patterns(matcher: Mapping[str, Any]) -> Callable[[str], _Order]:
    """The order of a name: the number of the first part with a pattern that fits, the numbers that the pattern
    captures, and what is given with the pattern. What fits none comes after all."""
    patterns = []
    for number, (part, given) in enumerate(matcher.items()):
        if given is None:
            continue
        for one in [(given, None)] if isinstance(given, str | re.Pattern) else given:
            try:
                pattern, then = one
                patterns.append((re.compile(pattern), number, tuple(then or ())))
            except (TypeError, ValueError) as error:
                raise TypeError(f"its part {part!r} has {one!r}, not a pair of pattern and order") from error

    def order_of(name: str) -> _Order:
        for pattern, number, then in patterns:
            found = pattern.match(name)
            if found:
                return tuple(float(one) for one in (number, *found.groups(), *then))
        return _AFTER_ALL

    return order_of


def _by_function(matcher: Callable[[str], Any]) -> Callable[[str], _Order]:
    def order_of(name: str) -> _Order:
        order = matcher(name)
        return tuple(map(float, order)) if isinstance(order, Iterable) else (float(order),)

    return order_of


def undecayed(model: Any, names: list[str]) -> list[bool]:
    """Which names the model wants without decay: those that it lists, perhaps with wildcards, and those that hold one
    of its keywords."""
    listed, keywords = (_strings(model, method) for method in ("no_weight_decay", "no_weight_decay_keywords"))
    exact, patterns = set(listed), [one for one in listed if set(one) & set("*?[")]
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
    found = ask()
    names = list(found) if isinstance(found, Iterable) and not isinstance(found, str) else [found]
    if isinstance(found, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{method}() gives {found!r}, not a set of names")
    return [name for name in names if name]


def _is_optimizer(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer


def _options(cls: Any) -> frozenset[str] | None:
    """What a class takes besides the parameters; None where it takes anything."""
    try:
        parameters = list(inspect.signature(cls).parameters.values())
    except ValueError:  # of something built in
        return None
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    return frozenset(one.name for one in parameters[1:])
