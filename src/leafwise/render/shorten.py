"""Names that are too long, shortened in the middle: the beginning says what they are, the end distinguishes leaves."""

import re
from collections.abc import Sequence
from unicodedata import combining, east_asian_width

from leafwise.core.results.outline import Span

_WORDS = re.compile(r"[^._]+|[._]")
_SHORT_WIDTHS = (7, 3)  # spans up to the first width, such as a type, are shortened last; up to the second, never


def width_of(spans: Sequence[Span]) -> int:
    """The width of words in columns of a fixed-width font."""
    return sum(len(text) if text.isascii() else sum(map(char_width, text)) for text, _ in spans)


def text_width(text: str) -> int:
    """
    >>> text_width("weight"), text_width("权重")
    (6, 4)
    """
    return len(text) if text.isascii() else sum(map(char_width, text))


def char_width(char: str) -> int:
    if char.isascii():
        return 1
    if combining(char):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


def beginning(text: str, space: int) -> str:
    """As much of the beginning as fits."""
    if text.isascii():
        return text[: max(space, 0)]
    for place, char in enumerate(text):
        space -= char_width(char)
        if space < 0:
            return text[:place]
    return text


def end(text: str, space: int) -> str:
    """As much of the end as fits."""
    if text.isascii():
        return text[len(text) - min(max(space, 0), len(text)) :]
    place = len(text)
    while place and (space := space - char_width(text[place - 1])) >= 0:
        place -= 1
    return text[place:]


def shortened(text: str, space: int, dots: str = "…") -> str:
    """The text with its middle left out.

    >>> shortened("model.diffusion_model.input_blocks.0.attn.weight", 24)
    'model.dif….0.attn.weight'
    >>> shortened("bias", 24)
    'bias'
    """
    if text_width(text) <= space:
        return text
    space -= len(dots)
    if space < 1:
        return beginning(dots, space + len(dots))
    return beginning(text, space * 2 // 5) + dots + end(text, space - space * 2 // 5)


def with_difference(texts: Sequence[str], space: int, dots: str = "…") -> list[str]:
    """Different texts that became the same when shortened, each with the part in which they differ.

    >>> with_difference(["a.long.path.one.of.many.weight", "a.long.path.two.of.many.weight"], 14)
    ['a.l…one…weight', 'a.l…two…weight']
    >>> with_difference(["down_0_attentions_to_q.up.weight", "down_1_attentions_to_k.up.weight"], 18)
    ['down_0…q.up.weight', 'down_1…k.up.weight']
    """
    start = _common(texts)
    stop = _common([text[start:][::-1] for text in texts])
    parts = [text[start : len(text) - stop] for text in texts]
    if max(map(text_width, parts)) + 2 * len(dots) > space:
        parts = _without_common_words(parts, dots)
    return [
        _around(text[:start], part, text[len(text) - stop :], space, dots)
        for text, part in zip(texts, parts, strict=True)
    ]


def _without_common_words(parts: list[str], dots: str) -> list[str]:
    """Different texts without the words inside them that all contain, if they stay different.

    >>> _without_common_words(["0_attn_to_q", "1_attn_to_out"], "…")
    ['0…q', '1…out']
    """
    words = [_WORDS.findall(part) for part in parts]
    common = set(words[0]).intersection(*words)
    short = []
    for own in words:
        ends = 0, len(own) - 1
        kept = [word if word not in common or place in ends else "" for place, word in enumerate(own)]
        short.append("".join(word or dots for place, word in enumerate(kept) if word or place == 0 or kept[place - 1]))
    return short if len(set(short)) == len(set(parts)) else parts


def _common(texts: Sequence[str]) -> int:
    """The number of characters with which all texts begin."""
    first, last = min(texts), max(texts)
    pairs = zip(first, last, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(last)))


def _around(head: str, part: str, tail: str, space: int, dots: str) -> str:
    left = space - text_width(part) - 2 * len(dots)
    if left < 0:
        return shortened(dots + part, space, dots)
    kept = end(tail, left * 3 // 4) if text_width(tail) > left * 3 // 4 + len(dots) else tail
    left = space - text_width(part) - text_width(kept) - len(dots) * (kept != tail)
    if text_width(head) > left:
        head = beginning(head, left - len(dots)) + dots
    return head + part + (kept if kept == tail else dots + kept)


def shorter_spans(spans: Sequence[Span], space: int, dots: str = "…") -> tuple[Span, ...]:
    """Spans that fit: the longest become as short as the next, and so on."""
    widths = [text_width(text) for text, _ in spans]
    over = sum(widths) - space
    if over <= 0:
        return tuple(spans)
    limits = (_most(widths, over, least) for least in _SHORT_WIDTHS)
    most = next((limit for limit in limits if limit is not None), _SHORT_WIDTHS[-1])
    return tuple(
        Span(shortened(text, most, dots), style) if width > most else Span(text, style)
        for (text, style), width in zip(spans, widths, strict=True)
    )


def _most(widths: Sequence[int], over: int, least: int) -> int | None:
    """The width to which the widest are limited, so that all of them together are `over` narrower; None if that would
    be less than `least`."""
    widest = sorted((width for width in widths if width > least), reverse=True)
    for count, width in enumerate(widest, 1):
        following = widest[count] if count < len(widest) else least
        over -= (width - following) * count
        if over <= 0:
            return following + -over // count
    return None


def short_labels(
    labels: Sequence[Sequence[Span]], parents: Sequence[int], spaces: Sequence[int], dots: str = "…"
) -> list[tuple[Span, ...]]:
    """Labels that fit into their spaces. Those below the same parent stay different, if there is room for it."""
    short = [shorter_spans(label, space, dots) for label, space in zip(labels, spaces, strict=True)]
    equal: dict[tuple[int, str], list[int]] = {}
    for number, (parent, label) in enumerate(zip(parents, short, strict=True)):
        if label != labels[number]:
            equal.setdefault((parent, "".join(text for text, _ in label)), []).append(number)
    for numbers in equal.values():
        if len(numbers) > 1:
            _distinguish(labels, short, numbers, dots)
    return short


def _distinguish(
    labels: Sequence[Sequence[Span]], short: list[tuple[Span, ...]], numbers: list[int], dots: str
) -> None:
    """Replaces the shortened names of labels that look the same, if their names differ."""
    first = labels[numbers[0]]
    place = max(range(len(first)), key=lambda place: text_width(first[place].text))
    names = {number: labels[number][place].text for number in numbers if place < len(labels[number])}
    if len(set(names.values())) < 2:
        return
    unique = list(dict.fromkeys(names.values()))
    space = text_width(short[numbers[0]][place].text)
    renamed = dict(zip(unique, with_difference(unique, space, dots), strict=True))
    for number, name in names.items():
        spans = list(short[number])
        spans[place] = spans[place]._replace(text=renamed[name])
        short[number] = tuple(spans)
