"""Pictures of leaves: as PNG, in characters, in color, for a notebook, as plain data."""

import io
import json
import math
import re
import struct
import sys
import zlib
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leafwise as lw
from leafwise.render import text_of
from leafwise.render.pictures.scale import EMPTY, GAP, INFINITE, NAN, STEPS, numbers, palette
from leafwise.render.terminal import Terminal

EVIL = "<script>alert(1)</script>\x1b[31m\u202e"


def decoded(data: bytes) -> Any:
    """The pixels of a PNG as red, green, blue and alpha; also checks every checksum."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks: dict[bytes, bytes] = {}
    at = 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length) == (zlib.crc32(kind + content),)
        chunks[kind] = content
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"]
    width, height, *kind_of = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert kind_of == [8, 3, 0, 0, 0]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any()
    colors = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    alpha = np.frombuffer(chunks[b"tRNS"], np.uint8)
    assert len(alpha) == len(colors) <= 256
    return np.dstack([colors[rows[:, 1:]], alpha[rows[:, 1:]]])


def color(number: int) -> list[int]:
    return [*palette()[number], 0 if number == EMPTY else 255]


LOW, ZERO, HIGH = 0, STEPS, 2 * STEPS


def test_a_png_has_the_colors_of_the_values() -> None:
    array = np.array([[1.0, -1.0, 0.0], [math.nan, math.inf, -math.inf]])
    picture = lw.image(array)
    pixels = decoded(picture.png(bare=True))
    assert pixels.shape == (picture.height, picture.width, 4) == (64, 96, 4)
    wanted = [[HIGH, LOW, ZERO], [NAN, INFINITE, INFINITE]]
    for row, numbers_of_row in enumerate(wanted):
        for column, number in enumerate(numbers_of_row):
            cell = pixels[row * 32 : row * 32 + 32, column * 32 : column * 32 + 32]
            assert (cell == color(number)).all()


def test_the_scale_is_symmetric_about_zero() -> None:
    values = np.linspace(-3, 3, 1_001)
    up, down = numbers(values, 3.0).astype(int), numbers(-values, 3.0).astype(int)
    np.testing.assert_array_equal(up - STEPS, STEPS - down)
    assert (np.diff(up) >= 0).all()
    assert up[500] == ZERO
    assert numbers(np.array([9.0, -9.0]), 3.0).tolist() == [HIGH, LOW]
    assert numbers(np.zeros(2), 0.0).tolist() == [ZERO, ZERO]
    assert numbers(np.array([1e300, -1.0]), 5e-324).tolist() == [HIGH, LOW]


def test_colors_get_darker_from_zero_on_and_equally_so_on_both_sides() -> None:
    def lightness(red: int, green: int, blue: int) -> float:
        linear = [(one / 255) ** 2.2 for one in (red, green, blue)]
        return float((0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]) ** (1 / 3))

    lights = [lightness(*one) for one in palette()[: 2 * STEPS + 1]]
    below, above = lights[:STEPS][::-1], lights[STEPS + 1 :]
    assert all(a >= b for a, b in zip(lights[STEPS:], lights[STEPS + 1 :], strict=False))
    assert max(abs(a - b) for a, b in zip(below, above, strict=True)) < 0.08
    assert len(set(palette())) == len(palette()) - 1 == 255  # the paper and the transparent color are both white


def test_filters_have_gaps_and_missing_ones_are_transparent() -> None:
    layer = nn.Conv2d(1, 5, 2)
    layer.weight.data = torch.ones(5, 1, 2, 2)
    picture = lw.image(layer, "weight")
    pixels = decoded(picture.png(bare=True))
    zoom, gap = picture.zoom[0], picture.gaps[1]
    tile = 2 * zoom + gap
    assert pixels.shape[:2] == (3 * tile - gap, 2 * tile - gap)
    assert (pixels[: 2 * zoom, : 2 * zoom] == color(HIGH)).all()
    assert (pixels[: 2 * zoom, 2 * zoom : tile] == color(GAP)).all()
    assert (pixels[2 * zoom : tile, : 2 * zoom] == color(GAP)).all()
    assert (pixels[2 * tile :, : 2 * zoom] == color(HIGH)).all()
    assert (pixels[2 * tile :, 2 * zoom :] == color(EMPTY)).all()  # and there is no gap before missing filters
    assert (pixels[2 * tile - gap : 2 * tile, tile:] == color(EMPTY)).all()


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(3, 7, 5), nn.Conv2d(7, 5, 3), nn.Conv3d(2, 5, 3), nn.Conv3d(6, 2, 3), nn.Conv1d(5, 3, 4)],
    ids=str,
)
def test_width_and_height_are_those_of_the_png(layer: nn.Module) -> None:
    for size in (None, 64, 400):
        picture = lw.image(layer, "weight", size=size)
        assert decoded(picture.png(bare=True)).shape[:2] == (picture.height, picture.width)
        assert max(picture.width, picture.height) <= (size or 2048)
    assert 256 <= max(lw.image(layer, "weight").width, lw.image(layer, "weight").height) <= 512


def test_plain_text_is_a_map_of_characters_with_a_legend() -> None:
    array = np.array([[1.0, 0.5, 0.1, -0.5, -1.0, math.nan]])
    picture = lw.image({"w": array})
    assert picture.text(width=70).splitlines() == [
        *["####++++····----====????"] * 2,
        "",
        "w 1×6 float64 · 6 values",
        "-1 … 1",
        "= ≤ -0.6   - ≤ -0.2   · about 0   + ≥ 0.2   # ≥ 0.6   ? not finite",
        "1 NaN",
    ]
    assert f"{picture}".startswith("#")
    assert "\x1b" not in picture.text()
    with pytest.raises(lw.QueryError, match="width= takes a whole number of at least 1, not 0"):
        picture.text(width=0)


def test_filters_are_drawn_whole_and_as_many_as_there_is_room_for() -> None:
    layer = nn.Conv2d(1, 40, 5)
    layer.weight.data = torch.ones(40, 1, 5, 5)
    lines = lw.image(layer, "weight").text(width=20).splitlines()
    assert lines[:7] == [*["##### ##### #####"] * 5, "", "##### ##### #####"]
    assert "the first 18 of 40 filters; a PNG shows everything" in " ".join(lines)
    table = lw.image(nn.Conv2d(9, 3, 5), "weight").text(width=20)
    assert "the first 3 of 3 filters, 3 of 9 inputs; a PNG shows everything" in table.replace("\n", " ")
    narrow = lw.image(nn.Conv2d(1, 3, 30), "weight").text(width=20).splitlines()
    assert max(map(len, narrow[: narrow.index("")])) <= 20
    high = lw.image(nn.Conv2d(1, 3, (90, 7)), "weight").text(width=20).splitlines()
    assert high.index("") <= 40
    last = lw.image(layer, "weight").text(width=400).splitlines()
    assert all(len(line) <= 400 for line in last)


@pytest.mark.parametrize("shape", [(1_000, 3), (3, 1_000), (200, 300), (2, 2), (1, 5_000), (50_000,)])
def test_text_fits_the_width_that_is_asked_for(shape: tuple[int, ...]) -> None:
    picture = lw.image({"w": np.random.default_rng(0).normal(size=shape)})
    for width in (1, 7, 80):
        lines = picture.text(width=width).splitlines()
        drawn = lines[: lines.index("")]
        assert 0 < max(map(len, lines)) <= width
        assert len(drawn) <= 40
    colored = text_of(picture, terminal=Terminal(color=True, width=30)).splitlines()
    drawn = colored[: colored.index("")]
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in drawn) <= 30
    assert len(drawn) <= 40


def test_a_smaller_map_keeps_the_largest_values() -> None:
    array = np.zeros((400, 400))
    array[200, 300] = -5
    text = lw.image({"w": array}).text()
    assert text.count("=", 0, text.index("w 400")) == 2  # two characters, which are one cell
    assert "scaled down, 10×10 cells in one; a PNG shows everything" in text


def test_a_terminal_gets_half_blocks_in_color() -> None:
    array = np.array([[1.0, 1.0], [-1.0, -1.0], [0.0, math.nan]])
    text = text_of(lw.image({"w": array}), terminal=Terminal(color=True, width=3))
    red, green, blue = palette()[HIGH]
    upper = f"48;2;{red};{green};{blue}"
    red, green, blue = palette()[LOW]
    first, second = text.splitlines()[:2]
    assert first == f"\x1b[0;38;2;{red};{green};{blue};{upper}m▄▄\x1b[0m"  # neighbors of the same color share one code
    assert second.count("▀") == 2  # the lower half of the last line keeps the terminal's color
    assert "48;2" not in second
    assert "blue is negative, red positive" in text_of(lw.image(array), terminal=Terminal(color=True, width=80))


def test_in_a_terminal_gaps_keep_its_color() -> None:
    layer = nn.Conv2d(1, 3, 2)
    layer.weight.data = torch.ones(3, 1, 2, 2)
    text = text_of(lw.image(layer, "weight"), terminal=Terminal(color=True, width=5)).splitlines()
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text[:3]] == ["▄▄ ▄▄", "▄▄   ", "▀▀   "]


@pytest.mark.parametrize(
    "terminal", [Terminal(), Terminal(width=40), Terminal(color=True, width=40, ascii=True), Terminal(ascii=True)]
)
def test_a_picture_without_color_or_blocks_is_plain_text(terminal: Terminal) -> None:
    text = text_of(lw.image({"w": np.eye(3) - 0.5}), terminal=terminal)
    drawn = text[: text.index("\n\n")]
    assert set(drawn) <= set("=-·.+#\n")
    assert "\x1b[0;" not in text
    if terminal.ascii:
        assert text.isascii()
        assert "." in text_of(lw.image(np.zeros((2, 2))), terminal=terminal)
    if terminal.width:
        assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in text.splitlines()) <= terminal.width


def test_print_is_plain_when_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert "\x1b" not in str(lw.image(np.eye(3)))


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name == "src"]


def test_a_notebook_gets_a_figure_with_everything_in_it() -> None:
    array = np.array([[1.0, -2.0], [math.nan, math.inf]])
    picture = lw.image({"w": array}, limit=1.5)
    html = picture._repr_html_()
    tags = _Tags()
    tags.feed(html)
    assert tags.tags[:3] == ["figure", "style", "img"]
    assert "script" not in tags.tags
    from base64 import b64decode

    (source,) = tags.sources
    assert source.startswith("data:image/png;base64,")
    assert b64decode(source.partition(",")[2]) == picture.png(bare=True)
    assert "image-rendering:pixelated" in html
    for words in ("-1.5</span>", "1.5</span>", "1 beyond", "1 NaN", "1 infinite", "linear-gradient"):
        assert words in html


def test_names_are_escaped_wherever_they_are_shown() -> None:
    picture = lw.image({EVIL: np.eye(3)}, None)
    html = picture._repr_html_()
    tags = _Tags()
    tags.feed(html)
    assert "script" not in tags.tags
    assert "&lt;script&gt;" in html
    for shown in (html, picture.text(), picture.caption, str(picture)):
        assert "\x1b" not in shown
        assert "\u202e" not in shown
    colored = text_of(picture, terminal=Terminal(color=True, width=200))
    assert "\x1b[31m" not in colored


def test_plain_data_has_what_is_drawn() -> None:
    picture = lw.image({"w": np.array([[1.0, math.nan], [math.inf, -2.0]])})
    data = json.loads(json.dumps(picture.json(), allow_nan=False))
    assert data["cells"] == [[1.0, None], [None, -2.0]]
    assert {name: data[name] for name in ("path", "shape", "dtype", "of", "style", "limit", "nan", "infinite")} == {
        "path": "w", "shape": [2, 2], "dtype": "float64", "of": "value", "style": "matrix", "limit": 2.0, "nan": 1,
        "infinite": 1,
    }  # fmt: skip
    assert (data["width"], data["height"], data["rows"], data["columns"]) == (64, 64, 2, 2)
    assert data["caption"] == picture.caption
    assert lw.image(nn.Embedding(3, 2)).json()["cells"][1][1] is None  # beyond the last row


@pytest.mark.parametrize("width", [1, 9, 30, 60, 80])
@pytest.mark.parametrize("only_ascii", [False, True])
def test_no_line_is_wider_than_asked_for(width: int, only_ascii: bool) -> None:
    weight = torch.randn(40, 9, 5, 5)
    weight[[3, 7, 9, 30]] = 0
    weight[0, 0, 0, 0] = torch.nan
    picture = lw.image({"層" * 5 + ".weight_that_has_a_rather_long_name_" * 3: weight}, limit=0.1)
    for terminal in (Terminal(ascii=only_ascii), Terminal(color=True, width=width, ascii=only_ascii)):
        text = re.sub(r"\x1b\[[0-9;]*m", "", text_of(picture, terminal=terminal, width=width))
        assert max(sum(1 + (char == "層") for char in line) for line in text.splitlines()) <= max(width, 2)
        if width > 1:
            assert "…\n" not in text.replace("-0.1 …\n", "")
            caption = "".join(text.split("\n\n")[-1].split())
            assert "4filtersallzero(3,7,9,...)" in caption.replace("…", "...")
            assert ".weight_that_has_a_rather_long_name_" * 3 in caption


def test_a_terminal_gets_the_whole_caption() -> None:
    picture = lw.image({"w": np.zeros((300, 300))})
    text = text_of(picture, terminal=Terminal(color=True, width=30))
    assert "…\n" not in text
    assert "\x1b[1mw 300×300 float64\x1b[0m" in text  # neighbors of the same style are joined


def test_the_legend_is_right_when_no_value_is_on_the_scale() -> None:
    zeros = lw.image({"w": np.zeros((2, 2))}).text()
    assert "≥" not in zeros
    assert zeros.endswith("0 … 0\n· 0")
    missing = lw.image({"w": np.full((2, 2), np.nan)}).text()
    assert "≥" not in missing
    assert missing.endswith("0 … 0\n? not finite\n4 NaN")
