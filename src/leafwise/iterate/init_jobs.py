"""The jobs of `lw.initialize`: which leaf gets which values, and by which rule."""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from leafwise.core.capabilities.filling import Draw, Filling
from leafwise.core.columns import Columns
from leafwise.core.home import Axes, Spec
from leafwise.core.leaf import Leaf
from leafwise.core.parts import first_rows
from leafwise.core.path import listed
from leafwise.core.tree import Tree
from leafwise.errors import Error, RuleError
from leafwise.iterate.cascade import Cascade, tied_names
from leafwise.iterate.initializers import (
    INITIALIZERS,
    Distribution,
    InitializerError,
    LeafContext,
    Orthogonal,
    Padded,
    check_fits,
    check_options,
    checked_array,
    initial_values_of,
)
from leafwise.iterate.layer_defaults import LayerDefaults
from leafwise.iterate.leaf_seeds import LeafSeed, leaf_seeds
from leafwise.iterate.rules import Rule, checked_rules, matches_nothing


class InitJob(NamedTuple):
    """A leaf, and the initializer options that a rule gives to its name at `row`. `seed` names its random numbers."""

    leaf: int
    row: int
    seed: LeafSeed
    options: dict[str, Any]
    rule: str
    path: str


class LeafToFill(NamedTuple):
    """The job of a leaf, the array to fill, its spec, and the role and axes of the leaf. If `is_new`, the array
    replaces the current one."""

    job: InitJob
    value: Any
    spec: Spec
    role: tuple[str | None, Axes]
    is_new: bool = False


def leaves_to_fill(columns: Columns, jobs: list[InitJob]) -> list[LeafToFill]:
    """The leaves of some jobs, with their current arrays. Homes are asked once for all of them, because a model may
    have thousands."""
    rows = [job.leaf for job in jobs]
    values = columns.current_arrays(rows)
    specs = columns.ask(rows, values, "getting its shape and dtype", lambda home, arrays: home.specs(arrays))
    return list(map(LeafToFill, jobs, values, specs, columns.row_roles(rows)))


