"""Renames by one change to all names: entries that are replaced by others, added or removed."""

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from leafwise.core.pairing.families import Family, Pair, common_end
from leafwise.core.pairing.name_words import contradicts

_MAX_CHANGES = 20_000  # pairs of names in a group whose difference is tried out on all names
Entries = tuple[str, ...]


class _StepChange(NamedTuple):
    """Consecutive entries of names, and the entries that replace them."""

    old: Entries
    new: Entries

    def describe(self) -> str:
        old, new = ".".join(self.old), ".".join(self.new)
        if not self.old:
            return f'only "{new}" is added'
        return f'only "{old}" is removed' if not self.new else f'only "{old}" becomes "{new}"'


def by_one_change(targets: list[Family], sources: list[Family], keys: dict[int, Hashable]) -> list[Pair]:
    """Pairs that one change makes equal, if it works for every name with the changed entries, and no other one does."""
    ours, theirs = _FamiliesByEntries(targets, keys), _FamiliesByEntries(sources, keys)
    valid = []
    for change in _candidates(ours, theirs):
        pairs = _applied(change, ours, theirs)
        if pairs and not _has_rivals(pairs, ours, theirs):
            valid.append((change, pairs))
    valid.sort(key=lambda change_and_pairs: -len(change_and_pairs[1]))
    partners: dict[int, set[int]] = {}
    kept: list[tuple[_StepChange, dict[int, tuple[Family, Family]]]] = []
    covered: list[tuple[set[int], set[int]]] = []
    for change, pairs in valid:
        both_sides = set(pairs), {id(target) for _, target in pairs.values()}
        # A change of more entries for fewer names does not compete with a change that explains all of them.
        if any(both_sides[0] < wide[0] and both_sides[1] < wide[1] for wide in covered):
            continue
        covered.append(both_sides)
        kept.append((change, pairs))
        for source, target in pairs.values():
            partners.setdefault(id(source), set()).add(id(target))
            partners.setdefault(id(target), set()).add(id(source))
    certain: dict[int, Pair] = {}
    for change, pairs in kept:
        if all(len(partners[id(family)]) == 1 for pair in pairs.values() for family in pair):
            for number, (source, target) in pairs.items():
                certain.setdefault(number, Pair(source, target, change.describe()))
    return list(certain.values())


class _FamiliesByEntries:
    """Families by their names, and by the entries in their names."""

    def __init__(self, families: list[Family], keys: dict[int, Hashable]) -> None:
        self.groups: dict[Hashable, list[tuple[Entries, Family]]] = {}
        self.by_entries: dict[Entries, tuple[Family, Hashable]] = {}
        self._with_entry: dict[str, list[tuple[Entries, Family]]] = {}
        for family in families:
            for name in family.templates():
                steps = tuple(name.split("."))
                key = keys[id(family)]
                self.groups.setdefault(key, []).append((steps, family))
                self.by_entries[steps] = family, key
                for step in set(steps):
                    self._with_entry.setdefault(step, []).append((steps, family))

    def having(self, part: Entries) -> Iterator[tuple[Entries, int, Family]]:
        """The names that contain these consecutive entries, and where."""
        for steps, family in self._with_entry.get(part[0], ()):
            for at in range(len(steps) - len(part) + 1):
                if steps[at : at + len(part)] == part:
                    yield steps, at, family


