"""`lw.groups`: parameter groups for an optimizer, made by rules."""

from collections import Counter
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple

from leafwise.core.capabilities.grouping import Grouping
from leafwise.core.columns import SECTIONS, Columns, Facts, Section, tally
from leafwise.core.dtypes import is_inexact
from leafwise.core.home import Home
from leafwise.core.pairing.plain_pairs import same_plain
from leafwise.core.parts import check_not_gathered, check_whole_leaves, first_rows
from leafwise.core.path import listed
from leafwise.core.results.result import Table
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.core.work.ranks import agreeing, same_text, team_of
from leafwise.errors import RuleError
from leafwise.iterate.cascade import Cascade, OptionSet, tied_names
from leafwise.iterate.group_labels import GroupLabels, LabelledGroups
from leafwise.iterate.rules import Rule, checked_rules, matches_nothing


class RuleAccount(NamedTuple):
    """What one rule of `lw.groups` did: the rule, its options, and how many leaves and parameters it matched.

    `leaves` and `parameters` count trainable leaves and their elements; `frozen` counts frozen leaves, which get no
    group. `note` says what else the rule used, such as the blocks it found or a method of the model.

    >>> import torch, leafwise as lw
    >>> account = lw.groups(torch.nn.Linear(4, 8), [lw.no_decay()]).rules[0]
    >>> account.rule, account.leaves, account.parameters
    ('no_decay()', 1, 8)
    """

    rule: str
    options: dict[str, Any]
    leaves: int
    parameters: int
    frozen: int
    note: str = ""


class GroupAccount(NamedTuple):
    """The options of one group, and how many leaves and parameters it has.

    `decayed` says whether it has weight decay; it is None if that depends on the optimizer's default.

    >>> import torch, leafwise as lw
    >>> lw.groups(torch.nn.Linear(4, 8), lr=0.1).groups[0]
    GroupAccount(options={'lr': 0.1}, leaves=2, parameters=40, decayed=None)
    """

    options: dict[str, Any]
    leaves: int
    parameters: int
    decayed: bool | None


class Groups(LabelledGroups, Table, list[dict[str, Any]], kind="groups"):
    """The result of `lw.groups`: a list of groups, as `torch.optim` takes them. Prints as a table of rules and groups.

    `rules` says what each rule did, and `groups` describes each group. `uncovered` lists the leaves that no rule
    covers, which get the optimizer's defaults. `frozen` lists the frozen leaves, which are left out. So is everything
    that is not a weight: `left_out` has the number of leaves of the sections `optimizer` and `rest`, if there are any.
    For JAX, `groups.optax(make)` is a transformation of optax, and `groups.labels(params)` are the labels for your own.

    >>> import torch, leafwise as lw
    >>> groups = lw.groups(torch.nn.Linear(4, 8), [lw.no_decay()])
    >>> groups[1]["param_names"], groups[1]["weight_decay"], groups.uncovered
    (['bias'], 0.0, ['weight'])
    """

    def __init__(self, groups: Iterable[dict[str, Any]], rules: list[RuleAccount], accounts: list[GroupAccount]):
        super().__init__(groups)
        self.rules, self.groups = rules, accounts
        self.uncovered: list[str] = []
        self.frozen: list[str] = []
        self.frozen_parameters = self.uncovered_parameters = 0
        self.left_out: dict[Section, int] = {}


def groups(
    source: Any,
    rules: Iterable[Rule] | None = None,
    *,
    strict: bool = False,
    optimizer: Any = None,
    **options: Any,
) -> Groups:
    """Makes parameter groups for an optimizer, by rules. Every trainable leaf is in exactly one group.

    `options` such as `lr=1e-3` apply to all leaves. Each rule sets options for the leaves that it matches, and later
    rules override earlier ones. A rule that matches nothing is an error. A leaf that no rule covers gets the
    optimizer's defaults; with `strict=True` it is an error. Frozen leaves are left out.

    A tied leaf is in one group, and the rules must give the same options to all of its names, unless a rule with
    `wins=True` decides between them. `optimizer` is the class that will get the groups, and an option that it does not
    have is an error. Without it, an option is an error if no optimizer of the framework has it.

    If the model is sharded over several processes, every process must call this, with the same rules.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8))
    >>> optimizer = torch.optim.AdamW(lw.groups(net, [lw.no_decay()]), lr=3e-4, weight_decay=0.1)
    >>> [(group["weight_decay"], group["param_names"]) for group in optimizer.param_groups]
    [(0.1, ['0.weight']), (0.0, ['0.bias', '1.weight', '1.bias'])]
    """
    with opened(source, "groups") as t:
        check_not_gathered(t, "make groups of")
        check_whole_leaves(t, "groups")
        team = team_of(t)
        with agreeing(t, "groups", team) as rows:
            # If the tree was walked for this call, its arrays are the current ones.
            array_at = t.columns.current if t is source else t.columns.row_values.__getitem__
            built = _GroupBuilder(t, checked_rules(rules), strict, optimizer, options).build(array_at)
            if team is not None:
                rows += _group_rows(built)
        return built


