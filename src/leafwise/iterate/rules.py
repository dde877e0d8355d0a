"""Rules: which leaves, and what holds for them. Later rules override the options that they name.

`lw.groups` and `lw.initialize` read the same rules in the same way: each name of a leaf collects options down the list
of rules, and the names of a shared leaf must agree.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from leafwise.core.columns import Columns
from leafwise.core.path import Path, escape, listed
from leafwise.core.query import Query
from leafwise.core.tree import Tree
from leafwise.errors import Error, RuleError
from leafwise.share.places import nothing_matches

_UNSAID: Final = type("_Unsaid", (), {"__repr__": lambda self: "the default"})()


class Rule:
    """For the leaves that match, these options; see `lw.groups` and `lw.initialize`.

    `where` is a glob, `lw.where(...)`, a compiled regular expression or a callable, as `select` takes it. With
    `wins=True`, what holds for the names that match holds for the whole of a shared leaf whose names disagree: for the
    options named, or for all where none is. The last rule that wins decides.

    >>> import leafwise as lw
    >>> lw.Rule("**.bias", weight_decay=0.0)
    Rule('**.bias', weight_decay=0)
    """

    may_match_nothing = False  # a rule that somebody wrote for leaves that are not there is a mistake

    def __init__(self, where: Any, /, *, wins: bool = False, **options: Any) -> None:
        if not options and not wins:
            raise RuleError(f"Rule({where!r}) says nothing; give it options, such as Rule({where!r}, lr=1e-4)")
        self.query = Query.of(where)
        self.where = where
        self.wins = wins
        self.options = options

    def places(self, tree: Tree, rows: Collection[int]) -> Iterable[tuple[int, Hashable]]:
        """The rows that match, each with a word that tells apart what is to hold there."""
        return [(row, None) for row in self.query.names(tree.columns, tree.root, rows)]

    def at(self, place: Hashable, before: dict[str, Any]) -> dict[str, Any]:
        """What is to hold at a place, where `before` holds by the rules before."""
        return self.options

    def note(self, columns: Columns, placed: Sequence[tuple[int, Hashable]]) -> str:
        """What the account says besides, about the rows that `places` gave; empty where there is nothing to say."""
        return ""

    def __repr__(self) -> str:
        where = repr(self.where) if isinstance(self.where, str) else repr(self.query)
        where = where.removeprefix("Query(").removesuffix(")") if where.startswith("Query(") else where
        return escape(f"Rule({', '.join([where, *(['wins=True'] if self.wins else []), *_said(self.options)])})")


def _said(options: dict[str, Any]) -> list[str]:
    return [f"{name}={option_text(value)}" for name, value in options.items()]


def option_text(value: Any) -> str:
    """The value of an option, short.

    >>> option_text(0.1 * 0.75**3), option_text((0.9, 0.95))
    ('0.0421875', '(0.9, 0.95)')
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return repr(value)


class Held(NamedTuple):
    """What holds for a name: the options, the number of the rule that set each, and of the last rule by which the name
    wins about an option, or about all of them."""

    options: dict[str, Any]
    set_by: dict[str, int]
    wins: dict[str, int]
    wins_all: int = -1

    def claim(self, option: str) -> int:
        """The number of the last rule by which this name decides; -1 where there is none."""
        return max(self.wins.get(option, -1), self.wins_all)


