"""`lw.Rule`: options for the leaves that match a query."""

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

from leafwise.core.columns import Columns
from leafwise.core.path import Path, escape, listed
from leafwise.core.query import Query
from leafwise.core.tree import Tree
from leafwise.errors import RuleError
from leafwise.share.places import nothing_matches


class Rule:
    """Options for the leaves that match a query, for `lw.groups` and `lw.initialize`.

    `where` is a glob, `lw.where(...)`, a compiled regular expression or a callable; see `Query`. `options` are options
    of an optimizer, or `init=` and the options of an initializer.

    If rules give different options to the names of a tied leaf, that is an error, unless a rule with `wins=True`
    matches some of the names: then their options are used. This holds for the options that the rule sets, or for all
    options if it sets none. If several such rules match, the last one decides.

    >>> import leafwise as lw
    >>> lw.Rule("**.bias", weight_decay=0.0)
    Rule('**.bias', weight_decay=0)
    """

    may_match_nothing = False  # a rule for leaves that the model does not have is a mistake

    def __init__(self, where: Any, /, *, wins: bool = False, **options: Any) -> None:
        if not options and not wins:
            raise RuleError(f"Rule({where!r}) has no options; add some, such as Rule({where!r}, lr=1e-4)")
        self.query = Query.of(where)
        self.where = where
        self.wins = wins
        self.options = options

    def places(self, tree: Tree, rows: Collection[int]) -> Iterable[tuple[int, Hashable]]:
        """The rows that match, each with a place. Rows with equal places get equal options."""
        return [(row, None) for row in self.query.names(tree.columns, tree.root, rows)]

    def at(self, place: Hashable, before: dict[str, Any]) -> dict[str, Any]:
        """The options that the rule sets at a place; `before` are the options set by earlier rules."""
        return self.options

    def note(self, columns: Columns, placed: Sequence[tuple[int, Hashable]]) -> str:
        """A note for the account about the rows that `places` returned; empty if there is nothing to say."""
        return ""

    def __repr__(self) -> str:
        where = repr(self.where) if isinstance(self.where, str) else repr(self.query)
        where = where.removeprefix("Query(").removesuffix(")") if where.startswith("Query(") else where
        options = [f"{name}={option_text(value)}" for name, value in self.options.items()]
        arguments = [where, *(["wins=True"] if self.wins else []), *options]
        return escape(f"Rule({', '.join(arguments)})")


def option_text(value: Any) -> str:
    """The value of an option, as text for a message.

    >>> option_text(0.1 * 0.75**3), option_text((0.9, 0.95))
    ('0.0421875', '(0.9, 0.95)')
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return repr(value)


def checked_rules(rules: Any) -> list[Rule]:
    """One rule or several, as a list; raises if anything in it is not a rule."""
    if rules is None:
        return []
    is_one = isinstance(rules, Rule | str) or not isinstance(rules, Iterable)
    rule_list = [rules] if is_one else list(rules)
    for rule in rule_list:
        if not isinstance(rule, Rule):
            raise RuleError(
                f"a rule must be lw.Rule(where, option=…), lw.no_decay() or lw.layer_decay(…), not {rule!r}"
            )
    return rule_list


def matches_nothing(tree: Tree, rule: Rule, kind: str) -> RuleError:
    """The error for a rule that matches no leaf of the kind it is for."""
    rows = rule.query.names(tree.columns, tree.root, tree.rows)
    if rows:
        names = listed([tree.columns.row_text(row) for row in rows], 3)
        return RuleError(f"{rule!r} matches no {kind}, only {names}")
    why = f": {nothing_matches(tree, rule.where)}" if isinstance(rule.where, str | Path) else ""
    return RuleError(f"{rule!r} matches nothing{why}")