def _candidates(ours: _FamiliesByEntries, theirs: _FamiliesByEntries) -> list[_StepChange]:
    """Differences between names that could be partners, if the difference may be one change. Added or removed entries
    are one change: everywhere, or only below an entry that several layers have. Replaced entries are one change if
    several layers below them confirm it: two independent changes next to each other are not one change."""
    behind: dict[_StepChange, set[Entries]] = {}
    below: dict[_StepChange, set[Entries]] = {}
    for key, sources in theirs.groups.items():
        targets = ours.groups.get(key, [])
        if len(targets) * len(sources) > _MAX_CHANGES:
            continue
        for old, _ in sources:
            for new, _ in targets:
                change, layer = _difference(old, new)
                behind.setdefault(change, set()).add(layer)
                at = len(old) - len(layer) - 1 - len(change.old)
                if at and not (change.old and change.new):
                    step = old[at - 1 : at]
                    below.setdefault(_StepChange(step + change.old, step + change.new), set()).add(old[:at])
    return [change for change, layers in behind.items() if _is_one_change(change, layers)] + [
        change for change, layers in below.items() if len(layers) > 1
    ]


def _is_one_change(change: _StepChange, layers: set[Entries]) -> bool:
    if not change.old or not change.new:
        return len(change.old + change.new) == 1 or len(layers) > 1
    if len(layers - {()}) < 2 or set(change.old) & set(change.new) or any(map(str.isdigit, change.old + change.new)):
        return False
    return not contradicts(".".join(change.old), ".".join(change.new))


def _difference(old: Entries, new: Entries) -> tuple[_StepChange, Entries]:
    """The entries in which two names differ, and the layer below them that both have.

    >>> _difference(("a", "b", "c", "weight"), ("a", "x", "y", "c", "weight"))
    (_StepChange(old=('b',), new=('x', 'y')), ('c',))
    """
    start, least = 0, min(len(old), len(new))
    while start < least and old[start] == new[start]:
        start += 1
    stop = common_end(old[start:], new[start:])
    return _StepChange(old[start : len(old) - stop], new[start : len(new) - stop]), old[len(old) - stop : -1]


def _applied(
    change: _StepChange, ours: _FamiliesByEntries, theirs: _FamiliesByEntries
) -> dict[int, tuple[Family, Family]]:
    """The pairs that a change makes, by source; none if it does not work for every name with the changed entries."""
    pairs: dict[int, tuple[Family, Family]] = {}
    partner: dict[int, int] = {}
    directions = ((change.old, change.new, theirs, ours), (change.new, change.old, ours, theirs))
    for part, replacement, index, partner_index in directions:
        if not part:
            continue
        concerned: dict[int, bool] = {}
        for steps, at, family in index.having(part):
            concerned.setdefault(id(family), False)
            changed = steps[:at] + replacement + steps[at + len(part) :]
            match, key = partner_index.by_entries.get(changed, (None, None))
            if match is None or key != index.by_entries[steps][1]:
                continue
            concerned[id(family)] = True
            source, target = (family, match) if index is theirs else (match, family)
            if partner.setdefault(id(source), id(target)) != id(target):
                return {}
            if partner.setdefault(id(target), id(source)) != id(source):
                return {}
            pairs[id(source)] = source, target
        if not all(concerned.values()):
            return {}
    return pairs


def _has_rivals(pairs: dict[int, tuple[Family, Family]], ours: _FamiliesByEntries, theirs: _FamiliesByEntries) -> bool:
    """Whether a name that a change does not affect is an equally good partner for one of its pairs: it has all the
    entries of a name from which entries were removed, or ends with as many equal entries as a name in which entries
    were replaced."""
    covered = {id(family) for pair in pairs.values() for family in pair}
    for source, target in pairs.values():
        old, new = tuple(source.template.split(".")), tuple(target.template.split("."))
        for name, partner, index in ((old, new, ours), (new, old, theirs)):
            for steps, family in index.groups[index.by_entries[partner][1]]:
                if id(family) in covered:
                    continue
                if _is_within(name, partner) or _is_within(partner, name):
                    if _is_within(name, steps) or _is_within(steps, name):
                        return True
                elif common_end(name, steps) >= common_end(name, partner):
                    return True
    return False


def _is_within(short: Entries, long: Entries) -> bool:
    """Whether the longer name is the shorter one with entries added."""
    steps = iter(long)
    return all(step in steps for step in short)
