"""Renames that would make two trees fit: which of them are certain, and which are guesses.

Names, shapes and kinds of number are all there is to go by; nothing here looks at values. A rename is certain if no
other is as plausible. Four things make it so:

- *One change throughout.* The same steps of the names are replaced (or put in, or left out) in every name that has
  them, and the rest of each name stays.
- *Words.* Among leaves that could swap, each shares more words with its own partner than with any other, on both
  sides, and none is left over. Words that are merely alike do not count, and neither do numbers that start at 0 on one
  side and at 1 on the other.
- *Shape.* Everything that is left finds a partner, and only these two have this shape.
- *The same layer.* The weight of a layer is certain, so its bias is, too.

Everything else is a guess. Guesses are listed, with what else they could be, and never applied.
"""

import re
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from leafwise.core.columns import Columns
from leafwise.core.leaf import number_kind


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


class Proposal(NamedTuple):
    """A rename that may be right: a regular expression and its replacement, the pairs of names that it would make, and
    what speaks for it. If it is not certain, each of `sources` could be each of `targets` (some 50 names of either)."""

    pattern: str
    replacement: str
    pairs: tuple[tuple[str, str], ...]
    reason: str
    certain: bool = False
    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()


Numbers = tuple[str, ...]
# Where names have numbers: anywhere, as steps, or nowhere.
_DIGITS, _STEPS, _NOWHERE = re.compile(r"\d+"), re.compile(r"(?<![^.])\d+(?![^.])"), re.compile(r"(?!)")
_MAX_COMPARED = 4_000  # pairs of names in a group that are compared letter by letter; beyond, order decides
_MAX_LISTED = 50  # names that a guess lists
_MAX_WORDS = 40_000  # pairs of names in a group whose words are compared
_MAX_RULES = 20_000  # pairs of names in a group whose difference is tried on all names


def propose(targets: Sequence[Unmatched], sources: Sequence[Unmatched]) -> list[Proposal]:
    """Renames from sources to targets that would fit; those that are certain first.

    >>> (found,) = propose([Unmatched("layers.0.q.weight", (4, 4)), Unmatched("layers.1.q.weight", (4, 4))],
    ...                    [Unmatched("h.0.query.weight", (4, 4)), Unmatched("h.1.query.weight", (4, 4))])
    >>> found.pattern, found.replacement, len(found.pairs), found.certain
    ('^h\\\\.(\\\\d+)\\\\.query\\\\.weight$', 'layers.\\\\1.q.weight', 2, True)
    """
    certain: list[Proposal] = []
    for numbers in (_DIGITS, _STEPS, _NOWHERE):  # what is numbered otherwise on the two sides is left to the next
        ours = _families(targets, numbers, together=True)
        theirs = _families(sources, numbers, together=any(family.also for family in ours))
        pairs = _Search(ours, theirs).certain()
        certain += [_proposal(pair, certain=True) for pair in pairs]
        targets = _without(targets, {new for one in certain for _, new in one.pairs})
        sources = _without(sources, {old for one in certain for old, _ in one.pairs})
    return certain + _guesses(targets, sources)


def unmatched(
    columns: Columns,
    rows: Sequence[int],
    names: Sequence[str],
    left: Iterable[int],
    besides: Container[int],
    front: tuple[str, str] = ("", ""),
) -> list[Unmatched]:
    """Those of some rows that are left, by their places; but not those of some leaves."""
    left = [place for place in left if columns.ties.get(rows[place], rows[place]) not in besides]
    found = []
    for place, facts in zip(left, columns.facts([rows[place] for place in left]), strict=True):
        row = rows[place]
        leaf = columns.ties.get(row, row) if columns.row_op(row) == "same" else None
        found.append(Unmatched(names[place], (facts.spec.shape, number_kind(facts.spec.dtype)), leaf, front))
    return found


def certain_pairs(proposals: Iterable[Proposal], targets: Sequence[str], sources: Sequence[str]) -> dict[int, int]:
    """By the place of the target, that of the source that proposals make of it, where they are certain."""
    ours = {name: place for place, name in enumerate(targets)}
    theirs = {name: place for place, name in enumerate(sources)}
    return {ours[new]: theirs[old] for one in proposals if one.certain for old, new in one.pairs}


