"""Pairs of names by their words: which leaf is which among several, and which are certainly not partners."""

import re
from typing import NamedTuple

from leafwise.core.pairing.families import Family, Pair, common_end

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+")
# Spellings of a word. Only unambiguous ones, because these words prove which of several leaves is meant.
_SPELLINGS = {
    spelling: words.split()
    for words, spellings in {
        "query": "q wq qw querie",
        "key": "k wk kw",
        "value": "v val wv vw",
        "output": "o out wo ow",
        "query projection": "qproj",
        "key projection": "kproj",
        "value projection": "vproj",
        "output projection": "oproj outproj",
        "source": "src",
        "target": "tgt trg",
        "forward": "fwd",
        "backward": "bwd",
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
# A name with one of these words is not the partner of a name with another word of the same line instead.
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
        "self cross",
        "upsample downsample",
        "forward backward",
        "row column",
        "first second third",
        "mean var",
    )
]


def words_of(name: str) -> list[str]:
    """The words of a name, each in one spelling. Numbers are not words.

    >>> words_of("layers.#.selfAttn.q_proj1.weight")
    ['layer', 'self', 'attention', 'query', 'projection', 'weight']
    """
    words: list[str] = []
    for word in _WORD.findall(name):
        word = word.lower()
        if len(word) > 3 and word[-1] == "s" and word[-2] not in "aisu":
            word = word[:-1]
        words += _SPELLINGS.get(word, [word])
    return words


def contradicts(old: str, new: str) -> bool:
    """Whether two names show that they are not partners: by opposite words, by different numbers after the same entry,
    or by numbers in another order.

    >>> contradicts("a.encoder", "b.decoder"), contradicts("norm0", "norm1"), contradicts("h", "layers")
    (True, True, False)
    >>> contradicts("q.v", "q.k"), contradicts("attn.q", "q")
    (True, False)
    """
    ours, theirs = set(words_of(new)), set(words_of(old))
    if any((ours - theirs) & line and (theirs - ours) & line for line in _OPPOSITES):
        return True
    old_numbers, new_numbers = _numbered(old), _numbered(new)
    if any(word in new_numbers and not new_numbers[word] & numbers for word, numbers in old_numbers.items()):
        return True
    if len(old_numbers) > 1 and list(old_numbers) != list(new_numbers):
        return len(old_numbers) == len(new_numbers) and old_numbers.keys() == new_numbers.keys()
    return False


def _numbered(name: str) -> dict[str, set[str]]:
    """The entries and words of a name that are numbered, and their numbers.

    >>> _numbered("layers.3.block.#.norm1.weight")
    {'layers': {'3'}, 'block': {'#'}, 'norm': {'1'}}
    """
    numbers: dict[str, set[str]] = {}
    for word, number in re.findall(r"([^.\d#]+)\.?(\d+|#)", name):
        numbers.setdefault(word.strip("_"), set()).add(number)
    return numbers


class _CommonParts(NamedTuple):
    """What two names have in common: which words, and how many entries at the end."""

    words: frozenset[str]
    end: int

    def differs_by_word(self, rival: "_CommonParts") -> bool:
        """Whether this is more than the rival has, and the difference is more than a letter or an ordinal."""
        return any(len(word) > 1 and word not in _ORDER for word in self.words - rival.words)


_ORDER = frozenset(("first", "second", "third", "fourth", "fifth"))


def identified_pairs(targets: list[Family], sources: list[Family]) -> list[Pair]:
    """Pairs of all names, if each name identifies its partner among the others, on both sides; otherwise none. Some of
    the pairs alone would prove nothing: of fc0, fc1 and lin1, lin2, only fc1 and lin1 are similar, and they are not
    partners.

    Pairs that words identify are set aside, and the remaining names are compared without them. The last ones left over
    do not belong together for that reason alone: they must have fewer last entries in common with the names that were
    set aside.
    """
    common = _all_common(targets, sources)
    rows, columns = set(range(len(sources))), set(range(len(targets)))
    pairs: list[Pair] = []
    while rows:
        singled_out = {row: choice for row in rows if (choice := _singled_out(common, row, rows, columns)) is not None}
        if len(singled_out) < len(rows):
            singled_out = {row: choice for row, choice in singled_out.items() if choice[1]}
        chosen = {column for column, _ in singled_out.values()}
        if not singled_out or len(chosen) < len(singled_out):
            return []
        for row, (column, _) in sorted(singled_out.items()):
            if contradicts(sources[row].template, targets[column].template):
                return []
            pairs.append(Pair(sources[row], targets[column], "no other name has the same words"))
        rows -= singled_out.keys()
        columns -= chosen
    return pairs


def _all_common(targets: list[Family], sources: list[Family]) -> list[list[list[_CommonParts]]]:
    """What each source, under each of its names, has in common with each target."""
    ours = [[(name.split("."), frozenset(words_of(name))) for name in family.templates()] for family in targets]
    theirs = [[(name.split("."), frozenset(words_of(name))) for name in family.templates()] for family in sources]
    return [
        [
            [
                _CommonParts(words & new_words, common_end(steps, new_steps))
                for steps, words in old
                for new_steps, new_words in new
            ]
            for new in ours
        ]
        for old in theirs
    ]


def _singled_out(
    common: list[list[list[_CommonParts]]], row: int, rows: set[int], columns: set[int]
) -> tuple[int, bool] | None:
    """The column with which a row shares all the words that it shares with any other column, and more, if no other row
    shares as many with that column; and whether words decided it."""
    best = max(sorted(columns), key=lambda column: max(len(parts.words) for parts in common[row][column]))
    rivals: list[_CommonParts] = []
    set_aside: list[_CommonParts] = []
    for column, parts_by_name in enumerate(common[row]):
        if column != best:
            (rivals if column in columns else set_aside).extend(parts_by_name)
    for rival_row, by_column in enumerate(common):
        if rival_row != row:
            (rivals if rival_row in rows else set_aside).extend(by_column[best])
    for parts in common[row][best]:
        if all(parts.words > rival.words for rival in rivals) and all(
            parts.words > rival.words or parts.end > max(rival.end, 1) for rival in set_aside
        ):
            return best, all(parts.differs_by_word(rival) for rival in rivals)
    return None
