"""A small font for titles and scales in a PNG, because the standard library has none: letters of 5×7 pixels."""

from functools import cache
from typing import Any

import numpy as np

from leafwise.core.path import escape

ADVANCE, HEIGHT = 6, 9  # columns from one letter to the next, and rows of a line; letters have a row above and below
_WIDTH, _ROWS = 5, 8

# The rows of each character from top to bottom, each as two hexadecimal digits, of which five bits are pixels. The
# eighth row is below the line, for letters such as g.
_GLYPHS = {
    " ": "0000000000000000", "!": "0404040404000400", '"': "0a0a0a0000000000", "#": "0a0a1f0a1f0a0a00",
    "$": "040f140e051e0400", "%": "1819020408130300", "&": "0c12140815120d00", "'": "0404080000000000",
    "(": "0204080808040200", ")": "0804020202040800", "*": "00150e1f0e150000", "+": "0004041f04040000",
    ",": "00000000000c0408", "-": "0000001f00000000", ".": "00000000000c0c00", "/": "0001020408100000",
    "0": "0e11131519110e00", "1": "040c040404040e00", "2": "0e11010204081f00", "3": "1f02040201110e00",
    "4": "02060a121f020200", "5": "1f101e0101110e00", "6": "0608101e11110e00", "7": "1f01020408080800",
    "8": "0e11110e11110e00", "9": "0e11110f01020c00", ":": "000c0c000c0c0000", ";": "000c0c00000c0408",
    "<": "0204081008040200", "=": "00001f001f000000", ">": "0804020102040800", "?": "0e11010204000400",
    "@": "0e11010d15150e00", "A": "0e11111f11111100", "B": "1e11111e11111e00", "C": "0e11101010110e00",
    "D": "1c12111111121c00", "E": "1f10101e10101f00", "F": "1f10101e10101000", "G": "0e11101711110f00",
    "H": "1111111f11111100", "I": "0e04040404040e00", "J": "0702020202120c00", "K": "1112141814121100",
    "L": "1010101010101f00", "M": "111b151511111100", "N": "1111191513111100", "O": "0e11111111110e00",
    "P": "1e11111e10101000", "Q": "0e11111115120d00", "R": "1e11111e14121100", "S": "0f10100e01011e00",
    "T": "1f04040404040400", "U": "1111111111110e00", "V": "11111111110a0400", "W": "1111111515150a00",
    "X": "11110a040a111100", "Y": "1111110a04040400", "Z": "1f01020408101f00", "[": "0e08080808080e00",
    "\\": "0010080402010000", "]": "0e02020202020e00", "^": "040a110000000000", "_": "0000000000001f00",
    "`": "0804020000000000", "a": "00000e010f110f00", "b": "1010161911111e00", "c": "00000e1010110e00",
    "d": "01010d1311110f00", "e": "00000e111f100e00", "f": "0609081c08080800", "g": "00000f11110f010e",
    "h": "1010161911111100", "i": "04000c0404040e00", "j": "020006020202120c", "k": "1010121418141200",
    "l": "0c04040404040e00", "m": "00001a1515111100", "n": "0000161911111100", "o": "00000e1111110e00",
    "p": "00001e11111e1010", "q": "00000f11110f0101", "r": "0000161910101000", "s": "00000e100e011e00",
    "t": "08081c0808090600", "u": "0000111111130d00", "v": "00001111110a0400", "w": "0000111115150a00",
    "x": "0000110a040a1100", "y": "00001111110f010e", "z": "00001f0204081f00", "{": "0204040804040200",
    "|": "0404040404040400", "}": "0804040204040800", "~": "0000081502000000", "×": "00110a040a110000",
    "…": "0000000000150000", "·": "0000000c0c000000", "→": "0004021f02040000",
}  # fmt: skip


@cache
def _glyph(char: str) -> Any:
    rows = bytes.fromhex(_GLYPHS[char])
    return np.array([[row >> (_WIDTH - 1 - bit) & 1 for bit in range(_WIDTH)] for row in rows], bool)


def writable(text: str) -> str:
    """Text with characters that the font lacks written as escapes.

    >>> print(writable("2×3 权"))
    2×3 \\u6743
    """
    return "".join(
        char if char in _GLYPHS else char.encode("ascii", "backslashreplace").decode("ascii") for char in escape(text)
    )


def line_of(text: str, zoom: int) -> Any:
    """A line of text as pixels: True where there is ink."""
    pixels = np.zeros((HEIGHT, max(ADVANCE * len(text), 1)), bool)
    for place, char in enumerate(text):
        pixels[1 : 1 + _ROWS, ADVANCE * place : ADVANCE * place + _WIDTH] = _glyph(char)
    return pixels.repeat(zoom, 0).repeat(zoom, 1)
