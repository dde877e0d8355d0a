"""Applies a list of rules: computes the options of each leaf, where later rules override earlier ones.

`lw.groups` and `lw.initialize` apply rules in the same way: each name of a leaf collects options from the first rule to
the last, and the names of a tied leaf must agree.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from leafwise.core.columns import Columns
from leafwise.core.pairing.plain_pairs import same_plain
from leafwise.core.tree import Tree
from leafwise.errors import Error, RuleError
from leafwise.iterate.rules import Rule, option_text

_UNSET: Final = type("_Unset", (), {"__repr__": lambda self: "the default"})()


class OptionSet(NamedTuple):
    """The options of a name, and the number of the rule that set each of them.

    `wins` has, for each option, the number of the last rule with `wins=True` that matches the name and sets the option.
    `wins_all` is the number of the last such rule that sets no options.
    """

    options: dict[str, Any]
    set_by: dict[str, int]
    wins: dict[str, int]
    wins_all: int = -1

    def winning_rule(self, option: str) -> int:
        """The number of the last rule that lets this name decide an option; -1 if there is none."""
        return max(self.wins.get(option, -1), self.wins_all)


class Cascade:
    """The options of each name after all rules. A model has many names but few sets of options, so only the number of
    its set is stored for each name."""

    def __init__(
        self, tree: Tree, rules: Sequence[Rule], rows: Sequence[int], base: dict[str, Any], resetting: str = ""
    ) -> None:
        """`rows` are the names to apply the rules to, and `base` the options before all rules. A rule that sets the
        option `resetting` drops the options of all rules before it."""
        self._columns: Columns = tree.columns
        self._rules = rules
        self._resetting = resetting
        self._rule_texts: dict[int, str] = {}
        self._sets = [OptionSet(base, {}, {})]
        self._set_of = dict.fromkeys(rows, 0)
        self.matched: list[list[int]] = []
        self.notes: list[str] = []
        for number, rule in enumerate(rules):
            new_sets: dict[tuple[int, Hashable], int] = {}
            placed = self._places(rule, tree, rows)
            for row, place in placed:
                set_before = self._set_of[row]
                key = set_before, place
                if key not in new_sets:
                    new_sets[key] = len(self._sets)
                    self._sets.append(self._after(number, self._sets[set_before], place))
                self._set_of[row] = new_sets[key]
            self.matched.append([row for row, _ in placed])
            self.notes.append(rule.note(self._columns, placed))

    @staticmethod
    def _places(rule: Rule, tree: Tree, rows: Sequence[int]) -> list[tuple[int, Hashable]]:
        try:
            return list(rule.places(tree, rows))
        except Error:
            raise
        except Exception as error:  # raised by the caller's own query
            raise RuleError(f"{rule!r}: its query raised {type(error).__name__}: {error}") from error

    def _after(self, number: int, before: OptionSet, place: Hashable) -> OptionSet:
        """The set of a name after a rule that matches it."""
        rule = self._rules[number]
        new = rule.at(place, before.options)
        resets = self._resetting in new
        return OptionSet(
            {**({} if resets else before.options), **new},
            {**({} if resets else before.set_by), **dict.fromkeys(new, number)},
            {**before.wins, **(dict.fromkeys(rule.options, number) if rule.wins else {})},
            number if rule.wins and not rule.options else before.wins_all,
        )

    def options_of(self, rows: Sequence[int]) -> OptionSet:
        """The options of a leaf with these names; raises if they disagree and no rule with `wins=True` settles it."""
        if len(rows) == 1:
            return self._sets[self._set_of[rows[0]]]
        sets = [self._sets[self._set_of[row]] for row in rows]
        if all(option_set is sets[0] for option_set in sets):
            return sets[0]
        if self._resetting:
            return self._one_set(rows, sets)
        options: dict[str, Any] = {}
        set_by: dict[str, int] = {}
        for option in dict.fromkeys(name for option_set in sets for name in option_set.options):
            deciding = sets
            if not _agree(sets, option):
                deciding = _winning(sets, [option_set.winning_rule(option) for option_set in sets])
                if not deciding or not _agree(deciding, option):
                    raise self._disagreement(rows, sets, option)
            if option in deciding[0].options:
                options[option] = deciding[0].options[option]
                set_by[option] = deciding[0].set_by.get(option, -1)
        return OptionSet(options, set_by, {})

    def _one_set(self, rows: Sequence[int], sets: list[OptionSet]) -> OptionSet:
        """The whole set of one of the names, since the options of different initializers cannot be combined."""
        if all(_is_equal(sets[0], option_set) for option_set in sets):
            return sets[0]
        deciding = _winning(sets, [max([option_set.wins_all, *option_set.wins.values()]) for option_set in sets])
        if not deciding or not all(_is_equal(deciding[0], option_set) for option_set in deciding):
            names = [self._resetting, *(name for option_set in sets for name in option_set.options)]
            raise self._disagreement(rows, sets, next(name for name in names if not _agree(sets, name)))
        return deciding[0]

    def leaves_by_options(self, leaves: Iterable[int], tied: dict[int, list[int]]) -> list[tuple[OptionSet, list[int]]]:
        """The leaves by their options, ordered by first leaf; `tied` has the rows of leaves with several names."""
        members: dict[int, list[int]] = {}
        settled: list[tuple[OptionSet, list[int]]] = []
        for leaf in leaves:
            if leaf in tied:
                settled.append((self.options_of(tied[leaf]), [leaf]))
            else:
                number = self._set_of[leaf]
                if number not in members:
                    members[number] = []
                    settled.append((self._sets[number], members[number]))
                members[number].append(leaf)
        return settled

    def deciding_row(self, rows: Sequence[int], option_set: OptionSet) -> int:
        """The first of a leaf's names that has this set."""
        if len(rows) == 1:
            return rows[0]
        return next(row for row in rows if self._sets[self._set_of[row]] is option_set)

    def uncovered(self, leaves: Iterable[int], tied: dict[int, list[int]]) -> list[int]:
        """The leaves for which no rule sets an option; `tied` has the rows of leaves with several names."""
        untouched = {number for number, option_set in enumerate(self._sets) if not option_set.set_by}
        first_uncovered = [
            leaf for leaf in leaves if self._set_of[tied[leaf][0] if leaf in tied else leaf] in untouched
        ]
        covered = {leaf for leaf, rows in tied.items() if any(self._set_of[row] not in untouched for row in rows)}
        return [leaf for leaf in first_uncovered if leaf not in covered] if covered else first_uncovered

    def rule_of(self, option_set: OptionSet, option: str) -> str:
        """The rule that set an option, as text."""
        number = option_set.set_by.get(option, -1)
        if number < 0:
            return "the options for all leaves"
        if number not in self._rule_texts:  # asked for each leaf
            self._rule_texts[number] = repr(self._rules[number])
        return self._rule_texts[number]

    def _disagreement(self, rows: Sequence[int], sets: list[OptionSet], option: str) -> RuleError:
        names = [self._columns.row_text(row) for row in rows]
        claims = [
            f"{option}={option_text(option_set.options.get(option, _UNSET))} for {name}"
            + (f" by {self.rule_of(option_set, option)}" if option in option_set.options else "")
            for name, option_set in zip(names, sets, strict=True)
        ]
        return RuleError(
            f"{' and '.join(names)} are one leaf, and the rules disagree about it: {'; '.join(claims)}; "
            f'add Rule("{names[0]}", wins=True) to let that name decide'
        )


def tied_names(t: Tree) -> dict[int, list[int]]:
    """For each leaf with several names, the rows of the names in this tree, the first name first."""
    columns = t.columns
    tree_rows = set(t.rows) if columns.further_rows else set()
    names = {leaf: [row for row in columns.rows_of(leaf) if row in tree_rows] for leaf in columns.further_rows}
    return {leaf: rows for leaf, rows in names.items() if rows}


def _winning(sets: list[OptionSet], rule_numbers: list[int]) -> list[OptionSet]:
    """Of the sets of a leaf's names, the sets that decide because of the last rule with `wins=True`."""
    last = max(rule_numbers)
    if last < 0:
        return []
    return [option_set for option_set, number in zip(sets, rule_numbers, strict=True) if number == last]


def _is_equal(a: OptionSet, b: OptionSet) -> bool:
    return all(_agree([a, b], option) for option in {*a.options, *b.options})


def _agree(sets: list[OptionSet], option: str) -> bool:
    first = sets[0].options.get(option, _UNSET)
    return all(same_plain(first, option_set.options.get(option, _UNSET)) for option_set in sets[1:])