def as_renames(proposals: Iterable[Proposal]) -> list[tuple[str, str]]:
    """Proposals as `rename=` takes them."""
    return [(proposal.pattern, proposal.replacement) for proposal in proposals]


def _without(some: Sequence[Unmatched], names: set[str]) -> list[Unmatched]:
    """Those that are not taken under any name."""
    leaves = {one.leaf for one in some if one.leaf is not None and one.name in names}
    return [one for one in some if one.name not in names and one.leaf not in leaves]


# -- families ----------------------------------------------------------------------------------------------


class _Family:
    """Names that differ only in their numbers."""

    def __init__(self, template: str, number: re.Pattern[str]) -> None:
        self.template, self.number = template, number
        self.members: dict[Numbers, Unmatched] = {}
        self.also: list[_Family] = []  # the same leaves under other names
        self.owner, _, self.last = template.rpartition(".")

    def key(self) -> Hashable:
        """What two families have in common if one can be the other."""
        forms = tuple(sorted((numbers, repr(one.form)) for numbers, one in self.members.items()))
        return forms, _sort_of(self.last)

    def templates(self) -> list[str]:
        return [self.template, *(other.template for other in self.also)]

    def first(self) -> str:
        return next(iter(self.members.values())).name


def _families(named: Sequence[Unmatched], number: re.Pattern[str], together: bool) -> list[_Family]:
    """The names by what they are without numbers. Names of the same leaves may be put together: whichever of them gets
    a value, all do."""
    families: dict[str, _Family] = {}
    for one in named:
        family = families.setdefault(template := number.sub("#", one.meant), _Family(template, number))
        family.members[tuple(number.findall(one.meant))] = one
    if number is _DIGITS:
        families = _without_fixed_digits(families)
    distinct: dict[Hashable, _Family] = {}
    for family in families.values():
        leaves = tuple(sorted((numbers, one.leaf) for numbers, one in family.members.items() if one.leaf is not None))
        is_known = together and len(leaves) == len(family.members)
        first = distinct.setdefault(leaves if is_known else family.template, family)
        if first is not family:
            first.also.append(family)
    return list(distinct.values())


def _without_fixed_digits(families: dict[str, _Family]) -> dict[str, _Family]:
    """Digits in a word number something only where they count: the 4 of dense_4h is part of its name."""
    found: dict[str, _Family] = {}
    for family in families.values():
        name = next(iter(family.members.values())).meant
        steps = {match.start() for match in _STEPS.finditer(name)}
        places = [place for place, match in enumerate(_DIGITS.finditer(name)) if match.start() not in steps]
        if all(len({numbers[place] for numbers in family.members}) > 1 for place in places):
            found[family.template] = family
        else:
            members = list(family.members.values())
            found |= {one.template: one for one in _families(members, _STEPS, together=False)}
    return found


def _sort_of(last: str) -> str:
    """A weight is never a bias: names with a well-known end are compared with their like only.

    >>> _sort_of("weight"), _sort_of("in_proj_bias"), _sort_of("moving_mean")
    ('', 'bias', 'running_mean')
    """
    if last in ("running_mean", "running_var", "num_batches_tracked"):
        return last
    if last.endswith("_bias"):
        return "bias"
    return {"bias": "bias", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}.get(
        last, ""
    )


# -- what is certain ---------------------------------------------------------------------------------------


class _Pair(NamedTuple):
    """A family of the source, the family of the target that it is, and why."""

    source: _Family
    target: _Family
    reason: str


