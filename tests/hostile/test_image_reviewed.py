"""What a review of `lw.image` found."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leafwise as lw
from leafwise.cli import main
from leafwise.inspect.image import grids
from leafwise.render import text_of
from leafwise.render.terminal import Terminal

# -- groups ------------------------------------------------------------------------------------------------


def by_hand(layer: nn.ConvTranspose2d) -> torch.Tensor:
    """The filters of a transposed convolution: for each output, what leads to it from the inputs of its group."""
    ins, outs = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    weight = layer.weight.detach()
    return torch.stack(
        [weight[group * ins : (group + 1) * ins, out] for group in range(layer.groups) for out in range(outs)]
    )


def grouped() -> nn.ConvTranspose2d:
    layer = nn.ConvTranspose2d(8, 16, 3, groups=4)
    layer.weight.data[2:4, 1] = 0  # the second group's second output
    return layer


def test_a_transposed_convolution_with_groups_has_the_filters_it_has() -> None:
    layer = grouped()
    picture = lw.image(layer, "weight")
    assert "weight 8×4×3×3 float32 · 16 filters of 3×3, 2 inputs each · 1 filter all zero (5) · " in picture.caption
    plain = nn.Conv2d(2, 16, 3)
    plain.weight.data = by_hand(layer)
    np.testing.assert_array_equal(picture.cells, lw.image(plain, "weight").cells)
    assert "1 row all zero (5)" in lw.image(layer, "weight", style="norms").caption
    matrix = lw.image(layer, "weight", style="matrix")
    np.testing.assert_array_equal(matrix.cells, by_hand(layer).flatten(1).numpy())
    assert "16 rows, 18 columns ('out' down, the others across, flattened)" in matrix.caption
    np.testing.assert_array_equal(
        lw.image(layer, "weight", style="strip").cells, layer.weight.detach().reshape(1, -1).numpy()
    )


@pytest.mark.parametrize("band", [1, 7, 20, 100])
def test_groups_are_read_in_bands(band: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = grouped()
    wanted = {style: lw.image(layer, "weight", style=style).cells for style in ("filters", "matrix", "norms")}
    monkeypatch.setattr(grids, "BAND", band)
    for style, cells in wanted.items():
        np.testing.assert_allclose(lw.image(layer, "weight", style=style).cells, cells)  # type: ignore[arg-type]


def test_groups_by_their_norms_and_depthwise() -> None:
    layer = nn.ConvTranspose2d(32, 64, 3, groups=4)
    norms = lw.image(layer, "weight", size=64)
    np.testing.assert_allclose(norms.cells, by_hand(layer).double().flatten(2).norm(dim=2).numpy())
    depthwise = lw.image(nn.ConvTranspose2d(6, 6, 3, groups=6), "weight")
    assert "6 filters of 3×3 · " in depthwise.caption
    one = nn.ConvTranspose2d(8, 12, 1, groups=2)
    np.testing.assert_array_equal(lw.image(one, "weight").cells, by_hand(one).flatten(1).numpy())


def test_a_file_that_does_not_know_its_groups_says_so(tmp_path: Path) -> None:
    path = lw.save(grouped(), tmp_path / "net.safetensors")
    assert "(as of one group: nothing says how many)" in lw.image(path, "weight").caption
    assert "group" not in lw.image(nn.ConvTranspose2d(8, 4, 3), "weight").caption
    assert "group" not in lw.image(lw.save(nn.Conv2d(8, 4, 3), tmp_path / "conv.safetensors"), "weight").caption


# -- sizes -------------------------------------------------------------------------------------------------


def test_tiles_that_are_few_but_large_are_binned() -> None:
    mask = lw.image(torch.ones(1, 1, 4096, 4096).tril())
    assert mask.cells.shape == (2048, 2048)
    np.testing.assert_array_equal(mask.cells, np.tril(np.ones((2048, 2048))))
    assert "1 filter of 4096×4096 · each cell the largest in magnitude of 2×2 · " in mask.caption
    several = torch.zeros(3, 3, 600, 500)
    several[2, 1, 599, 499] = -7
    several[0, 0, 0, 0] = 1
    picture = lw.image(several, size=512)
    assert max(picture.width, picture.height) <= 512
    assert (picture.cells == -7).sum() == (picture.cells == 1).sum() == 1
    assert "1 filter all zero (1)" in picture.caption
    assert "too many" not in picture.caption
    assert "too many to draw" in lw.image(torch.ones(64, 64, 20, 20), size=512).caption


@pytest.mark.parametrize("shape", [(2, 3, 70, 90), (1, 7, 40, 33), (3, 2, 5, 40, 50), (2, 2, 400)])
@pytest.mark.parametrize("band", [1, 50, 999])
def test_bands_change_nothing_in_binned_tiles(shape: tuple[int, ...], band: int, monkeypatch: Any) -> None:
    array = np.random.default_rng(0).normal(size=shape)
    if band == 1 and array.size > 10_000:
        array = array[:, :1]
    whole = lw.image(array, style="filters", size=256)
    monkeypatch.setattr(grids, "BAND", band)
    cut = lw.image(array, style="filters", size=256)
    np.testing.assert_array_equal(cut.cells, whole.cells)
    assert cut.caption == whole.caption
    assert abs(whole.cells).max() == abs(array).max()


def test_a_table_in_a_batch_of_one_is_a_matrix() -> None:
    table = torch.randn(1, 400, 96)
    picture = lw.image(table)
    np.testing.assert_array_equal(picture.cells, table[0].numpy())
    assert "400 rows, 96 columns · " in picture.caption


@pytest.mark.parametrize("shape", [(100_000, 8), (2, 360), (360, 2), (30, 5, 6, 1), (5, 30, 1, 60), (3, 4000)])
@pytest.mark.parametrize("size", [None, 16, 100, 333])
def test_no_picture_is_a_sliver(shape: tuple[int, ...], size: int | None) -> None:
    picture = lw.image(np.ones(shape, np.float32), size=size)
    short, long = sorted((picture.width, picture.height))
    assert short >= min(48, long // 4)
    assert long <= (size or 2048)
    header = picture.png()[16:24]
    assert (int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")) == (picture.width, picture.height)


def test_filters_in_three_dimensions_are_not_mostly_gaps() -> None:
    picture = lw.image(nn.Conv3d(2, 60, 3), "weight")
    (down, across), zoom = picture.gaps, picture.zoom[0]
    assert across <= down <= 3 * across
    assert down <= max(1, zoom // 2)
    assert down < (3 * zoom + down) / 5 or zoom == 1


# -- values ------------------------------------------------------------------------------------------------


def test_norms_that_are_too_large_for_a_number_are_counted() -> None:
    rows = torch.full((3, 4), 1.7e308, dtype=torch.float64)
    assert lw.image(rows, style="norms").caption.endswith(" · 3 infinite")
    rows[0] = 1
    rows[1, 0] = torch.inf  # a value that is infinite is counted as that, and its norm not once more
    assert lw.image(rows, style="norms").caption.endswith("0 … 2 · 2 infinite")
    filters = torch.full((20, 20, 3, 3), 1.7e308, dtype=torch.float64)
    assert lw.image(filters, size=32).caption.endswith(" · 400 infinite")
    assert "? not finite" in lw.image(rows, style="norms").text()


# -- words -------------------------------------------------------------------------------------------------


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
    assert "\x1b[1mw 300×300 float64\x1b[0m" in text  # neighbours in one style are one


def test_the_legend_is_right_where_nothing_is_on_the_scale() -> None:
    zeros = lw.image({"w": np.zeros((2, 2))}).text()
    assert "≥" not in zeros
    assert zeros.endswith("0 … 0\n· 0")
    missing = lw.image({"w": np.full((2, 2), np.nan)}).text()
    assert "≥" not in missing
    assert missing.endswith("0 … 0\n? not finite\n4 NaN")


def test_paths_can_be_pasted() -> None:
    state = {"": torch.ones(2), "a\nb": torch.zeros(3), "c": {"x.y": torch.ones(2), '"': torch.ones(3)}}
    with pytest.raises(lw.QueryError) as error:
        lw.image(state)
    assert "by its path: '\"\"', '\"a\\\\nb\"', " in str(error.value)
    for name in re.findall(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", str(error.value)):
        lw.image(state, eval(name))
    with pytest.raises(lw.WalkError, match=r"""no picture of '"a\*b"': it is a scalar"""):
        lw.image({"a*b": torch.tensor(1.0)})


# -- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"limit": 10**400}, "limit= is a positive number, .* not a number of 1,329 bits"),
        ({"limit": 10**5000}, "limit= is a positive number"),
        ({"size": 10**5000}, "size= is a whole number of pixels"),
        ({"size": True}, "size= is a whole number of pixels from 16 to 8192, not True"),
        ({"size": "64"}, "size= is a whole number of pixels"),
    ],
)
def test_options_of_odd_kinds(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(lw.QueryError, match=reason):
        lw.image(torch.ones(2, 2), **options)


def test_whole_numbers_of_any_kind_are_taken() -> None:
    picture = lw.image(np.ones((100, 100)), size=np.int64(64), limit=np.float32(2))  # type: ignore[arg-type]
    assert picture.width == 50
    assert picture.text(width=np.int64(10)) == picture.text(width=10)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [5, None, 2.5, ["a.png"]])
def test_a_picture_is_written_to_a_path(path: Any) -> None:
    with pytest.raises(lw.QueryError, match=r"written to a path such as 'filters.png', not "):
        lw.image(torch.ones(2, 2)).save(path)


@pytest.mark.parametrize("path", ["a\0.png", "\ud800.png", "a" * 300 + ".png"])
def test_a_path_that_no_file_can_have(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(lw.FileError, match=r"cannot write '"):
        lw.image(torch.ones(2, 2)).save(path)
    assert list(tmp_path.iterdir()) == []


def test_a_sparse_gradient_says_what_to_type() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    wanted = (
        r'its gradient is sparse; lw.image\(leaf.grad.to_dense\(\)\) draws it, with leaf = lw.tree\(…\)\["weight"\]'
    )
    with pytest.raises(lw.WalkError, match=wanted):
        lw.image(table, "weight", of="grad")
    leaf = lw.tree(table)["weight"]
    assert lw.image(leaf.grad.to_dense()).cells.sum() == 8
    with pytest.raises(lw.WalkError, match=r"lw.image\(array.grad.to_dense\(\)\)"):
        lw.image(table.weight, of="grad")
    with pytest.raises(lw.WalkError, match=r"it is sparse; lw.image\(array.to_dense\(\)\)"):
        lw.image(torch.eye(3).to_sparse())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--limit", "0"], "--limit is a positive number"),
        (["--size", "9999999"], "--size is a whole number of pixels"),
        (["--style", "nice"], "--style is one of filters"),
        (["--style", "filters"], "filters have from 3 to 5 axes"),
    ],
)
def test_a_shell_is_told_of_its_own_options(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "w.npy", np.ones((2, 2)))
    assert main(["image", str(tmp_path / "w.npy"), *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "=" not in error
