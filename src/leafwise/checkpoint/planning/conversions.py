"""Names and layouts under which a library stores its models, applied to the source of a plan.

A model that knows how its library stores it (`Converting`) offers ways to read the source. The source is read as it is
unless one of them fills more leaves of the model. Leaves that are made from several stored arrays, or from a part of
one, become rows of their own, so that the rest of a plan and of a load treats them like any other row.
"""

from collections.abc import Mapping
from typing import NamedTuple

from leafwise.checkpoint.plain_values import record_of
from leafwise.checkpoint.planning.carrying import carried_source, may_be_carried
from leafwise.checkpoint.planning.plan import Plan, the_source
from leafwise.core.capabilities.converting import Converting, Reading
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.dtypes import number_kind
from leafwise.core.pairing.row_matching import Rename, Renaming, match_names
from leafwise.core.pairing.row_pairs import Side
from leafwise.core.path import plural
from leafwise.core.roles.recipes import Recipe, Shape, Taken, folded
from leafwise.core.tree import Tree
from leafwise.files.arrays.assembled import Assembled
from leafwise.files.arrays.live import Live
from leafwise.files.arrays.stored import Stored

Shapes = Mapping[str, Shape | None]


class ConvertedSource(NamedTuple):
    """The source with the names of the model, the rows that `rename=` left out, and the renames that match no name."""

    side: Side
    left_out: list[int]
    idle: list[str]


def converted_source(plan: Plan, target: Side, source: Side, rename: Rename) -> ConvertedSource | None:
    """The source as the library of the model stores it; None if it is read as it is."""
    plan.may_be_carried = is_carried = may_be_carried(plan, target, source)
    if (
        not is_carried
        and _is_layout_known(plan)
        and (source.names == target.names or set(source.names) == set(target.names))
    ):
        return None
    nodes = _outermost(plan)
    if not nodes and not is_carried:
        return None
    new_name = Renaming(rename)
    row_of: dict[str, int] = {}  # by name after `rename=`
    left_out = []
    for row, name in zip(source.rows, source.names, strict=True):
        new = new_name(name)
        if new is None:
            left_out.append(row)
        elif new in row_of:
            return None  # pairing raises an error about these names
        else:
            row_of[new] = row
    stored = {name: source.spec(row).shape for name, row in row_of.items()}
    wanted = {name: target.spec(row).shape for row, name in zip(target.rows, target.names, strict=True)}
    only_renamed = {node: prefix for node, prefix in nodes.items() if _converting(plan, node).only_renames}
    recipes = _recipes(plan, only_renamed, stored, wanted)
    dropped: set[str] = set()
    if is_carried and not plan.library and (carried := carried_source(plan, target, source, row_of)) is not None:
        _note(plan, carried.reading, "")
        plan.is_carried = True
        recipes, dropped = carried.reading.recipes, carried.dropped
    else:
        others = {node: prefix for node, prefix in nodes.items() if node not in only_renamed}
        recipes |= _recipes(plan, others, stored, wanted)
    if not plan.library:
        return None
    side = _with_recipes(plan, source, row_of, recipes, target, dropped)
    return ConvertedSource(side, left_out, new_name.idle())


def _recipes(plan: Plan, nodes: dict[int, str], stored: Shapes, wanted: Shapes) -> dict[str, Recipe]:
    """What the leaves of nodes, given with their prefixes, are made from as their library stores them."""
    recipes: dict[str, Recipe] = {}
    for node, prefix in nodes.items():
        reading = _chosen(plan, node, _below(prefix, stored), _below(prefix, wanted))
        if reading is not None:
            recipes |= _prefixed(reading.recipes, prefix)
            _note(plan, reading, prefix)
    return recipes


def _converting(plan: Plan, node: int) -> Converting:
    obj = plan.target.columns.node_objects[node]
    return plan.target.columns.home(obj).capability(Converting)