class _Search:
    """Finds what is certain, one kind of evidence after the other, until none finds more."""

    def __init__(self, targets: list[_Family], sources: list[_Family]) -> None:
        self.targets, self.sources = targets, sources
        self.pairs: list[_Pair] = []
        self._done: set[int] = set()
        self._keys = {id(family): family.key() for family in (*targets, *sources)}
        self._balanced = _balanced(targets, sources, self._keys)

    def certain(self) -> list[_Pair]:
        self._take(_by_rule(self.targets, self.sources, self._keys))
        while self._take(self._by_layer()) or self._take(self._by_words()) or self._take(self._by_shape()):
            pass
        return _coherent(self.pairs)

    def _take(self, pairs: Iterable[_Pair]) -> bool:
        some = list(pairs)
        self.pairs += some
        for pair in some:
            self._done |= {id(pair.source), id(pair.target)}
        return bool(some)

    def _groups(self) -> Iterator[tuple[list[_Family], list[_Family]]]:
        """What is left on either side that could be one another, where all of it finds a partner."""
        groups: dict[Hashable, tuple[list[_Family], list[_Family]]] = {}
        for families, side in ((self.targets, 0), (self.sources, 1)):
            for family in families:
                if id(family) not in self._done:
                    groups.setdefault(self._keys[id(family)], ([], []))[side].append(family)
        return (group for key, group in groups.items() if group[0] and group[1] and key in self._balanced)

    def _by_layer(self) -> Iterator[_Pair]:
        """What belongs to the same layer as something that is certain."""
        owners = _owners(self.pairs)
        left = {family.template: family for family in self.targets if id(family) not in self._done}
        for source in self.sources:
            name = f"{owners.get(source.owner, '')}.{source.last}"
            if id(source) in self._done or name not in left or self._keys[id(source)] != self._keys[id(left[name])]:
                continue
            target = left.pop(name)
            yield _Pair(source, target, f"same layer as {target.first().rpartition('.')[0]}")

    def _by_words(self) -> Iterator[_Pair]:
        """Groups in which each name shares more words with its partner than with any other, and none is left over."""
        for targets, sources in self._groups():
            if 1 < len(targets) == len(sources) and len(targets) ** 2 <= _MAX_WORDS:
                yield from _told_apart(targets, sources)

    def _by_shape(self) -> Iterator[_Pair]:
        for targets, sources in self._groups():
            if len(targets) == len(sources) == 1 and not _contradicts(sources[0].template, targets[0].template):
                yield _Pair(sources[0], targets[0], "no other has this shape")


def _balanced(targets: list[_Family], sources: list[_Family], keys: dict[int, Hashable]) -> set[Hashable]:
    """What can be judged by words and shapes: nothing if a leaf is left over on either side, as then its partner may be
    missing; and nothing with shapes that are numbered otherwise on the two sides, as then equal numbers may mislead."""
    if _forms(targets) != _forms(sources):
        return set()
    counts: dict[Hashable, Counter[Hashable]] = {}
    for sign, families in ((1, targets), (-1, sources)):
        for family in families:
            for form in _forms([family]):
                counts.setdefault(form, Counter())[keys[id(family)]] += sign
    uneven = {form for form, times in counts.items() if any(times.values())}
    return {keys[id(family)] for family in targets if not uneven & _forms([family]).keys()}


def _forms(families: list[_Family]) -> Counter[Hashable]:
    return Counter((one.form, _sort_of(family.last)) for family in families for one in family.members.values())


def _owners(pairs: Iterable[_Pair]) -> dict[str, str]:
    """The layers of the source whose layer in the target is known by what is certain of them."""
    found: dict[str, set[str]] = {}
    for source, target, _ in pairs:
        if source.last == target.last and source.owner and target.owner:
            found.setdefault(source.owner, set()).add(target.owner)
    return {owner: next(iter(owners)) for owner, owners in found.items() if len(owners) == 1}


def _coherent(pairs: list[_Pair]) -> list[_Pair]:
    """Without layers of which one part would go here and another there: something is wrong about them."""
    ours: dict[str, set[str]] = {}
    theirs: dict[str, set[str]] = {}
    for source, target, _ in pairs:
        if source.last == target.last and source.last in _PARTS:
            theirs.setdefault(source.owner, set()).add(target.owner)
            ours.setdefault(target.owner, set()).add(source.owner)
    torn = {owner for owner, owners in theirs.items() if len(owners) > 1}
    torn_here = {owner for owner, owners in ours.items() if len(owners) > 1}
    return [
        pair
        for pair in pairs
        if pair.source.last not in _PARTS or not (pair.source.owner in torn or pair.target.owner in torn_here)
    ]


_PARTS = frozenset({"weight", "bias", "running_mean", "running_var", "num_batches_tracked", "gamma", "beta"})


# -- one change throughout ---------------------------------------------------------------------------------

Steps = tuple[str, ...]


