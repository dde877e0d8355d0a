"""Names without a partner, in groups that differ only in their numbers."""

import re
from collections.abc import Hashable, Sequence
from typing import NamedTuple

Numbers = tuple[str, ...]
# Where names have numbers: anywhere, only as whole entries, or nowhere.
DIGITS, STEPS, NOWHERE = re.compile(r"\d+"), re.compile(r"(?<![^.])\d+(?![^.])"), re.compile(r"(?!)")


class Unmatched(NamedTuple):
    """A name without a partner on the other side, with the shape and the kind of number that its partner must have.

    Names of one leaf have the same `leaf`. `prefixes` are a prefix that all names on this side have, and the prefix
    that replaces it on the other side; either may be empty.
    """

    name: str
    form: Hashable
    leaf: int | None = None
    prefixes: tuple[str, str] = ("", "")

    @property
    def meant(self) -> str:
        return self.prefixes[1] + self.name.removeprefix(self.prefixes[0])


class Family:
    """Names that differ only in their numbers."""

    def __init__(self, template: str, number: re.Pattern[str]) -> None:
        self.template, self.number = template, number
        self.members: dict[Numbers, Unmatched] = {}
        self.also: list[Family] = []  # the same leaves under other names
        self.owner, _, self.last = template.rpartition(".")

    def key(self) -> Hashable:
        """What two families must have in common to be partners."""
        forms = tuple(sorted((numbers, repr(member.form)) for numbers, member in self.members.items()))
        return forms, sort_of(self.last)

    def templates(self) -> list[str]:
        return [self.template, *(family.template for family in self.also)]

    def first(self) -> str:
        return next(iter(self.members.values())).name


def families_of(named: Sequence[Unmatched], number: re.Pattern[str], together: bool) -> list[Family]:
    """The names, grouped by what remains without their numbers. With `together`, names of the same leaves become one
    family: if one of them gets a value, all do."""
    families: dict[str, Family] = {}
    for member in named:
        family = families.setdefault(template := number.sub("#", member.meant), Family(template, number))
        family.members[tuple(number.findall(member.meant))] = member
    if number is DIGITS:
        families = _without_fixed_digits(families)
    distinct: dict[Hashable, Family] = {}
    for family in families.values():
        members = family.members.items()
        leaves = tuple(sorted((numbers, member.leaf) for numbers, member in members if member.leaf is not None))
        is_known = together and len(leaves) == len(members)
        first = distinct.setdefault(leaves if is_known else family.template, family)
        if first is not family:
            first.also.append(family)
    return list(distinct.values())


def _without_fixed_digits(families: dict[str, Family]) -> dict[str, Family]:
    """Digits in a word are numbers only if they vary: the 4 of dense_4h is part of the name."""
    counting: dict[str, Family] = {}
    for family in families.values():
        name = next(iter(family.members.values())).meant
        steps = {match.start() for match in STEPS.finditer(name)}
        places = [place for place, match in enumerate(DIGITS.finditer(name)) if match.start() not in steps]
        if all(len({numbers[place] for numbers in family.members}) > 1 for place in places):
            counting[family.template] = family
        else:
            members = list(family.members.values())
            counting |= {parted.template: parted for parted in families_of(members, STEPS, together=False)}
    return counting


def sort_of(last: str) -> str:
    """The sort of a leaf, by a well-known ending of its name. Only leaves of one sort can be partners: a weight never
    becomes a bias.

    >>> sort_of("weight"), sort_of("in_proj_bias"), sort_of("moving_mean")
    ('', 'bias', 'running_mean')
    """
    if last in ("running_mean", "running_var", "num_batches_tracked"):
        return last
    if last.endswith("_bias"):
        return "bias"
    return {"bias": "bias", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}.get(
        last, ""
    )


class Pair(NamedTuple):
    """A family of the source, its partner in the target, and the reason."""

    source: Family
    target: Family
    reason: str


def common_end(old: Sequence[str], new: Sequence[str]) -> int:
    end = 0
    while end < min(len(old), len(new)) and old[-1 - end] == new[-1 - end]:
        end += 1
    return end