class _ParameterRule(Rule):
    """Limits a rule of the caller to parameters. It applies to buffers only if it matches nothing else, since `**` is
    hardly meant for lookup tables and running statistics."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule.where, wins=rule.wins, **rule.options)
        self._rule = rule

    def places(self, tree: Tree, rows: Collection[int]) -> Iterable[tuple[int, Hashable]]:
        places = list(self._rule.places(tree, rows))
        columns = tree.columns
        of_parameters = [
            (row, place) for row, place in places if columns.leaf_kind(columns.ties.get(row, row)) == "parameter"
        ]
        return of_parameters or places

    def at(self, place: Hashable, before: dict[str, Any]) -> dict[str, Any]:
        return self._rule.at(place, before)

    def __repr__(self) -> str:
        return repr(self._rule)


def plan_jobs(t: Tree, rules: list[Rule]) -> list[InitJob]:
    """A job for each leaf that gets initial values; raises if a rule is wrong, or if no rule covers a parameter."""
    columns = t.columns
    for rule in rules:
        if "init" in rule.options:
            _explained(repr(rule), partial(check_options, rule.options))
    names, cascade = _cascade(t, [LayerDefaults()], rules)
    chosen: list[tuple[int, int, dict[str, Any], str]] = []
    uncovered = []
    for leaf, rows in names.items():
        option_set = cascade.options_of(rows)
        options = option_set.options
        if "init" in options:
            row, rule_text = cascade.deciding_row(rows, option_set), cascade.rule_of(option_set, "init")
            if options["init"] is not None:
                chosen.append((leaf, row, options, rule_text))
            elif columns.facts([leaf])[0].spec.device == "meta":
                name = columns.row_text(rows[0])
                raise RuleError(
                    f"{name} by {rule_text}: init=None keeps the present values, and on meta there are none"
                )
        elif options:
            rule_text = cascade.rule_of(option_set, next(iter(options)))
            name = columns.row_text(rows[0])
            raise RuleError(f"{name}: {rule_text} has no init=, and neither has any rule before it")
        elif columns.leaf_kind(leaf) == "parameter":
            uncovered.append(rows[0])
    if uncovered:
        raise _uncovered(columns, uncovered, t.root)
    _check_memory(columns, {leaf for leaf, *_ in chosen})
    leaves = [leaf for leaf, *_ in chosen]
    return [
        InitJob(leaf, row, seed, options, rule_text, path if row == leaf else columns.row_text(row))
        for (leaf, row, options, rule_text), path, seed in zip(
            chosen, columns.row_texts(leaves), leaf_seeds(columns, leaves), strict=True
        )
    ]


def declared_distributions(t: Tree, rules: Any) -> Iterator[tuple[int, str, Distribution]]:
    """The distributions that rules declare, as triples of leaf, rule and distribution. `rules=True` means the defaults
    of the layers. Callables are left out, since their values are not known before they are called."""
    before, own_rules = ([LayerDefaults()], []) if rules is True else ([], checked_rules(rules))
    columns = t.columns
    names, cascade = _cascade(t, before, own_rules)
    for leaf, rows in names.items():
        option_set = cascade.options_of(rows)
        init = option_set.options.get("init")
        if init is None or callable(init):
            continue
        spec = columns.facts([leaf])[0].spec
        if spec.shape is not None:
            row, rule = cascade.deciding_row(rows, option_set), cascade.rule_of(option_set, "init")
            job = InitJob(leaf, row, LeafSeed(""), option_set.options, rule, columns.row_text(row))
            yield leaf, rule, values_for(columns, job, spec)


def _cascade(t: Tree, before: Sequence[Rule], rules: list[Rule]) -> tuple[dict[int, list[int]], Cascade]:
    """The rows of each leaf that may get initial values, and their options; raises if a rule matches nothing."""
    columns = t.columns
    leaves = [columns.ties.get(row, row) for row in first_rows(t)]
    tied = tied_names(t)
    names = {leaf: tied.get(leaf, [leaf]) for leaf in leaves if columns.leaf_kind(leaf) != "state"}
    all_rows = [row for rows in names.values() for row in rows]
    cascade = Cascade(t, [*before, *map(_ParameterRule, rules)], all_rows, {}, "init")
    for rule, matched in zip(rules, cascade.matched[len(before) :], strict=True):
        if not matched:
            raise matches_nothing(t, rule, "parameter or buffer")
    return names, cascade


def _uncovered(columns: Columns, rows: list[int], below: int) -> RuleError:
    names = [columns.name(row) for row in rows]
    first = columns.keys(rows[:1], below)[0]  # as a rule for this part spells it
    owners = [f"{name.owner}, " if name.owner else "" for name in names]
    leaves = listed(
        [f"{name.path} ({owner}{name.role or 'no role'})" for name, owner in zip(names, owners, strict=True)]
    )
    init = {"norm.scale": "ones", "norm.bias": "zeros", "bias": "zeros"}.get(names[0].role or "")
    proposal = f'init="{init}"' if init else 'init="normal", std=0.02'
    return RuleError(
        f"no rule says how to initialize {leaves}; nothing was changed; add "
        f'Rule("{first}", {proposal}), or init=None to keep its present values'
    )


def _check_memory(columns: Columns, filled: set[int]) -> None:
    """Raises if filling one of these leaves would overwrite another, because they share memory."""
    for members, _ in columns.overlaps:
        names = [columns.row_text(leaf) for leaf in members if leaf in filled]
        if len(names) > 1:
            raise RuleError(
                f"cannot initialize {' and '.join(names)}: they share memory but are not tied; nothing was changed; "
                f'tie them first: lw.tie(model, "{names[1]}", to="{names[0]}")'
            )


# -- values ------------------------------------------------------------------------------------------------------


def values_for_all(columns: Columns, leaves: list[LeafToFill]) -> dict[int, Any]:
    """The distributions of all leaves but those that a callable fills, by leaf. The initializers that have a name use
    only the options, role and shape of a leaf, and are called once for all leaves that have the same ones."""
    known: dict[Hashable, Any] = {}
    distributions = {}
    for job, _, spec, role, _ in leaves:
        if callable(job.options["init"]):
            continue
        key: Hashable = job.leaf
        if job.row == job.leaf and job.options["init"] in INITIALIZERS:
            key = id(job.options), id(spec), role  # homes return one spec for equal arrays
        if key not in known:
            known[key] = values_for(columns, job, spec)
        distributions[job.leaf] = known[key]
    return distributions


def values_for(columns: Columns, job: InitJob, spec: Spec) -> Any:
    """The initial values of a leaf: a distribution, or the array that a callable returned."""
    owner = columns.node_objects[columns.row_nodes[job.row]]
    context = LeafContext(Leaf(columns, job.leaf, job.row), owner, _SiblingLeaves(columns, job.row))
    who = f"{job.path} by {job.rule}"
    if not callable(job.options["init"]):
        distribution = _explained(who, partial(initial_values_of, context, job.options))
        _explained(who, partial(check_fits, distribution, spec))
        return distribution
    try:
        values = initial_values_of(context, job.options)
        if isinstance(values, Draw | Padded | Orthogonal):
            check_fits(values, spec)
            return values
        return checked_array(columns.home(columns.current(job.leaf)).capability(Filling).as_numpy(values), spec)
    except (Error, InitializerError) as error:
        raise RuleError(f"{who}: {_with_state(error, 'the leaves before it were initialized')}") from error
    except Exception as error:
        raise RuleError(
            f"{who}: the callable raised {type(error).__name__}: {error}; the leaves before it were initialized"
        ) from error


def _explained(who: str, ask: Callable[[], Any]) -> Any:
    """Returns the result of `ask`. An `InitializerError` becomes a `RuleError` whose message begins with `who`."""
    try:
        return ask()
    except InitializerError as error:
        raise RuleError(f"{who}: {_with_state(error, 'nothing was changed')}") from error


def _with_state(error: Exception, state: str) -> str:
    """The message of an error, with the state of the model between the reason and the advice."""
    reason, semicolon, advice = str(error).partition("; ")
    return f"{reason}; {state}{semicolon}{advice}"


class _SiblingLeaves(Mapping[str, Leaf]):
    """The other leaves of a leaf's owner, by name. They are looked up on access, since few callables need them."""

    def __init__(self, columns: Columns, row: int) -> None:
        self._columns, self._row = columns, row

    def _rows(self) -> dict[str, int]:
        columns = self._columns
        rows = columns.own_rows(columns.row_nodes[self._row])
        return {columns.row_names[row]: row for row in rows if row != self._row}

    def __getitem__(self, name: str) -> Leaf:
        return self._columns.leaf_of(self._rows()[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows())

    def __len__(self) -> int:
        return len(self._rows())