def _note(plan: Plan, reading: Reading, prefix: str) -> None:
    """Adds to a plan what a way to read its source says besides names."""
    plan.library = reading.library
    plan.keeps |= {prefix + name for name in reading.keeps}
    plan.keeps_what = plan.keeps_what or reading.keeps_what
    for name, reason in reading.refused.items():
        plan.add("unsupported", prefix + name, f"{prefix}{name} in {the_source(plan.source)}: {reason}")


def _outermost(plan: Plan) -> dict[int, str]:
    """The nodes of the target whose library may store them in another way, none below another, with their prefixes."""
    columns, root = plan.target.columns, plan.target.root
    nodes = columns.nodes_where(lambda home, obj: home.capability(Converting).may_convert(type(obj)), root)
    prefixes = columns.key_prefixes(root) if nodes else {}
    outermost: dict[int, str] = {}
    end = 0
    for node in nodes:
        if node < end:
            continue
        end = columns.node_ends[node]
        obj = columns.node_objects[node]
        if columns.home(obj).capability(Converting).converts(obj):
            outermost[node] = prefixes[node]
    return outermost


def _prefixed(recipes: dict[str, Recipe], prefix: str) -> dict[str, Recipe]:
    if not prefix:
        return recipes
    return {prefix + name: recipe.renamed(lambda used: prefix + used) for name, recipe in recipes.items()}


def _below(prefix: str, shapes: Shapes) -> Shapes:
    if not prefix:
        return shapes
    return {name[len(prefix) :]: shape for name, shape in shapes.items() if name.startswith(prefix)}


def _chosen(plan: Plan, node: int, stored: Shapes, wanted: Shapes) -> Reading | None:
    """The way to read a source that fills the most leaves; None if that is by equal names."""
    if not stored or not wanted:
        return None
    plain = _score(wanted, stored)
    is_complete = plain[0] == len(wanted) == len(stored)
    if is_complete and _is_layout_known(plan):
        return None
    readings = _converting(plan, node).readings(plan.target.columns.node_objects[node], stored, wanted)
    scores = [_score(wanted, _shapes_by(reading, stored)) for reading in readings]
    if is_complete:
        for reading, score in zip(readings, scores, strict=True):
            if score[0] == len(wanted):
                _refuse_ambiguous(plan, reading, _paired(wanted, stored))
        return None
    best = max(scores, default=plain)
    if best <= plain:
        for reading in readings:
            plan.notes += [f"{name} is not converted: {reason}" for name, reason in list(reading.refused.items())[:3]]
        return None
    return readings[scores.index(best)]


def _paired(wanted: Shapes, given: Shapes) -> dict[str, str]:
    """The leaves that get values from arrays with these names, and the names."""
    names, given_names = list(wanted), list(given)
    return {names[target]: given_names[source] for target, source in match_names(names, given_names).sources.items()}


def _score(wanted: Shapes, given: Shapes) -> tuple[int, int]:
    """How many leaves get values of the right shape from arrays with these names, then how many of any shape."""
    pairs = _paired(wanted, given)
    shapes = [(wanted[name], given[source]) for name, source in pairs.items()]
    return sum(shape is None or other is None or shape == other for shape, other in shapes), len(pairs)


def _shapes_by(reading: Reading, stored: Shapes) -> Shapes:
    """The arrays that there are if a source is read in this way: the names that it changes, and the others."""
    used = {name for recipe in reading.recipes.values() for name in recipe.names()}
    left = {name: shape for name, shape in stored.items() if name not in used and name not in reading.recipes}
    return {**{name: recipe.shape for name, recipe in reading.recipes.items()}, **left}


def _is_layout_known(plan: Plan) -> bool:
    """Whether equal names certainly mean the layout of the model: the source is a model, or leafwise saved it."""
    columns = plan.source.columns
    if plan.source.is_file:
        return record_of(columns) is not None
    containers = columns.nodes_where(lambda home, obj: home.capability(Rebuilding).is_container(obj))
    return len(containers) < len(columns.node_objects)


