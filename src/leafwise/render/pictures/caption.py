"""The caption of an image in a terminal, wrapped to its width."""

from typing import TYPE_CHECKING

from leafwise.core.results.outline import Doc, Span, Style
from leafwise.render.pictures.characters import FAR, NEAR
from leafwise.render.shorten import width_of
from leafwise.render.terminal import Terminal
from leafwise.render.text import text

if TYPE_CHECKING:
    from leafwise.inspect.image.picture import Image


def caption(image: "Image", left_out: str, *, colored: bool, width: int, ascii_only: bool) -> Doc:
    """The caption of an image, wrapped to a width; an image without color gets a legend."""
    footer: list[tuple[Span, ...]] = []

    def add(pieces: list[Span], gap: str = " ") -> None:  # a line, which may be wrapped between its pieces
        footer.extend(_wrapped(_spelled(pieces, ascii_only), gap, width))

    add([*_words(image.title, "name"), *(word for note in image.grid.notes[:1] for word in _words(f"· {note}"))])
    for note in image.grid.notes[1:]:
        add(_words(note, "dim"))
    for note in image.grid.dead:
        add(_words(note, "warn"))
    if left_out:
        add(_words(f"{left_out}; a PNG shows everything", "dim"))
    add(_words(image.scale_text))
    if not colored:
        add([Span(sign, "dim") for sign in _legend(image)], "   ")
    elif image.signed:
        add(_words("blue is negative, red positive", "dim"))
    if image.nonfinite_texts:
        add(_words(", ".join(image.nonfinite_texts), "warn"))
    return Doc([], footer)


def _legend(image: "Image") -> list[str]:
    """The meaning of each character."""
    nonfinite = ["? not finite"] if image.nonfinite_texts else []
    if not image.limit:  # only zeros, or no finite value
        return ["· 0", *nonfinite] if image.finite[~image.grid.empty()].any() else nonfinite
    near, far = f"{image.limit * NEAR:.3g}", f"{image.limit * FAR:.3g}"
    negative = [f"= ≤ -{far}", f"- ≤ -{near}"] if image.signed else []
    return [*negative, "· about 0", f"+ ≥ {near}", f"# ≥ {far}", *nonfinite]


def _words(words: str, style: Style = "") -> list[Span]:
    return [Span(word, style) for word in words.split(" ")]


def _spelled(pieces: list[Span], ascii_only: bool) -> list[Span]:
    """The pieces as they will be printed, since their ASCII form may be wider."""
    plain = Terminal(ascii=ascii_only)
    return [piece._replace(text=text(Doc([], [(piece,)]), plain)) for piece in pieces]


def _wrapped(pieces: list[Span], gap: str, width: int) -> list[tuple[Span, ...]]:
    """Pieces wrapped into lines of at most `width`; a piece that is too wide for a line is broken anywhere."""
    lines: list[list[Span]] = [[]]
    for piece in (part for whole in pieces for part in _broken(whole, width)):
        line = lines[-1]
        if line and width_of(line) + len(gap) + width_of([piece]) > width:
            lines.append([piece])
        elif line and line[-1].style == piece.style:
            line[-1] = Span(line[-1].text + gap + piece.text, piece.style)
        else:
            line += [Span(gap), piece] if line else [piece]
    return [tuple(line) for line in lines if line]


def _broken(piece: Span, width: int) -> list[Span]:
    """A piece cut into parts no wider than a line."""
    parts = [""]
    for char in piece.text:
        if parts[-1] and width_of([Span(parts[-1] + char)]) > width:
            parts.append("")
        parts[-1] += char
    return [Span(part, piece.style) for part in parts]
