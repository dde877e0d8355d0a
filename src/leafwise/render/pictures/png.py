"""A minimal PNG writer, for pictures with a palette."""

import struct
import zlib
from collections.abc import Iterable, Sequence


def png(width: int, height: int, rows: Iterable[bytes], palette: Sequence[tuple[int, int, int]]) -> bytes:
    """A PNG with 8 bits per pixel, each the index of a color; the last color is transparent."""
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    pressed = zlib.compressobj(9)
    data = b"".join(pressed.compress(b"\0" + row) for row in rows) + pressed.flush()  # filter 0: none
    colors = bytes(channel for color in palette for channel in color)
    alpha = b"\xff" * (len(palette) - 1) + b"\0"
    parts = ((b"IHDR", header), (b"PLTE", colors), (b"tRNS", alpha), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
