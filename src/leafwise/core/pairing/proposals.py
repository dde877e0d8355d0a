"""Renames that would make two trees match: which of them are certain, and which are guesses.

They are based only on names, shapes and kinds of number; values are not read here. A rename is certain if no other is
as plausible. There are four kinds of evidence:

- *One change throughout.* The same entries are replaced (or added, or removed) in every name that has them, and the
  rest of each name stays.
- *Words.* Among leaves that could be exchanged, each shares more words with its own partner than with any other, on
  both sides, and none is left over. Words that are merely similar do not count, and neither do numbers that start at 0
  on one side and at 1 on the other.
- *Shape.* Every remaining leaf has a partner, and only these two have this shape.
- *The same layer.* If the weight of a layer is certain, so is its bias.

Everything else is a guess. Guesses are listed, with the alternatives, and never applied.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from leafwise.core.pairing.families import DIGITS, NOWHERE, STEPS, Family, Pair, Unmatched, families_of, sort_of
from leafwise.core.pairing.name_changes import by_one_change
from leafwise.core.pairing.name_words import contradicts, identified_pairs, words_of

_MAX_COMPARED = 4_000  # pairs of names in a group that are compared letter by letter; in larger groups, order decides
_MAX_LISTED = 50  # names that a guess lists
_MAX_WORDS = 40_000  # pairs of names in a group whose words are compared


class Proposal(NamedTuple):
    """A possible rename that would make names of a checkpoint match the model; see `lw.plan` and `lw.diff`.

    `pattern` is a regular expression, and `replacement` replaces its matches. `pairs` has the old and the new name of
    each leaf, and `reason` says why the rename is plausible. If it is not `certain`, each of `sources` could be any of
    `targets` (at most 50 names are listed).

    >>> import torch, leafwise as lw
    >>> model = {"encoder": {"weight": torch.zeros(4, 4)}, "head": {"weight": torch.zeros(2, 4)}}
    >>> plan = lw.plan(model, {"enc": {"weight": torch.zeros(4, 4)}, "head": {"weight": torch.zeros(2, 4)}})
    >>> plan.proposals[0].pairs, plan.proposals[0].certain
    ((('enc.weight', 'encoder.weight'),), True)
    """

    pattern: str
    replacement: str
    pairs: tuple[tuple[str, str], ...]
    reason: str
    certain: bool = False
    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()


def propose(targets: Sequence[Unmatched], sources: Sequence[Unmatched]) -> list[Proposal]:
    """Renames from sources to targets, the certain ones first.

    >>> (proposal,) = propose([Unmatched("layers.0.q.weight", (4, 4)), Unmatched("layers.1.q.weight", (4, 4))],
    ...                       [Unmatched("h.0.query.weight", (4, 4)), Unmatched("h.1.query.weight", (4, 4))])
    >>> proposal.pattern, proposal.replacement, len(proposal.pairs), proposal.certain
    ('^h\\\\.(\\\\d+)\\\\.query\\\\.weight$', 'layers.\\\\1.q.weight', 2, True)
    """
    certain: list[Proposal] = []
    for numbers in (DIGITS, STEPS, NOWHERE):  # names that the two sides number differently wait for the next
        ours = families_of(targets, numbers, together=True)
        theirs = families_of(sources, numbers, together=any(family.also for family in ours))
        pairs = _EvidenceSearch(ours, theirs).certain()
        certain += [_proposal(pair, certain=True) for pair in pairs]
        targets, sources = _left_by(certain, targets, sources)
    return certain + _guesses(targets, sources)


def certain_pairs(proposals: Iterable[Proposal], targets: Sequence[str], sources: Sequence[str]) -> dict[int, int]:
    """The pairs that certain proposals make: the place of each target → the place of its source."""
    ours = {name: place for place, name in enumerate(targets)}
    theirs = {name: place for place, name in enumerate(sources)}
    pairs = [pair for proposal in proposals if proposal.certain for pair in proposal.pairs]
    return {ours[new]: theirs[old] for old, new in pairs}


def as_renames(proposals: Iterable[Proposal]) -> list[tuple[str, str]]:
    """Proposals as a value for `rename=`."""
    return [(proposal.pattern, proposal.replacement) for proposal in proposals]


def _left_by(
    proposals: Sequence[Proposal], targets: Sequence[Unmatched], sources: Sequence[Unmatched]
) -> tuple[list[Unmatched], list[Unmatched]]:
    """The targets and the sources that proposals do not pair."""
    pairs = [pair for proposal in proposals for pair in proposal.pairs]
    return _without(targets, {new for _, new in pairs}), _without(sources, {old for old, _ in pairs})


def _without(unmatched: Sequence[Unmatched], names: set[str]) -> list[Unmatched]:
    """The unmatched names without the leaves that have one of these names."""
    leaves = {member.leaf for member in unmatched if member.leaf is not None and member.name in names}
    return [member for member in unmatched if member.name not in names and member.leaf not in leaves]


# -- certain pairs -----------------------------------------------------------------------------------------


class _EvidenceSearch:
    """Finds certain pairs, by one kind of evidence after the other, until none finds more."""

    def __init__(self, targets: list[Family], sources: list[Family]) -> None:
        self.targets, self.sources = targets, sources
        self.pairs: list[Pair] = []
        self._done: set[int] = set()
        self._keys = {id(family): family.key() for family in (*targets, *sources)}
        self._balanced = _balanced(targets, sources, self._keys)

    def certain(self) -> list[Pair]:
        self._take(by_one_change(self.targets, self.sources, self._keys))
        while self._take(self._by_layer()) or self._take(self._by_words()) or self._take(self._by_shape()):
            pass
        return _coherent(self.pairs)

    def _take(self, pairs: Iterable[Pair]) -> bool:
        taken = list(pairs)
        self.pairs += taken
        for pair in taken:
            self._done |= {id(pair.source), id(pair.target)}
        return bool(taken)

    def _groups(self) -> Iterator[tuple[list[Family], list[Family]]]:
        """Groups of remaining families that could be partners, if every one of them has a partner."""
        groups: dict[Hashable, tuple[list[Family], list[Family]]] = {}
        for families, side in ((self.targets, 0), (self.sources, 1)):
            for family in families:
                if id(family) not in self._done:
                    groups.setdefault(self._keys[id(family)], ([], []))[side].append(family)
        return (group for key, group in groups.items() if group[0] and group[1] and key in self._balanced)

    def _by_layer(self) -> Iterator[Pair]:
        """Pairs that belong to the same layer as a certain pair."""
        owners = _owners(self.pairs)
        left = {family.template: family for family in self.targets if id(family) not in self._done}
        for source in self.sources:
            name = f"{owners.get(source.owner, '')}.{source.last}"
            if id(source) in self._done or name not in left or self._keys[id(source)] != self._keys[id(left[name])]:
                continue
            target = left.pop(name)
            yield Pair(source, target, f"same layer as {target.first().rpartition('.')[0]}")

    def _by_words(self) -> Iterator[Pair]:
        """Groups in which each name shares more words with its partner than with any other, and none is left over."""
        for targets, sources in self._groups():
            if 1 < len(targets) == len(sources) and len(targets) ** 2 <= _MAX_WORDS:
                yield from identified_pairs(targets, sources)

    def _by_shape(self) -> Iterator[Pair]:
        for targets, sources in self._groups():
            if len(targets) == len(sources) == 1 and not contradicts(sources[0].template, targets[0].template):
                yield Pair(sources[0], targets[0], "no other leaf has this shape")


def _balanced(targets: list[Family], sources: list[Family], keys: dict[int, Hashable]) -> set[Hashable]:
    """The keys that can be judged by words and shapes. None if a leaf is left over on either side, because then its
    partner may be missing; and none with shapes that are numbered differently on the two sides, because then equal
    numbers may mislead."""
    if _forms(targets) != _forms(sources):
        return set()
    counts: dict[Hashable, Counter[Hashable]] = {}
    for sign, families in ((1, targets), (-1, sources)):
        for family in families:
            for form in _forms([family]):
                counts.setdefault(form, Counter())[keys[id(family)]] += sign
    uneven = {form for form, times in counts.items() if any(times.values())}
    return {keys[id(family)] for family in targets if not uneven & _forms([family]).keys()}


def _forms(families: list[Family]) -> Counter[Hashable]:
    return Counter((member.form, sort_of(family.last)) for family in families for member in family.members.values())


def _owners(pairs: Iterable[Pair]) -> dict[str, str]:
    """The layers of the source whose partner in the target is known from certain pairs."""
    owners = {(old.owner, new.owner) for old, new, _ in pairs if old.last == new.last and old.owner and new.owner}
    partners = Counter(old for old, _ in owners)
    return {old: new for old, new in owners if partners[old] == 1}


def _coherent(pairs: list[Pair]) -> list[Pair]:
    """The pairs without layers whose leaves would go to different layers: such pairs are wrong."""
    owners = {(old.owner, new.owner) for old, new, _ in pairs if old.last == new.last and old.last in _PARTS}
    partners_of_old, partners_of_new = Counter(old for old, _ in owners), Counter(new for _, new in owners)
    return [
        pair
        for pair in pairs
        if pair.source.last not in _PARTS
        or (partners_of_old[pair.source.owner] < 2 and partners_of_new[pair.target.owner] < 2)
    ]


_PARTS = frozenset({"weight", "bias", "running_mean", "running_var", "num_batches_tracked", "gamma", "beta"})


# -- guesses -----------------------------------------------------------------------------------------------


def _guesses(targets: Sequence[Unmatched], sources: Sequence[Unmatched]) -> list[Proposal]:
    """Likely pairs, by names, shapes and order, with their alternatives."""
    proposals: list[Proposal] = []
    for numbers in (STEPS, NOWHERE):
        groups: dict[Hashable, tuple[list[Family], list[Family]]] = {}
        for unmatched, side in ((targets, 0), (sources, 1)):
            for family in families_of(unmatched, numbers, together=not side):
                groups.setdefault(family.key(), ([], []))[side].append(family)
        for ours, theirs in groups.values():
            old, new = (tuple(family.first() for family in families[:_MAX_LISTED]) for families in (theirs, ours))
            guesses = (_proposal(pair, certain=False) for pair in _likely(ours, theirs))
            proposals += [guess._replace(sources=old, targets=new) for guess in guesses]
        targets, sources = _left_by(proposals, targets, sources)
    return proposals


def _likely(targets: list[Family], sources: list[Family]) -> list[Pair]:
    """Pairs that are possible, the most similar names first."""
    if not targets or not sources:
        return []
    if len(targets) == len(sources) == 1:
        names = sources[0].template, targets[0].template
        but = "the names contradict it" if contradicts(*names) else "other leaves have no partner"
        return [Pair(sources[0], targets[0], f"same shape, but {but}")]
    if len(targets) * len(sources) > _MAX_COMPARED:
        return [Pair(s, t, "same shape, same order") for s, t in zip(sources, targets, strict=False)]
    scored = sorted(
        (-_likeness(source.template, target.template), abs(i - j), i, j)
        for i, target in enumerate(targets)
        for j, source in enumerate(sources)
    )
    pairs: dict[int, Pair] = {}
    done: set[int] = set()
    for score, _, i, j in scored:
        if i not in pairs and j not in done:
            done.add(j)
            pairs[i] = Pair(sources[j], targets[i], f"same shape, names {-score:.0%} similar")
    return list(pairs.values())


def _likeness(a: str, b: str) -> float:
    """How similar two names are: letter by letter, and by the words that both have.

    >>> _likeness("attn_v.weight", "v_proj.weight") > _likeness("attn_v.weight", "q_proj.weight")
    True
    """
    letters = SequenceMatcher(None, a, b, autojunk=False).ratio()
    ours, theirs = words_of(a), words_of(b)
    common = sum(word in theirs for word in ours)
    return letters / 2 + common / max(len(ours), len(theirs), 1) / 2


def _proposal(pair: Pair, certain: bool) -> Proposal:
    source, target = pair.source, pair.target
    if source.also or target.also:  # names of the same leaves: the two that are most similar
        choices = [(old, new) for old in (source, *source.also) for new in (target, *target.also)]
        source, target = max(choices, key=lambda both: _likeness(both[0].template, both[1].template))
    pairs = tuple((member.name, target.members[numbers].name) for numbers, member in source.members.items())
    old, new = pairs[0]
    pattern = r"(\d+)".join(map(re.escape, source.number.split(old)))
    parts = [part.replace("\\", r"\\") for part in target.number.split(new)]
    replacement = parts[0] + "".join(rf"\{number}{part}" for number, part in enumerate(parts[1:], 1))
    return Proposal(f"^{pattern}$", replacement, pairs, pair.reason, certain)
