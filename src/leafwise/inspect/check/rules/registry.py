"""The rules of `lw.check` by their codes: one small function each."""

import re
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from leafwise.errors import QueryError
from leafwise.inspect.check.findings import Finding, Level

if TYPE_CHECKING:
    from leafwise.inspect.check.evidence import Looked
    from leafwise.inspect.check.leaf_evidence import Seen


class Told(NamedTuple):
    """What a rule says; its code comes with the rule."""

    level: Level
    path: str
    message: str


Found = Iterator[Told]


def told(level: Level, where: "Seen | str", message: str) -> Told:
    return Told(level, where if isinstance(where, str) else where.path, message)


def error(where: "Seen | str", message: str) -> Told:
    return told("error", where, message)


def warning(where: "Seen | str", message: str) -> Told:
    return told("warning", where, message)


def note(where: "Seen | str", message: str) -> Told:
    return told("note", where, message)


# In the order in which they run and are listed.
_FILES = ("values", "units", "initial_values", "sharing", "training", "precision", "baseline")


class CheckRule(NamedTuple):
    """A rule: its code, a name, and what it looks for. One that is `asked` runs only where its very code is named."""

    code: str
    name: str
    about: str
    look: "Callable[[Looked], Found]"
    asked: bool = False

    def findings(self, looked: "Looked") -> Iterator[Finding]:
        return (Finding(self.code, *one) for one in self.look(looked))


_RULES: dict[str, CheckRule] = {}


def rule(
    code: str, name: str, *, asked: bool = False
) -> "Callable[[Callable[[Looked], Found]], Callable[[Looked], Found]]":
    """Makes a function a rule; the first line of its docstring says what it is about."""

    def register(look: "Callable[[Looked], Found]") -> "Callable[[Looked], Found]":
        assert code not in _RULES, code
        about = " ".join((look.__doc__ or "").split())
        _RULES[code] = CheckRule(code, name, about, look, asked)
        return look

    return register


def all_rules() -> dict[str, CheckRule]:
    """Every rule by its code."""
    for file in _FILES:
        import_module(f"leafwise.inspect.check.rules.{file}")
    return dict(sorted(_RULES.items()))


def chosen(select: Any, ignore: Any) -> list[CheckRule]:
    """The rules that `select` and `ignore` leave: codes, or fronts of codes such as "LW3"."""
    rules = all_rules()
    wanted = None if select is None else _codes(select, rules, "select")
    unwanted = _codes(() if ignore is None else ignore, rules, "ignore")
    return [one for one in rules.values() if _is_wanted(one, wanted) and not one.code.startswith(tuple(unwanted))]


def _is_wanted(one: CheckRule, wanted: list[str] | None) -> bool:
    if one.asked:
        return wanted is not None and one.code in wanted
    return wanted is None or one.code.startswith(tuple(wanted))


def _codes(given: Any, rules: Iterable[str], option: str) -> list[str]:
    codes = [given] if isinstance(given, str) else given
    if not isinstance(codes, Iterable):
        raise QueryError(f'{option}= takes codes of rules, such as ["LW101", "LW3"], not {given!r}')
    # As one string, as on a command line.
    codes = [part for one in codes for part in (re.split(r"[,\s]+", one) if isinstance(one, str) else [one]) if part]
    if not codes and option == "select":
        raise QueryError("select= names no rule; leave it out for all of them")
    for code in codes:
        if not isinstance(code, str) or not any(one.startswith(code) for one in rules):
            near = get_close_matches(str(code), rules, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(rules)}"
            raise QueryError(f"{option}=: no rule has the code {code!r}; {hint}")
    return codes
