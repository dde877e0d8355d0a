"""Names without a partner, put together where they differ only in their numbers."""

import re
from collections.abc import Hashable, Sequence
from typing import NamedTuple

Numbers = tuple[str, ...]
# Where names have numbers: anywhere, as steps, or nowhere.
DIGITS, STEPS, NOWHERE = re.compile(r"\d+"), re.compile(r"(?<![^.])\d+(?![^.])"), re.compile(r"(?!)")


class Unmatched(NamedTuple):
    """A name without a partner on the other side, and what its partner must have, too: a shape and a kind of number.

    Names of one leaf have one `leaf`. `front` is what a prefix that all names have, or lack, is taken for: what it is
    now, and what it would be on the other side.
    """

    name: str
    form: Hashable
    leaf: int | None = None
    front: tuple[str, str] = ("", "")

    @property
    def meant(self) -> str:
        return self.front[1] + self.name.removeprefix(self.front[0])


class Family:
    """Names that differ only in their numbers."""

    def __init__(self, template: str, number: re.Pattern[str]) -> None:
        self.template, self.number = template, number
        self.members: dict[Numbers, Unmatched] = {}
        self.also: list[Family] = []  # the same leaves under other names
        self.owner, _, self.last = template.rpartition(".")

    def key(self) -> Hashable:
        """What two families have in common if one can be the other."""
        forms = tuple(sorted((numbers, repr(member.form)) for numbers, member in self.members.items()))
        return forms, sort_of(self.last)

    def templates(self) -> list[str]:
        return [self.template, *(family.template for family in self.also)]

    def first(self) -> str:
        return next(iter(self.members.values())).name


def families_of(named: Sequence[Unmatched], number: re.Pattern[str], together: bool) -> list[Family]:
    """The names by what they are without numbers. Names of the same leaves may be put together: whichever of them gets
    a value, all do."""
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
    """Digits in a word number something only where they count: the 4 of dense_4h is part of its name."""
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
    """A weight is never a bias: names with a well-known end are compared with their like only.

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
    """A family of the source, the family of the target that it is, and why."""

    source: Family
    target: Family
    reason: str


def common_end(old: Sequence[str], new: Sequence[str]) -> int:
    end = 0
    while end < min(len(old), len(new)) and old[-1 - end] == new[-1 - end]:
        end += 1
    return end