def _group_rows(built: Groups) -> list[tuple[str, str]]:
    """The options of each leaf, which must be the same on every rank."""
    rows = [(path, "frozen") for path in built.frozen]
    for group, account in zip(built, built.groups, strict=True):
        text = ", ".join(f"{name}={same_text(option)}" for name, option in account.options.items()) or "no options"
        rows += [(path, text) for path in group["param_names"]]
    return rows


class _GroupBuilder:
    """Sorts leaves into groups. Leaves are identified by number; `tied` has the rows of leaves with several names."""

    def __init__(self, t: Tree, rules: list[Rule], strict: bool, optimizer: Any, options: dict[str, Any]) -> None:
        self.tree, self.rules = t, rules
        self.columns: Columns = t.columns
        self.trained: dict[int, int] = {}  # leaf → how many parameters it has
        self.frozen: dict[int, int] = {}
        self.tied: dict[int, list[int]] = {}  # leaf → the rows of its names in this tree, the first name first
        self._sort_leaves()
        self._check_options(optimizer, options)
        rows = [row for leaf in (*self.trained, *self.frozen) for row in self.tied.get(leaf, (leaf,))]
        self.cascade = Cascade(t, rules, rows, options)
        self._check_rules()
        self.keys = dict(zip(self.trained, self.columns.keys([self._row(leaf) for leaf in self.trained]), strict=True))
        self.uncovered = self.cascade.uncovered(self.trained, self.tied)
        if strict and self.uncovered:
            names = listed([self.keys[leaf] for leaf in self.uncovered])
            raise RuleError(f'no rule covers {names}; begin with Rule("**", …), or leave out strict=True')

    def _sort_leaves(self) -> None:
        """Separates trained leaves from frozen ones. Others, such as buffers, are left out."""
        rows = first_rows(self.tree)
        columns = self.columns
        known: dict[int, tuple[bool | None, int]] = {}
        all_facts = columns.facts(rows)
        sections: Counter[Section] = Counter()
        for facts, times in tally(all_facts):
            sections[facts.section] += times
        self.left_out = {section: sections[section] for section in SECTIONS[1:] if sections[section]}
        for row, facts in zip(rows, all_facts, strict=True):
            if id(facts) not in known:
                known[id(facts)] = _is_trained(facts), facts.spec.size
            trained, size = known[id(facts)]
            if trained is not None:
                (self.trained if trained else self.frozen)[columns.ties.get(row, row)] = size
        tied = tied_names(self.tree)
        self.tied = {leaf: rows for leaf, rows in tied.items() if leaf in self.trained or leaf in self.frozen}
        if not self.trained:
            raise RuleError(
                f"nothing to train: all {len(self.frozen):,} parameters are frozen; thaw some first: lw.thaw(model, …)"
                if self.frozen
                else "nothing to train: there are no parameters"
            )

    def _row(self, leaf: int) -> int:
        return self.tied[leaf][0] if leaf in self.tied else leaf

    # -- checks ------------------------------------------------------------------------------------------

    def _check_options(self, optimizer: Any, options: dict[str, Any]) -> None:
        value = self.columns.current(next(iter(self.trained)))
        home: Home = self.columns.home(value)
        known = home.capability(Grouping).optimizer_options(optimizer)
        who = getattr(optimizer, "__name__", type(optimizer).__name__) if optimizer is not None else ""
        by_source = [(None, options), *((rule, rule.options) for rule in self.rules)]
        for rule, name in [(rule, name) for rule, names in by_source for name in names]:
            source = "lw.groups" if rule is None else repr(rule)
            if name in ("params", "param_names"):
                raise RuleError(f"{source}: {name!r} is set by lw.groups and cannot be an option")
            if known is not None and name not in known:
                where = "" if rule is None else self._first_match(rule)
                near = get_close_matches(name, sorted(known), n=1)
                if who:
                    instead = f"did you mean {near[0]!r}?" if near else f"its options are {', '.join(sorted(known))}"
                    raise RuleError(f"{source}{where}: {who} has no option {name!r}; {instead}")
                instead = f"did you mean {near[0]!r}?" if near else "for your own: lw.groups(…, optimizer=Mine)"
                raise RuleError(f"{source}{where}: no optimizer of {home.name} has an option {name!r}; {instead}")

    def _first_match(self, rule: Rule) -> str:
        """The first leaf that a rule matches, for a message; empty if it matches none."""
        rows = rule.query.names(self.columns, self.tree.root, self.tree.rows)
        return f" for {self.columns.row_text(rows[0])}" if rows else ""

    def _check_rules(self) -> None:
        ties = self.columns.ties
        for rule, matched in zip(self.rules, self.cascade.matched, strict=True):
            if not matched:
                if rule.may_match_nothing:
                    continue
                raise matches_nothing(self.tree, rule, "parameter")
            frozen = [row for row in matched if ties.get(row, row) in self.frozen]
            # A rule that turns weight decay off does no harm on frozen leaves; any other rule would have no effect.
            if len(frozen) == len(matched) and rule.options != {"weight_decay": 0.0}:
                names = listed([self.columns.row_text(row) for row in frozen], 3)
                raise RuleError(
                    f"{rule!r} matches only frozen leaves: {names}; drop the rule, or lw.thaw(model, {rule.where!r})"
                )

    # -- the result --------------------------------------------------------------------------------------

    def _stepped(self, array_at: Callable[[int], Any], leaf: int) -> Any:
        value = array_at(leaf)
        if not self.columns.may_be_sharded:
            return value
        try:
            return self.columns.home(value).capability(Grouping).stepped(value)
        except RuleError as error:
            raise RuleError(f"{self.columns.row_text(leaf)}: {error}") from error

    def build(self, array_at: Callable[[int], Any]) -> Groups:
        members: list[tuple[dict[str, Any], list[int]]] = []
        by_value: dict[object, list[int]] = {}
        for option_set, leaves in self.cascade.leaves_by_options(self.trained, self.tied):
            self._members(members, by_value, option_set).extend(leaves)
        order = {leaf: number for number, leaf in enumerate(self.trained)} if self.tied else None
        for _, leaves in members:
            leaves.sort(key=None if order is None else order.__getitem__)
        built = Groups(
            [
                {
                    "params": [self._stepped(array_at, leaf) for leaf in leaves],
                    "param_names": [self.keys[leaf] for leaf in leaves],
                    **options,
                }
                for options, leaves in members
            ],
            self._rule_accounts(),
            [
                GroupAccount(options, len(leaves), sum(map(self.trained.__getitem__, leaves)), _is_decayed(options))
                for options, leaves in members
            ],
        )
        built.uncovered = [self.keys[leaf] for leaf in self.uncovered]
        built.uncovered_parameters = sum(self.trained[leaf] for leaf in self.uncovered)
        built.frozen = self.columns.keys([self._row(leaf) for leaf in self.frozen]) if self.frozen else []
        built.frozen_parameters = sum(self.frozen.values())
        built.left_out = self.left_out
        one_of_each_type = {type(value): value for group in built for value in group["params"]}
        for home in map(self.columns.home, one_of_each_type.values()):
            if home.capability(Grouping).has_labels:
                built.label_table = GroupLabels(self.tree, home, members)
                break
        return built

    @staticmethod
    def _members(
        members: list[tuple[dict[str, Any], list[int]]], by_value: dict[object, list[int]], option_set: OptionSet
    ) -> list[int]:
        """The leaves of the group with these options. The group is added if there is none yet."""
        new = option_set.options
        try:
            value: object = frozenset(new.items())
            if value in by_value:
                return by_value[value]
        except TypeError:  # an option that cannot be hashed, such as a list
            value = id(new)
        for options, leaves in members:
            if value == id(new) and options.keys() == new.keys():
                if all(same_plain(option, new[name]) for name, option in options.items()):
                    return leaves
        members.append((new, []))
        by_value[value] = members[-1][1]
        return members[-1][1]

    def _rule_accounts(self) -> list[RuleAccount]:
        ties = self.columns.ties
        accounts = []
        for rule, matched, note in zip(self.rules, self.cascade.matched, self.cascade.notes, strict=True):
            leaves = {ties.get(row, row) for row in matched}
            trained = [self.trained[leaf] for leaf in leaves if leaf in self.trained]
            frozen = len(leaves) - len(trained)
            accounts.append(RuleAccount(repr(rule), rule.options, len(trained), sum(trained), frozen, note))
        return accounts


def _is_trained(facts: Facts) -> bool | None:
    """Whether a leaf is trained; None if it does not belong in an optimizer. If its home does not know, as for a file,
    floating-point leaves count as trained."""
    spec = facts.spec
    if facts.kind != "parameter":
        return None
    if spec.trainable is None:
        return True if is_inexact(spec.dtype) else None
    return spec.trainable


def _is_decayed(options: dict[str, Any]) -> bool | None:
    decay = options.get("weight_decay")
    try:
        return None if decay is None else bool(decay)
    except (RuntimeError, ValueError, TypeError):
        return True  # an array of several numbers