def _refuse_ambiguous(plan: Plan, reading: Reading, plain: dict[str, str]) -> None:
    """Refuses leaves that may be stored as they are or converted, if names and shapes do not show which. `plain` has
    the stored names by equal names."""
    for name, recipe in reading.recipes.items():
        if name in plain and recipe != Taken(plain[name], recipe.shape):
            made = f"{folded(recipe.names())} {', '.join(recipe.words())}".rstrip()
            plan.add(
                "unsupported",
                name,
                f"{name} may be stored as it is in the model, or as {reading.library} stores it ({made}): names and "
                "shapes are the same; save the model with lw.save, which records its layout, and load that file",
            )


def _with_recipes(
    plan: Plan,
    source: Side,
    row_of: dict[str, int],
    recipes: dict[str, Recipe],
    target: Side,
    dropped: set[str],
) -> Side:
    """The rows of the source by their names in the model; arrays that are made from stored ones are added. Weights of
    another framework are never matched by name alone, and other names of those that are used are left out."""
    names = {row_of[recipe.name]: name for name, recipe in recipes.items() if isinstance(recipe, Taken)}
    made = {name: recipe for name, recipe in recipes.items() if not isinstance(recipe, Taken)}
    consumed = {row_of[used] for recipe in made.values() for used in recipe.names()}
    arrays: dict[str, Assembled] = {}
    for name, recipe in made.items():
        rows = [row_of[used] for used in recipe.names()]
        reason = _cannot_assemble(plan, source, rows)
        if reason:
            parts = folded([source.name_of[row] for row in rows])
            plan.add("unsupported", name, f"{name} is made from {parts} in {the_source(plan.source)}, and {reason}")
            continue
        own = recipe.renamed(lambda used: source.name_of[row_of[used]])
        # A sum that is cast is rounded only once.
        is_wide = plan.is_cast and "summed" in recipe.words() and number_kind(source.spec(rows[0]).dtype) == "float"
        inputs = {source.name_of[row]: _readable(source, row) for row in rows}
        arrays[name] = Assembled(own, inputs, "float64" if is_wide else "")
    taken = set(recipes) | (set(target.names) if plan.is_carried else set())
    used = {source.leaf(row) for row in (*consumed, *names)} if plan.is_carried else set()
    for name, row in row_of.items():
        if row not in consumed and row not in names and name not in dropped and source.leaf(row) not in used:
            # A stored name that is not used must not take the place of a name of the model.
            names[row] = name if name not in taken else f"{name} (stored)"
    before = plan.source.columns
    added = [(folded(array.recipe.names()), array) for array in arrays.values()]
    whole = plan.source
    plan.source = Tree(before.extended(whole.root, added), whole.root, whole.rows)
    plan.source.is_whole = whole.is_whole
    rows_added = range(len(before.row_nodes), len(before.row_nodes) + len(added))
    plan.recipes = {row: array.recipe for row, array in zip(rows_added, arrays.values(), strict=True)}
    plan.notes.append(_summary(plan, source, names, len(consumed)))
    return Side(plan.source, [*names, *rows_added], [*names.values(), *arrays])


def _cannot_assemble(plan: Plan, source: Side, rows: list[int]) -> str:
    for leaf in map(source.leaf, rows):
        if leaf in plan.foreign_sources:
            return plan.foreign_sources[leaf]
    dtypes = list(dict.fromkeys(source.spec(row).dtype for row in rows))
    return f"these have different dtypes: {', '.join(dtypes[:3])}" if len(dtypes) > 1 else ""


def _readable(source: Side, row: int) -> Stored:
    value = source.columns.current(row)
    if isinstance(value, Stored):
        return value
    return Live(source.columns.home(value), value, source.spec(row))


def _summary(plan: Plan, source: Side, names: dict[int, str], consumed: int) -> str:
    renamed = sum(source.name_of[row] != name for row, name in names.items())
    counts = [f"{renamed:,} renamed"] if renamed else []
    if plan.recipes:
        made = plural(len(plan.recipes), "leaf is", "leaves are")
        counts.append(f"{made} made from {consumed:,} stored")
    changes = f": {', '.join(counts)}" if counts else ""
    return f"read as {plan.library} stores it{changes}"