class Cascade:
    """What holds for each name after all rules. A model has many names and few sets of options, so every name has only
    the number of its set."""

    def __init__(
        self, tree: Tree, rules: Sequence[Rule], rows: Sequence[int], base: dict[str, Any], starts_anew: str = ""
    ) -> None:
        """`rows` are the names in question, `base` what holds before all rules. A rule that names the option
        `starts_anew` does away with what the rules before it said."""
        self._columns: Columns = tree.columns
        self._rules = rules
        self._starts_anew = starts_anew
        self._sets = [Held(base, {}, {})]
        self._set_of = dict.fromkeys(rows, 0)
        self.matched: list[list[int]] = []
        self.notes: list[str] = []
        for number, rule in enumerate(rules):
            moved: dict[tuple[int, Hashable], int] = {}
            found = []
            placed = self._places(rule, tree, rows)
            for row, place in placed:
                here = self._set_of[row], place
                if here not in moved:
                    moved[here] = len(self._sets)
                    self._sets.append(self._after(number, self._sets[here[0]], place))
                self._set_of[row] = moved[here]
                found.append(row)
            self.matched.append(found)
            self.notes.append(rule.note(self._columns, placed))

    @staticmethod
    def _places(rule: Rule, tree: Tree, rows: Sequence[int]) -> list[tuple[int, Hashable]]:
        try:
            return list(rule.places(tree, rows))
        except Error:
            raise
        except Exception as error:  # of somebody's query
            raise RuleError(f"{rule!r}: its query raised {type(error).__name__}: {error}") from error

    def _after(self, number: int, held: Held, place: Hashable) -> Held:
        rule = self._rules[number]
        new = rule.at(place, held.options)
        anew = self._starts_anew in new
        return Held(
            {**({} if anew else held.options), **new},
            {**({} if anew else held.set_by), **dict.fromkeys(new, number)},
            {**held.wins, **(dict.fromkeys(rule.options, number) if rule.wins else {})},
            number if rule.wins and not rule.options else held.wins_all,
        )

    def holds(self, rows: Sequence[int]) -> Held:
        """What holds for a leaf with these names; raises where they disagree and no rule settles it."""
        if len(rows) == 1:
            return self._sets[self._set_of[rows[0]]]
        held = [self._sets[self._set_of[row]] for row in rows]
        if all(one is held[0] for one in held):
            return held[0]
        if self._starts_anew:
            return self._one_of(rows, held)
        options: dict[str, Any] = {}
        set_by: dict[str, int] = {}
        for option in dict.fromkeys(name for one in held for name in one.options):
            deciding = held
            if not _agree(held, option):
                deciding = _deciding(held, [one.claim(option) for one in held])
                if not deciding or not _agree(deciding, option):
                    raise self._disagreement(rows, held, option)
            if option in deciding[0].options:
                options[option] = deciding[0].options[option]
                set_by[option] = deciding[0].set_by.get(option, -1)
        return Held(options, set_by, {})

    def _one_of(self, rows: Sequence[int], held: list[Held]) -> Held:
        """All that holds for one of the names, where options belong together."""
        if all(_is_equal(held[0], one) for one in held):
            return held[0]
        deciding = _deciding(held, [max([one.wins_all, *one.wins.values()]) for one in held])
        if not deciding or not all(_is_equal(deciding[0], one) for one in deciding):
            names = [self._starts_anew, *(name for one in held for name in one.options)]
            raise self._disagreement(rows, held, next(name for name in names if not _agree(held, name)))
        return deciding[0]

    def holding(self, leaves: Iterable[int], tied: dict[int, list[int]]) -> list[tuple[Held, list[int]]]:
        """What holds for which leaves, in the order of the first; `tied` are the names of those that have several."""
        members: dict[int, list[int]] = {}
        settled: list[tuple[Held, list[int]]] = []
        for leaf in leaves:
            if leaf in tied:
                settled.append((self.holds(tied[leaf]), [leaf]))
            else:
                number = self._set_of[leaf]
                if number not in members:
                    members[number] = []
                    settled.append((self._sets[number], members[number]))
                members[number].append(leaf)
        return settled

    def deciding(self, rows: Sequence[int], held: Held) -> int:
        """Of the names of a leaf, the first for which this holds."""
        return next(row for row in rows if self._sets[self._set_of[row]] is held)

    def uncovered(self, leaves: Iterable[int], tied: dict[int, list[int]]) -> list[int]:
        """Of leaves, those about which no rule says anything; `tied` are the names of those that have several."""
        silent = {number for number, held in enumerate(self._sets) if not held.set_by}
        found = [leaf for leaf in leaves if self._set_of[tied[leaf][0] if leaf in tied else leaf] in silent]
        said = {leaf for leaf, rows in tied.items() if any(self._set_of[row] not in silent for row in rows)}
        return [leaf for leaf in found if leaf not in said] if said else found

    def rule_of(self, held: Held, option: str) -> str:
        """The rule that said so, as text."""
        number = held.set_by.get(option, -1)
        return repr(self._rules[number]) if number >= 0 else "the options given for all"

    def _disagreement(self, rows: Sequence[int], held: list[Held], option: str) -> RuleError:
        names = [self._columns.row_text(row) for row in rows]
        said = [
            f"{option}={option_text(one.options.get(option, _UNSAID))} for {name}"
            + (f" by {self.rule_of(one, option)}" if option in one.options else "")
            for name, one in zip(names, held, strict=True)
        ]
        return RuleError(
            f"{' and '.join(names)} are one leaf, and the rules disagree about it: {'; '.join(said)}; "
            f'add Rule("{names[0]}", wins=True) to let that name decide'
        )


def _deciding(held: list[Held], claims: list[int]) -> list[Held]:
    """Of the names of a leaf, those that decide: by the last rule that lets any."""
    last = max(claims)
    return [one for one, claim in zip(held, claims, strict=True) if claim == last] if last >= 0 else []


def _is_equal(a: Held, b: Held) -> bool:
    return all(_agree([a, b], option) for option in {*a.options, *b.options})


def _agree(held: list[Held], option: str) -> bool:
    first = held[0].options.get(option, _UNSAID)
    return all(same(first, one.options.get(option, _UNSAID)) for one in held[1:])


def same(a: Any, b: Any) -> bool:
    """Whether two values of an option are equal; two arrays only if they are one."""
    if a is b:
        return True
    numbers = all(isinstance(one, int | float) for one in (a, b))
    try:
        return (numbers or type(a) is type(b)) and bool(a == b)
    except (RuntimeError, ValueError, TypeError):
        return False


def checked_rules(rules: Any) -> list[Rule]:
    """The rules as a list; raises where one is none."""
    if isinstance(rules, Rule):
        return [rules]
    wrong = rules if isinstance(rules, str) or not isinstance(rules, Iterable | None) else None
    found = [] if rules is None or wrong is not None else list(rules)
    for rule in found if wrong is None else [wrong]:
        if not isinstance(rule, Rule):
            raise RuleError(f"rules are lw.Rule(where, option=…), lw.no_decay() or lw.layer_decay(…), not {rule!r}")
    return found


def matches_nothing(tree: Tree, rule: Rule, what: str) -> RuleError:
    """The error for a rule that matches nothing of what it is for."""
    found = rule.query.names(tree.columns, tree.root, tree.rows)
    if found:
        some = listed([tree.columns.row_text(row) for row in found], 3)
        return RuleError(f"{rule!r} matches no {what}; it matches {some}")
    why = f": {nothing_matches(tree, rule.where)}" if isinstance(rule.where, str | Path) else ""
    return RuleError(f"{rule!r} matches nothing{why}")