class _Rule(NamedTuple):
    """Consecutive steps of names that others take the place of."""

    old: Steps
    new: Steps

    def describe(self) -> str:
        old, new = ".".join(self.old), ".".join(self.new)
        if not self.old:
            return f'only "{new}" is put in'
        return f'only "{old}" is left out' if not self.new else f'only "{old}" is "{new}"'


def _by_rule(targets: list[_Family], sources: list[_Family], keys: dict[int, Hashable]) -> list[_Pair]:
    """What one change makes equal, where it does so for every name that it concerns, and no other change would."""
    ours, theirs = _Index(targets, keys), _Index(sources, keys)
    valid = []
    for rule in _candidates(ours, theirs):
        pairs = _applied(rule, ours, theirs)
        if pairs and not _has_rivals(pairs, ours, theirs):
            valid.append((rule, pairs))
    valid.sort(key=lambda found: -len(found[1]))
    partners: dict[int, set[int]] = {}
    kept: list[tuple[_Rule, dict[int, tuple[_Family, _Family]]]] = []
    covered: list[tuple[set[int], set[int]]] = []
    for rule, pairs in valid:
        some = set(pairs), {id(target) for _, target in pairs.values()}
        # A change of more steps for fewer names is no rival of the one that explains all of them.
        if any(some[0] < wide[0] and some[1] < wide[1] for wide in covered):
            continue
        covered.append(some)
        kept.append((rule, pairs))
        for source, target in pairs.values():
            partners.setdefault(id(source), set()).add(id(target))
            partners.setdefault(id(target), set()).add(id(source))
    found: dict[int, _Pair] = {}
    for rule, pairs in kept:
        if all(len(partners[id(one)]) == 1 for pair in pairs.values() for one in pair):
            for number, (source, target) in pairs.items():
                found.setdefault(number, _Pair(source, target, rule.describe()))
    return list(found.values())


class _Index:
    """Families by their names, and by the steps that occur in these."""

    def __init__(self, families: list[_Family], keys: dict[int, Hashable]) -> None:
        self.groups: dict[Hashable, list[tuple[Steps, _Family]]] = {}
        self.by_steps: dict[Steps, tuple[_Family, Hashable]] = {}
        self._with_step: dict[str, list[tuple[Steps, _Family]]] = {}
        for family in families:
            for name in family.templates():
                steps = tuple(name.split("."))
                key = keys[id(family)]
                self.groups.setdefault(key, []).append((steps, family))
                self.by_steps[steps] = family, key
                for step in set(steps):
                    self._with_step.setdefault(step, []).append((steps, family))

    def having(self, part: Steps) -> Iterator[tuple[Steps, int, _Family]]:
        """The names that have some consecutive steps, and where."""
        for steps, family in self._with_step.get(part[0], ()):
            for at in range(len(steps) - len(part) + 1):
                if steps[at : at + len(part)] == part:
                    yield steps, at, family


def _candidates(ours: _Index, theirs: _Index) -> list[_Rule]:
    """Differences between names that could be one another, and that may be one change. Steps that are put in or left
    out are; if not wherever they occur, then below a step of a name that several layers have. Steps in the place of
    others are if several layers below bear it out: two changes that happen to stand side by side are not one."""
    behind: dict[_Rule, set[Steps]] = {}
    below: dict[_Rule, set[Steps]] = {}
    for key, sources in theirs.groups.items():
        targets = ours.groups.get(key, [])
        if len(targets) * len(sources) > _MAX_RULES:
            continue
        for old, _ in sources:
            for new, _ in targets:
                rule, layer = _difference(old, new)
                behind.setdefault(rule, set()).add(layer)
                at = len(old) - len(layer) - 1 - len(rule.old)
                if at and not (rule.old and rule.new):
                    step = old[at - 1 : at]
                    below.setdefault(_Rule(step + rule.old, step + rule.new), set()).add(old[:at])
    return [rule for rule, layers in behind.items() if _is_one_change(rule, layers)] + [
        rule for rule, layers in below.items() if len(layers) > 1
    ]


def _is_one_change(rule: _Rule, layers: set[Steps]) -> bool:
    if not rule.old or not rule.new:
        return len(rule.old + rule.new) == 1 or len(layers) > 1
    if len(layers - {()}) < 2 or set(rule.old) & set(rule.new) or any(map(str.isdigit, rule.old + rule.new)):
        return False
    return not _contradicts(".".join(rule.old), ".".join(rule.new))


