"""Names that have something in common, as few patterns: `classifier.*`, `layers.{0..11}.attn.q.weight`.

A pattern stands for exactly the names of its group. `classifier.*` is used only if every name below `classifier` is in
the group; numbers are a range or a list.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from leafwise.core.pairing.families import common_end

FEWEST = 3  # fewer names are listed one by one
ALL = "*"  # the pattern of everything
_NUMBER = "\0"  # stands for a number in a template
_MOST_FIRST = 8  # first entries that have a pattern of their own
_MOST_RUNS = 6  # runs of numbers that are listed


class NameGroup(NamedTuple):
    """A pattern, and the names it stands for; a name alone is its own pattern."""

    pattern: str
    names: list[str]


def grouped(names: Sequence[str], among: Collection[str], *, whole: bool = True) -> list[NameGroup]:
    """Names in groups, in the order of their first names. `among` are the names that a pattern may not include unless
    they are given. If they are all given, they are one group; or, if not `whole`, one for each first entry.

    >>> names = ["head.weight", "head.bias", "head.scale", "layers.0.q", "layers.1.q", "layers.2.q", "norm"]
    >>> [group.pattern for group in grouped(names, [*names, "layers.0.k", "layers.1.k", "layers.2.k"])]
    ['head.*', 'layers.{0..2}.q', 'norm']
    """
    units: dict[str, list[str]] = {}
    whole = whole or len({name.partition(".")[0] for name in among}) > _MOST_FIRST
    covering = _Covering(names, among, whole)
    for name in names:
        units.setdefault(covering.pattern(name), []).append(name)
    groups: list[NameGroup] = []
    for pattern, members in _by_number(units):
        inside = [name for unit in members for name in units[unit]]
        is_group = len(inside) >= FEWEST and (len(members) > 1 or pattern not in inside)
        groups += [NameGroup(pattern, inside)] if is_group else [NameGroup(name, [name]) for name in inside]
    place = {name: number for number, name in enumerate(names)}
    return sorted(groups, key=lambda group: place[group.names[0]])


class _Covering:
    """Finds the shortest prefix of a name below which every name is in a group."""

    def __init__(self, names: Sequence[str], among: Collection[str], whole: bool) -> None:
        self._whole = whole
        self._inside = Counter(prefix for name in names for prefix in _prefixes(name))
        self._all = Counter(prefix for name in among for prefix in _prefixes(name))
        self._known = set(among)

    def pattern(self, name: str) -> str:
        if name not in self._known:
            return name
        for prefix in _prefixes(name):
            covers = self._inside[prefix] >= FEWEST - 1 and self._inside[prefix] == self._all[prefix]
            if covers and (prefix or self._whole):
                return prefix + ALL
        return name


def _prefixes(name: str) -> Iterator[str]:
    """
    >>> list(_prefixes("a.b.c"))
    ['', 'a.', 'a.b.']
    """
    yield ""
    dot = name.find(".")
    while dot >= 0:
        yield name[: dot + 1]
        dot = name.find(".", dot + 1)


def _by_number(units: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Patterns that differ only in numbers as one; each with the patterns it stands for."""
    # By the count of numbers, too: a name may contain the character that stands for one.
    templates: dict[tuple[str, int], dict[tuple[int, ...], str]] = {}
    for unit in units:
        template, numbers = template_of(unit)
        templates.setdefault((template, len(numbers)), {})[numbers] = unit
    merged: list[tuple[str, list[str]]] = []
    for (template, _), members in templates.items():
        for box in _boxes(list(members)):
            pattern = filled(template, box)
            places: Iterable[tuple[int, ...]] = product(*box)
            merged.append((pattern, [members[place] for place in places]))
    return merged


def template_of(name: str) -> tuple[str, tuple[int, ...]]:
    """A name with its numbers replaced, and the numbers. `007` is not a number: it must be written as it is."""
    entries = [] if _NUMBER in name else name.split(".")
    numbers = []
    for place, entry in enumerate(entries):
        if entry.isascii() and entry.isdecimal() and len(entry) < 10 and (entry[0] != "0" or entry == "0"):
            numbers.append(int(entry))
            entries[place] = _NUMBER
    return ".".join(entries) if numbers else name, tuple(numbers)


def filled(template: str, numbers: Sequence[Sequence[int]]) -> str:
    """A template with sets of numbers."""
    if not numbers:
        return template
    parts = template.split(_NUMBER)
    between = [_numbers_text(values) for values in numbers]
    return "".join(part for pair in zip(parts, [*between, ""], strict=True) for part in pair)


