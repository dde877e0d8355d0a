"""The rules of `lw.check` by their codes: one small function each."""

import re
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from leafwise.errors import QueryError
from leafwise.inspect.check.findings import LEVELS, Finding, Level
from leafwise.inspect.indices import Places

if TYPE_CHECKING:
    from leafwise.inspect.check.evidence import Evidence
    from leafwise.inspect.check.leaf_evidence import LeafEvidence


Reports = Iterator[Finding]
CheckFunction: TypeAlias = "Callable[[Evidence], Reports]"


_WHOLE = Places((), None, 0)  # not at particular indices


def report(level: Level, where: "LeafEvidence | str", message: str, places: Places = _WHOLE) -> Finding:
    """A finding, without the code, which `CheckRule` adds."""
    return Finding("", level, where if isinstance(where, str) else where.path, message, *places)


error, warning, note = (partial(report, level) for level in LEVELS)


# In the order in which they run and are listed.
_FILES = ("values", "units", "initial_values", "sharing", "training", "precision", "baseline", "pickles")


class CheckRule(NamedTuple):
    """A rule: its code, its name, and what it looks for. An `opt_in` rule runs only if its exact code is selected."""

    code: str
    name: str
    about: str
    function: "CheckFunction"
    opt_in: bool = False

    def findings(self, evidence: "Evidence") -> Iterator[Finding]:
        for finding in self.function(evidence):
            yield finding._replace(code=self.code)


_RULES: dict[str, CheckRule] = {}


def rule(code: str, name: str, *, opt_in: bool = False) -> "Callable[[CheckFunction], CheckFunction]":
    """Registers a function as a rule; its docstring is the description that `leafwise check --rules` shows."""

    def register(function: "CheckFunction") -> "CheckFunction":
        assert code not in _RULES, code
        about = " ".join((function.__doc__ or "").split())
        _RULES[code] = CheckRule(code, name, about, function, opt_in)
        return function

    return register


def all_rules() -> dict[str, CheckRule]:
    """Every rule by its code."""
    for file in _FILES:
        import_module(f"leafwise.inspect.check.rules.{file}")
    return dict(sorted(_RULES.items()))


def selected_rules(select: Any, ignore: Any) -> list[CheckRule]:
    """The rules that remain after `select` and `ignore`, which take codes or prefixes of codes such as "LW3"."""
    rules = all_rules()
    wanted = None if select is None else _codes(select, rules, "select")
    unwanted = _codes(() if ignore is None else ignore, rules, "ignore")
    return [rule for rule in rules.values() if _is_wanted(rule, wanted) and not rule.code.startswith(tuple(unwanted))]


def _is_wanted(rule: CheckRule, wanted: list[str] | None) -> bool:
    if rule.opt_in:
        return wanted is not None and rule.code in wanted
    return wanted is None or rule.code.startswith(tuple(wanted))


def _codes(argument: Any, rules: Iterable[str], option: str) -> list[str]:
    items = [argument] if isinstance(argument, str) else argument
    if not isinstance(items, Iterable):
        raise QueryError(f'{option}= takes rule codes or their prefixes, such as ["LW101", "LW3"], not {argument!r}')
    # A string may contain several codes, as on the command line.
    codes = [
        code for item in items for code in (re.split(r"[,\s]+", item) if isinstance(item, str) else [item]) if code
    ]
    if not codes and option == "select":
        raise QueryError("select= is empty; name at least one rule, or leave it out to run all of them")
    for code in codes:
        if not isinstance(code, str) or not any(known.startswith(code) for known in rules):
            near = get_close_matches(str(code), rules, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the codes are {', '.join(rules)}"
            raise QueryError(f"{option}=: no rule has the code {code!r}; {hint}")
    return codes