def _difference(old: Steps, new: Steps) -> tuple[_Rule, Steps]:
    """The steps in which two names differ, and the layer below them that both have.

    >>> _difference(("a", "b", "c", "weight"), ("a", "x", "y", "c", "weight"))
    (_Rule(old=('b',), new=('x', 'y')), ('c',))
    """
    start, stop, least = 0, 0, min(len(old), len(new))
    while start < least and old[start] == new[start]:
        start += 1
    while stop < least - start and old[-1 - stop] == new[-1 - stop]:
        stop += 1
    return _Rule(old[start : len(old) - stop], new[start : len(new) - stop]), old[len(old) - stop : -1]


def _applied(rule: _Rule, ours: _Index, theirs: _Index) -> dict[int, tuple[_Family, _Family]]:
    """The pairs that a rule makes, by the source; nothing where it does not fit every name that it concerns."""
    pairs: dict[int, tuple[_Family, _Family]] = {}
    partner: dict[int, int] = {}
    for part, other, here, there in ((rule.old, rule.new, theirs, ours), (rule.new, rule.old, ours, theirs)):
        if not part:
            continue
        concerned: dict[int, bool] = {}
        for steps, at, family in here.having(part):
            concerned.setdefault(id(family), False)
            found, key = there.by_steps.get(steps[:at] + other + steps[at + len(part) :], (None, None))
            if found is None or key != here.by_steps[steps][1]:
                continue
            concerned[id(family)] = True
            source, target = (family, found) if here is theirs else (found, family)
            if partner.setdefault(id(source), id(target)) != id(target):
                return {}
            if partner.setdefault(id(target), id(source)) != id(source):
                return {}
            pairs[id(source)] = source, target
        if not all(concerned.values()):
            return {}
    return pairs


def _has_rivals(pairs: dict[int, tuple[_Family, _Family]], ours: _Index, theirs: _Index) -> bool:
    """Whether something that a rule does not concern fits one of its pairs as well: it has all the steps of a name
    from which steps were left out, or as many steps at its end as a name of which some were replaced."""
    covered = {id(family) for pair in pairs.values() for family in pair}
    for source, target in pairs.values():
        old, new = tuple(source.template.split(".")), tuple(target.template.split("."))
        for name, partner, index in ((old, new, ours), (new, old, theirs)):
            for steps, family in index.groups[index.by_steps[partner][1]]:
                if id(family) in covered:
                    continue
                if _is_within(name, partner) or _is_within(partner, name):
                    if _is_within(name, steps) or _is_within(steps, name):
                        return True
                elif _common_end(name, steps) >= _common_end(name, partner):
                    return True
    return False


def _is_within(short: Steps, long: Steps) -> bool:
    """Whether a name is another with steps put in."""
    steps = iter(long)
    return all(step in steps for step in short)


# -- words -------------------------------------------------------------------------------------------------

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+")
# Spellings of a word. Only what nobody takes for anything else: these words prove which of several leaves is meant.
_SPELLINGS = {
    spelling: words.split()
    for words, spellings in {
        "query": "q",
        "key": "k",
        "value": "v val",
        "output": "o out",
        "input": "in",
        "attention": "attn att",
        "encoder": "enc",
        "decoder": "dec",
        "embedding": "emb embed",
        "position": "pos positional",
        "projection": "proj projector",
        "layer norm": "layernorm ln",
        "batch norm": "batchnorm bn",
        "vision": "visual image",
        "text": "language",
        "column": "col",
    }.items()
    for spelling in spellings.split()
}
# A name that bears one of these is not one that bears another of the same line instead.
_OPPOSITES = [
    frozenset(line.split())
    for line in (
        "query key value output",
        "input output",
        "encoder decoder",
        "gate up down",
        "left right",
        "pre post",
        "before after",
        "text vision audio video",
        "student teacher",
        "generator discriminator",
        "actor critic",
        "source target",
        "forward backward",
        "row column",
        "first second third",
        "mean var",
    )
]