def _boxes(places: list[tuple[int, ...]]) -> list[tuple[list[int], ...]]:
    """Tuples of numbers as products of sets: all of them as one, or else those with the same first number."""
    sides = tuple(sorted(set(side)) for side in zip(*places, strict=True))
    if prod(map(len, sides)) == len(places):
        return [sides]
    boxes = []
    for first in sides[0]:
        rest = [place[1:] for place in places if place[0] == first]
        boxes += [([first], *box) for box in _boxes(rest)]
    return boxes


def _numbers_text(numbers: Sequence[int]) -> str:
    """
    >>> _numbers_text([3]), _numbers_text([0, 1, 2, 3]), _numbers_text([0, 1, 2, 7, 9])
    ('3', '{0..3}', '{0..2,7,9}')
    """
    if len(numbers) == 1:
        return str(numbers[0])
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}..{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    if len(texts) > _MOST_RUNS:
        texts = [*texts[: _MOST_RUNS - 2], "…", texts[-1]]
    return "{" + ",".join(texts) + "}"


class RenameGroup(NamedTuple):
    """Pairs of an old and a new name that change in the same way, and the two patterns."""

    old: str
    new: str
    pairs: list[tuple[str, str]]


def grouped_renames(pairs: Sequence[tuple[str, str]]) -> list[RenameGroup]:
    """Renames in groups: those with the same change of the first entries, and those that differ only in numbers.

    >>> pairs = [(f"bert.layer.{n}.weight", f"backbone.layer.{n}.weight") for n in range(3)] + [("a", "b")]
    >>> [group[:2] for group in grouped_renames(pairs)]
    [('bert.*', 'backbone.*'), ('a', 'b')]
    """
    changes: Changes = {}
    for old, new in pairs:
        changes.setdefault(_changed(old, new), []).append((old, new))
    groups: list[RenameGroup] = []
    for members in _by_template(changes):
        inside = [pair for change in members for pair in changes[change]]
        if len(inside) < FEWEST:
            groups += [RenameGroup(old, new, [(old, new)]) for old, new in inside]
        else:
            groups += _merged_changes(members, changes)
    place = {pair: number for number, pair in enumerate(pairs)}
    return sorted(groups, key=lambda group: place[group.pairs[0]])


Changes = dict[tuple[str, str], list[tuple[str, str]]]  # an old and a new pattern, and the pairs of names


def merged_by_number(changes: Changes) -> list[RenameGroup]:
    """Changes of names, with those that differ only in numbers as one.

    >>> changes = {(f"layer.{n}.**", f"blocks.{n}.**"): [(f"layer.{n}.w", f"blocks.{n}.w")] for n in range(3)}
    >>> [group[:2] for group in merged_by_number(changes)]
    [('layer.{0..2}.**', 'blocks.{0..2}.**')]
    """
    return [group for members in _by_template(changes) for group in _merged_changes(members, changes)]


def _by_template(changes: Changes) -> Iterable[list[tuple[str, str]]]:
    """The changes that differ only in their numbers, which must be the same in the old and in the new pattern."""
    templates: dict[object, list[tuple[str, str]]] = {}
    for change in changes:
        old_template, numbers = template_of(change[0])
        new_template, new_numbers = template_of(change[1])
        key: object = (old_template, new_template) if numbers and numbers == new_numbers else change
        templates.setdefault(key, []).append(change)
    return templates.values()


def _changed(old: str, new: str) -> tuple[str, str]:
    """What differs at the beginning of two names, followed by `*` for what they share at the end."""
    old_entries, new_entries = old.split("."), new.split(".")
    shared = common_end(old_entries, new_entries)
    if not shared:
        return old, new
    sides = (entries[: len(entries) - shared] for entries in (old_entries, new_entries))
    first, second = (".".join([*side, ALL]) for side in sides)
    return first, second


def _merged_changes(members: list[tuple[str, str]], changes: Changes) -> list[RenameGroup]:
    by_numbers = {template_of(change[0])[1]: change for change in members}
    if len(members) == 1 or len(by_numbers) < len(members):  # no numbers, or the same ones
        return [RenameGroup(*change, changes[change]) for change in members]
    old_template, new_template = (template_of(side)[0] for side in members[0])
    groups = []
    for box in _boxes(list(by_numbers)):
        places: Iterable[tuple[int, ...]] = product(*box)
        inside = [pair for place in places for pair in changes[by_numbers[place]]]
        groups.append(RenameGroup(filled(old_template, box), filled(new_template, box), inside))
    return groups
