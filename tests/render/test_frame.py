"""The title and the scale of a PNG."""

import string

import numpy as np
import pytest
import torch
from tests.render.test_image import decoded

import leafwise as lw
from leafwise.render.pictures.font import ADVANCE, HEIGHT, line_of, writable
from leafwise.render.pictures.scale import INFINITE, NAN, STEPS, palette

PAPER = [255, 255, 255]


def read(pixels: np.ndarray, zoom: int = 2) -> list[str]:
    """The lines of text in a picture, read by comparing each place with every letter."""
    letters = {
        line_of(char, zoom).tobytes(): char for char in string.digits + string.ascii_letters + string.punctuation + "×…"
    }
    ink = (pixels[:, :, :3] == 0).all(2)
    high, wide = HEIGHT * zoom, ADVANCE * zoom
    lines = []
    top = 8
    while top + high <= len(ink):
        row = ink[top : top + high, 8:]
        cells = [row[:, at : at + wide].copy() for at in range(0, row.shape[1] - wide, wide)]
        text = "".join(" " if not cell.any() else letters.get(cell.tobytes(), "?") for cell in cells).rstrip()
        if text and "?" not in text:
            lines.append(text)
            top += high
        else:
            top += 1
    return lines


def test_every_printable_character_has_its_own_letter() -> None:
    drawn = {char: line_of(char, 1).tobytes() for char in string.printable if char.isprintable()}
    assert len(set(drawn.values())) == len(drawn) == 95
    assert writable("a→b × 权\n") == "a→b × \\u6743\\n"


def test_a_png_has_the_name_shape_and_dtype_of_the_leaf_as_its_title() -> None:
    torch.manual_seed(0)
    picture = lw.image({"layers.0.attn.weight": torch.randn(24, 40)})
    pixels = decoded(picture.png())
    lines = read(pixels)
    assert lines[0] == "layers.0.attn.weight 24×40 float32"
    assert lines[1] == "24 rows, 40 columns"
    assert pixels.shape[1] == picture.width + 16


def test_a_png_contains_the_picture_itself_unchanged() -> None:
    torch.manual_seed(0)
    picture = lw.image({"w": torch.randn(24, 40)})
    bare, whole = decoded(picture.png(bare=True)), decoded(picture.png())
    high, wide = bare.shape[:2]
    assert (high, wide) == (picture.height, picture.width)
    places = [top for top in range(len(whole) - high) if (whole[top : top + high, 8 : 8 + wide] == bare).all()]
    assert len(places) == 1


@pytest.mark.parametrize(("signed", "first"), [(True, 0), (False, STEPS)])
def test_the_scale_runs_between_its_two_numbers(signed: bool, first: int) -> None:
    values = torch.linspace(-2.5 if signed else 0.0, 2.5, 400).reshape(20, 20)
    picture = lw.image({"w": values})
    below = decoded(picture.png())[-8 - 24 :, 8:-8]
    row = below[12, :, :3].tolist()
    low, high = line_of("-2.5 " if signed else "0 ", 2).shape[1], line_of(" 2.5", 2).shape[1]
    bar = row[low : len(row) - high]
    assert bar[0] == [*palette()[first]]
    assert bar[-1] == [*palette()[2 * STEPS]]
    ink = (below[:, :, :3] == 0).all(2)
    assert (ink[3:21, :low] == line_of("-2.5 " if signed else "0 ", 2)).all()
    assert (ink[3:21, -high:] == line_of(" 2.5", 2)).all()


def test_cells_that_are_not_finite_are_explained_below_the_scale() -> None:
    values = torch.randn(30, 30)
    values[0, 0], values[1, 1], values[2] = float("nan"), float("inf"), 0
    pixels = decoded(lw.image({"w": values}, limit=0.5).png())
    lines = read(pixels)
    assert any(line.endswith("beyond the scale") for line in lines)
    assert "1 row all zero (2)" in lines
    swatches = pixels[-200:, 8:24, :3]
    for number in (NAN, INFINITE):
        assert (swatches == palette()[number]).all(2).sum() >= 256


@pytest.mark.parametrize("shape", [(3,), (1, 500), (500, 1), (2, 2)])
def test_a_thin_picture_has_room_for_its_title(shape: tuple[int, ...]) -> None:
    lines = read(decoded(lw.image({"weight": torch.ones(shape)}).png()))
    assert lines[0].startswith("weight ")


def test_a_long_name_goes_on_in_the_next_line_and_a_foreign_one_is_spelled_out() -> None:
    name = "model.diffusion_model.input_blocks.4.1.transformer_blocks.0.attn2.to_out.0.weight"
    lines = read(decoded(lw.image({name: torch.randn(20, 20)}).png()))
    assert "".join(lines).startswith(f"{name} 20×20") or "".join(lines).startswith(f"{name}20×20")
    lines = read(decoded(lw.image({"权重": torch.randn(20, 20)}).png()))
    assert lines[0] == "\\u6743\\u91cd 20×20 float32"