def _words(name: str) -> list[str]:
    """The words of a name, each in one spelling. Numbers are no words.

    >>> _words("layers.#.selfAttn.q_proj1.weight")
    ['layer', 'self', 'attention', 'query', 'projection', 'weight']
    """
    words: list[str] = []
    for word in _WORD.findall(name):
        word = word.lower()
        if len(word) > 3 and word[-1] == "s" and word[-2] not in "aisu":
            word = word[:-1]
        words += _SPELLINGS.get(word, [word])
    return words


def _contradicts(old: str, new: str) -> bool:
    """Whether names say that they are not one another: by opposite words, by other numbers below the same step, or by
    numbers that have changed places.

    >>> _contradicts("a.encoder", "b.decoder"), _contradicts("norm0", "norm1"), _contradicts("h", "layers")
    (True, True, False)
    """
    ours, theirs = set(_words(new)), set(_words(old))
    if any(ours & line and theirs & line and not ours & theirs & line for line in _OPPOSITES):
        return True
    numbered, others = _numbered(old), _numbered(new)
    if any(word in others and not others[word] & numbers for word, numbers in numbered.items()):
        return True
    if len(numbered) > 1 and list(numbered) != list(others):
        return len(numbered) == len(others) and numbered.keys() == others.keys()
    return False


def _numbered(name: str) -> dict[str, set[str]]:
    """The steps and words of a name that are numbered, and by what.

    >>> _numbered("layers.3.block.#.norm1.weight")
    {'layers': {'3'}, 'block': {'#'}, 'norm': {'1'}}
    """
    found: dict[str, set[str]] = {}
    for word, number in re.findall(r"([^.\d#]+)\.?(\d+|#)", name):
        found.setdefault(word.strip("_"), set()).add(number)
    return found


class _Common(NamedTuple):
    """What two names have in common: which words, and how many steps at the end."""

    words: frozenset[str]
    end: int

    def tells_by_word(self, rival: "_Common") -> bool:
        """Whether it is more than the rival has, by more than a letter or a place in an order."""
        return any(len(word) > 1 and word not in _ORDER for word in self.words - rival.words)


_ORDER = frozenset(("first", "second", "third", "fourth", "fifth"))


def _told_apart(targets: list[_Family], sources: list[_Family]) -> list[_Pair]:
    """Pairs of all of them, if each name singles out its partner among the others, on both sides; otherwise none. Some
    of the pairs prove nothing: of fc0, fc1 and lin1, lin2 only fc1 and lin1 are alike, and they are not the same.

    What words single out is set aside, and the rest is compared by its words without it. That is not to say that what
    is left over in the end belongs together: with what was set aside it must have less of its end in common.
    """
    common = _all_common(targets, sources)
    rows, columns = set(range(len(sources))), set(range(len(targets)))
    pairs: list[_Pair] = []
    while rows:
        found = {row: one for row in rows if (one := _singled_out(common, row, rows, columns)) is not None}
        if len(found) < len(rows):
            found = {row: (column, is_told) for row, (column, is_told) in found.items() if is_told}
        chosen = {column for column, _ in found.values()}
        if not found or len(chosen) < len(found):
            return []
        for row, (column, _) in sorted(found.items()):
            if _contradicts(sources[row].template, targets[column].template):
                return []
            pairs.append(_Pair(sources[row], targets[column], "no other name has its words"))
        rows -= found.keys()
        columns -= chosen
    return pairs


def _all_common(targets: list[_Family], sources: list[_Family]) -> list[list[list[_Common]]]:
    """What each of the sources, under each of its names, has in common with each of the targets."""
    ours = [[(name.split("."), frozenset(_words(name))) for name in family.templates()] for family in targets]
    theirs = [[(name.split("."), frozenset(_words(name))) for name in family.templates()] for family in sources]
    return [
        [
            [_Common(words & others, _common_end(steps, other)) for steps, words in old for other, others in new]
            for new in ours
        ]
        for old in theirs
    ]


def _common_end(old: Sequence[str], new: Sequence[str]) -> int:
    end = 0
    while end < min(len(old), len(new)) and old[-1 - end] == new[-1 - end]:
        end += 1
    return end


def _singled_out(
    common: list[list[list[_Common]]], row: int, rows: set[int], columns: set[int]
) -> tuple[int, bool] | None:
    """The column with which a row shares all the words that it shares with any other, and more, if no other row shares
    as many with it; and whether that is told by words."""
    best = max(sorted(columns), key=lambda column: max(len(one.words) for one in common[row][column]))
    rivals: list[_Common] = []
    set_aside: list[_Common] = []
    for column, some in enumerate(common[row]):
        if column != best:
            (rivals if column in columns else set_aside).extend(some)
    for other, choices in enumerate(common):
        if other != row:
            (rivals if other in rows else set_aside).extend(choices[best])
    for one in common[row][best]:
        if all(one.words > rival.words for rival in rivals) and all(
            one.words > rival.words or one.end > max(rival.end, 1) for rival in set_aside
        ):
            return best, all(one.tells_by_word(rival) for rival in rivals)
    return None


# -- guesses -----------------------------------------------------------------------------------------------


def _guesses(targets: Sequence[Unmatched], sources: Sequence[Unmatched]) -> list[Proposal]:
    """What is likely, by names, shapes and order; and what else it could be."""
    proposals: list[Proposal] = []
    for numbers in (_STEPS, _NOWHERE):
        groups: dict[Hashable, tuple[list[_Family], list[_Family]]] = {}
        for some, side in ((targets, 0), (sources, 1)):
            for family in _families(some, numbers, together=not side):
                groups.setdefault(family.key(), ([], []))[side].append(family)
        for ours, theirs in groups.values():
            old, new = (tuple(one.first() for one in some[:_MAX_LISTED]) for some in (theirs, ours))
            guesses = (_proposal(pair, certain=False) for pair in _likely(ours, theirs))
            proposals += [guess._replace(sources=old, targets=new) for guess in guesses]
        targets = _without(targets, {new for one in proposals for _, new in one.pairs})
        sources = _without(sources, {old for one in proposals for old, _ in one.pairs})
    return proposals


def _likely(targets: list[_Family], sources: list[_Family]) -> list[_Pair]:
    """Pairs of what could be one another, the names most alike first."""
    if not targets or not sources:
        return []
    if len(targets) == len(sources) == 1:
        names = sources[0].template, targets[0].template
        but = "the names contradict it" if _contradicts(*names) else "more is left than can be paired"
        return [_Pair(sources[0], targets[0], f"same shape, but {but}")]
    if len(targets) * len(sources) > _MAX_COMPARED:
        return [_Pair(s, t, "same shape, same order") for s, t in zip(sources, targets, strict=False)]
    scored = sorted(
        (-_likeness(source.template, target.template), abs(i - j), i, j)
        for i, target in enumerate(targets)
        for j, source in enumerate(sources)
    )
    pairs: dict[int, _Pair] = {}
    done: set[int] = set()
    for score, _, i, j in scored:
        if i not in pairs and j not in done:
            done.add(j)
            pairs[i] = _Pair(sources[j], targets[i], f"same shape, names alike by {-score:.0%}")
    return list(pairs.values())


def _likeness(a: str, b: str) -> float:
    """How alike two names are: letter by letter, and by the words that both have.

    >>> _likeness("attn_v.weight", "v_proj.weight") > _likeness("attn_v.weight", "q_proj.weight")
    True
    """
    letters = SequenceMatcher(None, a, b, autojunk=False).ratio()
    ours, theirs = _words(a), _words(b)
    common = sum(word in theirs for word in ours)
    return letters / 2 + common / max(len(ours), len(theirs), 1) / 2


def _proposal(pair: _Pair, certain: bool) -> Proposal:
    source, target = pair.source, pair.target
    if source.also or target.also:  # names of the same leaves: the two that are most alike
        choices = [(one, other) for one in (source, *source.also) for other in (target, *target.also)]
        source, target = max(choices, key=lambda both: _likeness(both[0].template, both[1].template))
    pairs = tuple((one.name, target.members[numbers].name) for numbers, one in source.members.items())
    old, new = pairs[0]
    pattern = r"(\d+)".join(map(re.escape, source.number.split(old)))
    parts = [part.replace("\\", r"\\") for part in target.number.split(new)]
    replacement = parts[0] + "".join(rf"\{number}{part}" for number, part in enumerate(parts[1:], 1))
    return Proposal(f"^{pattern}$", replacement, pairs, pair.reason, certain)
