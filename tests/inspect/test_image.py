"""`lw.image`: which leaf is drawn, and how."""

import math
import re
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.contract import toy
from torch import nn

import leafwise as lw
from leafwise.inspect.image import grids


def counted(*shape: int) -> torch.Tensor:
    """1, 2, 3, …: each value says where it comes from."""
    return torch.arange(1.0, math.prod(shape) + 1).reshape(shape)


def with_weight(layer: nn.Module, weight: torch.Tensor) -> nn.Module:
    layer.weight = nn.Parameter(weight)
    return layer


# -- which leaf --------------------------------------------------------------------------------------------


def test_a_leaf_a_path_a_single_leaf_and_a_bare_array_are_the_same_picture(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 2, bias=False))
    path = tmp_path / "net.safetensors"
    save_file({"0.weight": net[0].weight.detach()}, path)
    wanted = net[0].weight.detach().numpy()
    for picture in (
        lw.image(lw.tree(net)["0.weight"]),
        lw.image(net, "0.weight"),
        lw.image(net),
        lw.image(lw.tree(net)["0"], "weight"),
        lw.image(net[0].weight),
        lw.image(wanted),
        lw.image(path, "0.weight"),
        lw.image({"only": wanted}),
    ):
        np.testing.assert_array_equal(picture.cells, wanted)
        assert picture.style == "matrix"
    assert lw.image(net).path == "0.weight"
    assert lw.image(wanted).path == ""
    assert lw.image(wanted).caption.startswith("2×3 float32 · 2 rows, 3 columns")


def test_a_path_that_is_not_a_leaf_is_an_error_that_lists_leaves_below() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    with pytest.raises(
        lw.PathError, match=r'"0": it is a node, not a leaf; give the path of a leaf: "0.weight", "0.bias"$'
    ):
        lw.image(net, "0")
    with pytest.raises(
        lw.QueryError, match=r'give the path of the leaf to draw: "0.weight", "0.bias", "1.weight" and 1 more'
    ):
        lw.image(net)
    with pytest.raises(lw.PathError, match=r'nothing at "0.wieght"; did you mean "0.weight"'):
        lw.image(net, "0.wieght")
    with pytest.raises(lw.PathError, match=r'cannot draw "step": it is a plain value, not a leaf'):
        lw.image({"step": 3, "w": torch.ones(2)}, "step")
    with pytest.raises(lw.PathError, match=r'cannot draw "1": it is a node, not a leaf; there is no leaf below it'):
        lw.image(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), "1")
    with pytest.raises(lw.QueryError, match=r"there is no leaf to draw"):
        lw.image(nn.ReLU())
    with pytest.raises(lw.QueryError, match=r"cannot look up a path in a Leaf; leave the path out"):
        lw.image(lw.tree(net)["0.weight"], "0.weight")
    with pytest.raises(lw.WalkError, match=r"cannot walk builtins.int"):
        lw.image(3)


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (torch.tensor(3.0), "cannot draw the array: it is a scalar"),
        (torch.empty(3, 0), r"it is empty \(shape 3×0\)"),
        (torch.ones(2, 2, dtype=torch.complex64), "its dtype is complex64; draw its real"),
        (nn.Linear(2, 2, bias=False, device="meta"), 'cannot draw "weight": a meta tensor has a shape but no values'),
        (nn.LazyLinear(2, bias=False), "a lazy layer gets its shape"),
        (np.ma.masked_array(np.ones((2, 2)), mask=False), "it is a masked array"),
        (torch.eye(3).to_sparse(), "sparse"),
        (np.array([["a", "b"]]), "there are no statistics of str"),
    ],
)
def test_what_cannot_be_drawn_is_an_error_that_says_why(x: Any, reason: str) -> None:
    with pytest.raises(lw.WalkError, match=reason):
        lw.image(x)


def test_the_paths_that_an_error_lists_can_be_pasted() -> None:
    state = {"": torch.ones(2), "a\nb": torch.zeros(3), "c": {"x.y": torch.ones(2), '"': torch.ones(3)}}
    with pytest.raises(lw.QueryError) as error:
        lw.image(state)
    assert "of the leaf to draw: '\"\"', '\"a\\\\nb\"', " in str(error.value)
    for name in re.findall(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", str(error.value)):
        lw.image(state, eval(name))
    with pytest.raises(lw.WalkError, match=r"""cannot draw '"a\*b"': it is a scalar"""):
        lw.image({"a*b": torch.tensor(1.0)})


def test_a_sparse_gradient_says_what_to_type() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    wanted = r'its gradient is sparse; use lw.image\(leaf.grad.to_dense\(\)\) with leaf = lw.tree\(…\)\["weight"\]'
    with pytest.raises(lw.WalkError, match=wanted):
        lw.image(table, "weight", of="grad")
    leaf = lw.tree(table)["weight"]
    assert lw.image(leaf.grad.to_dense()).cells.sum() == 8
    with pytest.raises(lw.WalkError, match=r"lw.image\(array.grad.to_dense\(\)\)"):
        lw.image(table.weight, of="grad")
    with pytest.raises(lw.WalkError, match=r"it is sparse; use lw.image\(array.to_dense\(\)\)"):
        lw.image(torch.eye(3).to_sparse())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"of": "gradient"}, 'of= takes "value" or "grad"'),
        ({"limit": 0}, "limit= takes a positive number"),
        ({"limit": math.nan}, "limit= takes a positive number"),
        ({"limit": True}, "limit= takes a positive number"),
        ({"size": 4}, "size= takes a whole number of pixels from 16 to 8192, not 4"),
        ({"size": 64.0}, "size= takes a whole number"),
        ({"style": "heat"}, "style= takes one of filters, matrix, norms, strip, not 'heat'"),
        ({"style": "filters"}, "the filters style needs 3 to 5 axes .* is 2×2"),
    ],
)
def test_options_that_make_no_sense_are_an_error(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(lw.QueryError, match=reason):
        lw.image({"w": torch.ones(2, 2)}, "w", **options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"limit": 10**400}, "limit= takes a positive number, .* not a number of 1,329 bits"),
        ({"limit": 10**5000}, "limit= takes a positive number"),
        ({"size": 10**5000}, "size= takes a whole number of pixels"),
        ({"size": True}, "size= takes a whole number of pixels from 16 to 8192, not True"),
        ({"size": "64"}, "size= takes a whole number of pixels"),
    ],
)
def test_numbers_that_are_too_large_or_of_another_type_are_an_error(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(lw.QueryError, match=reason):
        lw.image(torch.ones(2, 2), **options)


def test_whole_numbers_of_any_type_are_accepted() -> None:
    picture = lw.image(np.ones((100, 100)), size=np.int64(64), limit=np.float32(2))  # type: ignore[arg-type]
    assert picture.width == 50
    assert picture.text(width=np.int64(10)) == picture.text(width=10)  # type: ignore[arg-type]


def test_gradients_are_drawn_once_there_are_any(tmp_path: Path) -> None:
    layer = nn.Linear(3, 2)
    with pytest.raises(lw.WalkError, match=r'"weight" has no gradient; call lw.image\(…, of="grad"\) after backward'):
        lw.image(layer, "weight", of="grad")
    layer(torch.tensor([1.0, -2.0, 3.0])).sum().backward()
    picture = lw.image(layer, "weight", of="grad")
    np.testing.assert_array_equal(picture.cells, [[1, -2, 3], [1, -2, 3]])
    assert picture.caption.startswith("gradient of weight 2×3 float32")
    save_file({"w": torch.ones(2, 2)}, tmp_path / "w.safetensors")
    with pytest.raises(lw.WalkError, match=r"a file contains no gradients; leave out of="):
        lw.image(tmp_path / "w.safetensors", "w", of="grad")


def test_without_numpy_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr("leafwise.inspect.image.plot.import_module", missing)
    with pytest.raises(lw.Error, match=r"lw.image needs numpy: pip install numpy"):
        lw.image(torch.ones(2, 2))


# -- filters -----------------------------------------------------------------------------------------------


def test_filters_with_few_inputs_are_wrapped_and_their_inputs_are_side_by_side() -> None:
    weight = counted(4, 2, 1, 3)
    picture = lw.image(with_weight(nn.Conv2d(2, 4, (1, 3)), weight), "weight")
    assert picture.style == "filters"
    np.testing.assert_array_equal(picture.cells, weight.reshape(4, 6).numpy())
    assert (picture.grid.down, picture.grid.across, picture.grid.units) == ((1,), (3, 6), 4)
    many = lw.image(with_weight(nn.Conv2d(1, 5, 2), counted(5, 1, 2, 2)), "weight")
    assert many.cells.tolist() == [
        [1, 2, 5, 6], [3, 4, 7, 8],
        [9, 10, 13, 14], [11, 12, 15, 16],
        [17, 18, 0, 0], [19, 20, 0, 0],
    ]  # fmt: skip
    assert many.grid.empty().tolist()[-1] == [False, False, True, True]
    assert not many.grid.empty()[:-2].any()


def test_filters_with_many_inputs_are_a_table() -> None:
    weight = counted(2, 5, 2, 2)
    picture = lw.image(with_weight(nn.Conv2d(5, 2, 2), weight), "weight")
    assert picture.cells.shape == (4, 10)
    np.testing.assert_array_equal(picture.cells[:2, :4], [[1, 2, 5, 6], [3, 4, 7, 8]])
    np.testing.assert_array_equal(picture.cells[2:, :2], weight[1, 0].numpy())
    assert "2 filters of 2×2, 5 inputs each, filters down, inputs across" in picture.caption


def test_filters_of_one_and_three_dimensions_are_drawn() -> None:
    strips = lw.image(with_weight(nn.Conv1d(5, 2, 3), counted(2, 5, 3)), "weight")
    np.testing.assert_array_equal(strips.cells, counted(2, 15).numpy())
    deep = counted(1, 1, 2, 2, 2)
    slices = lw.image(with_weight(nn.Conv3d(1, 1, 2), deep), "weight")
    np.testing.assert_array_equal(slices.cells, [[1, 2, 5, 6], [3, 4, 7, 8]])
    assert slices.grid.across == (2, 4)


@pytest.mark.parametrize("order", [("h", "w", "in", "out"), ("in", "out", "h", "w"), ("out", "h", "w", "in")])
def test_axes_are_identified_by_name_in_any_order(order: tuple[str, ...]) -> None:
    class Layer(nn.Module):
        def __init__(self, weight: torch.Tensor) -> None:
            super().__init__()
            self.kernel = nn.Parameter(weight)

    weight = torch.randn(6, 5, 2, 3)
    names = ("out", "in", "h", "w")
    lw.add_roles(Layer, {"kernel": ("conv.weight", order)})
    turned = weight.permute([names.index(name) for name in order])
    np.testing.assert_array_equal(
        lw.image(Layer(turned)).cells, lw.image(with_weight(nn.Conv2d(5, 6, 1), weight), "weight").cells
    )


def test_four_axes_without_a_role_are_filters_and_one_by_one_is_a_matrix(tmp_path: Path) -> None:
    save_file(
        {"conv": torch.randn(8, 3, 5, 5), "point": counted(6, 5, 1, 1), "three": counted(2, 3, 4)}, tmp_path / "f"
    )
    assert lw.image(tmp_path / "f", "conv").style == "filters"
    point = lw.image(tmp_path / "f", "point")
    assert point.style == "matrix"
    np.testing.assert_array_equal(point.cells, counted(6, 5).numpy())
    three = lw.image(tmp_path / "f", "three")
    np.testing.assert_array_equal(three.cells, counted(2, 12).numpy())
    assert "2 rows, 12 columns (axis 0 down, the other axes flattened across)" in three.caption
    assert lw.image(tmp_path / "f", "three", style="filters").cells.shape == (2, 12)
    transposed = lw.image(with_weight(nn.ConvTranspose2d(5, 6, 1), counted(5, 6, 1, 1)), "weight")
    np.testing.assert_array_equal(transposed.cells, counted(5, 6).numpy().T)


def test_filters_that_do_not_fit_are_drawn_by_their_norms() -> None:
    weight = torch.randn(20, 10, 3, 3)
    weight[3] = 0
    picture = lw.image(with_weight(nn.Conv2d(10, 20, 3), weight), "weight", size=32)
    np.testing.assert_allclose(picture.cells, weight.double().flatten(2).norm(dim=2).numpy())
    assert "too many to draw: each cell shows the norm of one" in picture.caption
    assert "1 filter all zero (3)" in picture.caption
    tiny = lw.image(with_weight(nn.Conv2d(10, 20, 3), weight), "weight", size=16)
    assert tiny.cells.max() == picture.cells.max()
    assert max(tiny.cells.shape) <= 16
    assert max(tiny.width, tiny.height) <= 16


def test_512_filters_of_512_inputs_are_drawn_value_by_value() -> None:
    picture = lw.image(np.zeros((512, 512, 3, 3), np.float16))
    assert (picture.width, picture.height) == (2047, 2047)
    assert "all zero" in picture.caption


# -- matrices, embeddings, vectors -------------------------------------------------------------------------


def test_matrices_have_their_outputs_down() -> None:
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(counted(2, 3))

    lw.add_roles(Conv1D, {"weight": ("linear.weight", ("in", "out"))})
    np.testing.assert_array_equal(lw.image(Conv1D()).cells, [[1, 4], [2, 5], [3, 6]])


def test_a_bin_shows_the_value_with_the_largest_magnitude() -> None:
    weight = np.random.default_rng(0).normal(size=(300, 700)).astype(np.float32)
    weight[123, 456] = -50
    weight[7] = 0
    picture = lw.image(weight, size=100)
    assert picture.cells.shape == (100, 100)
    assert picture.cells[123 // 3, 456 // 7] == -50
    assert picture.limit == 50
    assert "each cell shows the largest magnitude of 3×7" in picture.caption
    assert "1 row all zero (7)" in picture.caption
    for row, column in ((0, 0), (50, 99), (99, 3)):
        block = weight[row * 3 : row * 3 + 3, column * 7 : column * 7 + 7]
        assert abs(picture.cells[row, column]) == abs(block).max()
        assert picture.cells[row, column] in block


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    axis=st.integers(0, 3),
    band=st.integers(1, 40),
    size=st.integers(16, 20),
)
def test_the_size_of_bands_changes_nothing(shape: list[int], axis: int, band: int, size: int) -> None:
    array = np.random.default_rng(0).normal(size=shape)
    axis %= len(shape)
    axes = tuple("out" if number == axis else f"other{number}" for number in range(len(shape)))
    for style in ("matrix", "norms", "strip") + (("filters",) if len(shape) > 2 else ()):
        whole = grids.grid_of(style, tuple(shape), axes, size, array.__getitem__)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grids, "BAND", band)
            cut = grids.grid_of(style, tuple(shape), axes, size, array.__getitem__)
        np.testing.assert_allclose(cut.cells, whole.cells)
        assert cut[1:] == whole[1:]
    rows = np.moveaxis(array, axis, 0).reshape(shape[axis], -1)
    if max(rows.shape) <= 16:
        np.testing.assert_array_equal(grids.grid_of("matrix", tuple(shape), axes, 16, array.__getitem__).cells, rows)


def test_long_and_thin_matrices_keep_their_short_side() -> None:
    picture = lw.image(np.ones((50_000, 64), np.float32))
    assert picture.cells.shape[1] == 64
    assert picture.cells.shape[0] <= 1024
    square = lw.image(np.ones((8192, 4096), np.float16))
    assert square.cells.shape == (1024, 512)


def test_embeddings_are_drawn_by_the_norms_of_their_rows() -> None:
    table = torch.randn(10, 4)
    table[7:9] = 0
    picture = lw.image(with_weight(nn.Embedding(10, 4), table), "weight")
    assert picture.style == "norms"
    assert picture.cells.shape == (3, 4)
    np.testing.assert_allclose(picture.cells.reshape(-1)[:10], table.double().norm(dim=1).numpy())
    assert picture.grid.empty().reshape(-1).tolist() == [False] * 10 + [True] * 2
    assert "norms of 10 rows, in reading order, 4 per line" in picture.caption
    assert "2 rows all zero (7, 8)" in picture.caption
    assert f"0 … {table.norm(dim=1).max():.3g}" in picture.caption
    many = lw.image(np.ones((1_000, 3)), style="norms", size=16)
    assert many.cells.shape == (16, 16)
    assert "each cell shows the largest of 4" in many.caption


def test_norms_of_the_largest_and_the_smallest_numbers_do_not_overflow() -> None:
    rows = np.array([[3e300, 4e300], [3e-300, 4e-300], [math.inf, 1], [math.nan, math.inf], [0, 0]])
    norms = lw.image(rows, style="norms").cells.reshape(-1)
    np.testing.assert_allclose(norms[:5], [5e300, 5e-300, math.inf, math.nan, 0])


def test_norms_that_are_too_large_for_a_number_are_counted() -> None:
    rows = torch.full((3, 4), 1.7e308, dtype=torch.float64)
    assert lw.image(rows, style="norms").caption.endswith(" · 3 infinite")
    rows[0] = 1
    rows[1, 0] = torch.inf  # an infinite value is counted once, not again with its norm
    assert lw.image(rows, style="norms").caption.endswith("0 … 2 · 2 infinite")
    filters = torch.full((20, 20, 3, 3), 1.7e308, dtype=torch.float64)
    assert lw.image(filters, size=32).caption.endswith(" · 400 infinite")
    assert "? not finite" in lw.image(rows, style="norms").text()


def test_vectors_are_strips() -> None:
    picture = lw.image({"bias": counted(5)})
    assert picture.style == "strip"
    np.testing.assert_array_equal(picture.cells, [[1, 2, 3, 4, 5]])
    assert (picture.width, picture.height) == (160, 32)
    assert lw.image(np.ones((1, 5, 1))).cells.shape == (1, 5)
    long = lw.image(counted(5_000))
    assert long.cells.shape == (1, 1_000)
    assert long.cells[0, -1] == 5_000
    assert "5,000 values · each cell shows the largest magnitude of 5" in long.caption
    assert long.height == 24
    assert lw.image(np.array([7.0])).cells.tolist() == [[7.0]]


def test_a_style_may_be_given() -> None:
    table = with_weight(nn.Embedding(3, 2), counted(3, 2))
    assert lw.image(table, "weight", style="matrix").cells.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert lw.image(table, "weight", style="strip").cells.tolist() == [[1, 2, 3, 4, 5, 6]]
    np.testing.assert_allclose(lw.image(counted(2, 2), style="norms").cells, [[math.sqrt(5), 5]])


# -- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        np.array([[1, -2], [3, 0]], np.int64),
        np.array([[1, 2], [3, 0]], np.uint8),
        np.array([[True, False], [False, True]]),
        np.array([[1, -2], [3, 0]], ">f4"),
        np.array([[1, -2], [3, 0]], ml_dtypes.bfloat16),
        np.array([[1, -2], [3, 0]], ml_dtypes.float8_e4m3fn),
        torch.tensor([[1.0, -2], [3, 0]], dtype=torch.bfloat16),
        torch.tensor([[1.0, -2], [3, 0]]).to(torch.float8_e5m2),
        torch.tensor([[1.0, -2], [3, 0]], dtype=torch.float16).T.contiguous().T,
    ],
    ids=lambda array: str(array.dtype),
)
def test_every_dtype_is_drawn(array: Any) -> None:
    wanted = array.float().numpy() if isinstance(array, torch.Tensor) else array.astype(float)
    np.testing.assert_array_equal(lw.image(array).cells, wanted)


def test_values_that_are_not_finite_are_counted_and_shown() -> None:
    array = np.ones((4, 40), np.float32)
    array[0, :2] = math.nan, math.inf
    array[2, 9] = -math.inf
    picture = lw.image(array)
    assert (picture.grid.nan, picture.grid.infinite) == (1, 2)
    assert picture.limit == 1
    assert picture.caption.endswith("0 … 1 · 1 NaN · 2 infinite")
    binned = lw.image(array, size=16)
    assert math.isnan(binned.cells[0, 0])  # NaN takes precedence over infinity
    assert np.isneginf(binned.cells).sum() == 1
    empty = lw.image(np.full((2, 2), math.nan))
    assert empty.limit == 0


def test_the_limit_is_the_largest_magnitude_or_the_given_one() -> None:
    array = np.array([[1.0, -4.0], [2.0, 3.0]])
    assert lw.image(array).limit == 4
    picture = lw.image(array, limit=2)
    assert picture.limit == 2
    assert picture.caption.endswith("-2 … 2, 2 beyond")
    zeros = lw.image(np.zeros((2, 3)))
    assert zeros.caption.endswith("all zero · 0 … 0")


def test_names_that_are_tied_and_transposed_are_drawn_as_they_are_seen() -> None:
    weight = torch.randn(4, 3)
    state = {"encoder": weight, "decoder": weight.T}
    assert len(lw.tree(state)) == 1
    np.testing.assert_array_equal(lw.image(state, "decoder").cells, weight.T.numpy())
    np.testing.assert_array_equal(lw.image(state, "encoder").cells, weight.numpy())
    net = nn.ModuleDict({"embed": nn.Embedding(9, 4), "head": nn.Linear(4, 9, bias=False)})
    net["head"].weight = net["embed"].weight
    np.testing.assert_array_equal(lw.image(net, "head.weight").cells, lw.image(net, "embed.weight").cells)


def test_leaves_of_another_home_are_drawn() -> None:
    with toy.registered():
        model = toy.Model(weight=toy.matrix(3, 2))
        assert lw.image(model, "weight").cells.tolist() == [[0, 1], [2, 3], [4, 5]]
        assert lw.image(toy.Model(back=toy.transposed(toy.matrix(3, 2)))).cells.tolist() == [[0, 2, 4], [1, 3, 5]]
        with pytest.raises(lw.WalkError, match=r"has no gradient"):
            lw.image(model, "weight", of="grad")


def test_an_optimizer_state_is_drawn_as_well() -> None:
    net = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(3)).sum().backward()
    optimizer.step()
    assert lw.image(optimizer, "state.0.exp_avg").cells.shape == (2, 3)


# -- files -------------------------------------------------------------------------------------------------


def test_files_are_read_in_bands(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    weight = torch.zeros(8192, 2048)
    weight[5000, 100] = -3
    save_file({"w": weight, "other": torch.ones(4)}, path)
    del weight
    lw.image(path, "other")  # so that imports are not measured
    tracemalloc.start()
    try:
        picture = lw.image(path, "w")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert picture.cells[5000 // 8, 100 // 8] == -3
    assert most < 48 << 20  # the leaf has 64 MiB of float32, or 128 MiB of float64


def test_a_file_that_lw_saved_knows_its_roles(tmp_path: Path) -> None:
    net = nn.ModuleDict({"embed": nn.Embedding(9, 4), "conv": nn.Conv1d(3, 4, 5)})
    path = lw.save(net, tmp_path / "net.safetensors")
    for name, style in (("embed.weight", "norms"), ("conv.weight", "filters")):
        picture = lw.image(path, name)
        assert picture.style == style
        np.testing.assert_array_equal(picture.cells, lw.image(net, name).cells)


def test_what_must_be_unpacked_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.files.arrays.stored import Coded

    array = np.random.default_rng(0).normal(size=(50, 40))
    np.savez_compressed(tmp_path / "w.npz", w=array)
    times = []
    whole = Coded.whole
    monkeypatch.setattr(Coded, "whole", lambda self: (times.append(1), whole(self))[1])
    monkeypatch.setattr(grids, "BAND", 100)
    np.testing.assert_array_equal(lw.image(tmp_path / "w.npz", "w").cells, array)
    assert len(times) <= 1


def test_a_file_that_was_opened_for_it_is_closed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"w": torch.ones(2, 2), "s": torch.tensor(1.0)}, tmp_path / "w.safetensors")
    closed = []
    monkeypatch.setattr(lw.Tree, "close", lambda self: closed.append(1))
    lw.image(tmp_path / "w.safetensors", "w")
    for wrong in ("s", "nothing"):
        with pytest.raises(lw.Error):
            lw.image(tmp_path / "w.safetensors", wrong)
    assert len(closed) == 3
    lw.image(lw.open(tmp_path / "w.safetensors"), "w")
    assert len(closed) == 3


# -- saving ------------------------------------------------------------------------------------------------


def test_a_picture_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = lw.image(np.eye(3))
    target = tmp_path / "eye.png"
    assert picture.save(target) == str(target)
    assert target.read_bytes() == picture.png()
    with pytest.raises(lw.QueryError, match=r"cannot write 'eye.jpg': .*use a name that ends in .png"):
        picture.save("eye.jpg")
    with pytest.raises(lw.FileError, match=r"cannot write .*: No such file or directory"):
        picture.save(tmp_path / "nowhere" / "eye.png")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(lw.FileError, match=r"No space left on device"):
        lw.image(np.ones((3, 3))).save(target)
    assert [one.name for one in tmp_path.iterdir()] == ["eye.png"]
    assert target.read_bytes() == picture.png()


@pytest.mark.parametrize("path", [5, None, 2.5, ["a.png"]])
def test_a_picture_is_written_to_a_path(path: Any) -> None:
    with pytest.raises(lw.QueryError, match=r"takes a path such as 'filters.png', not "):
        lw.image(torch.ones(2, 2)).save(path)


@pytest.mark.parametrize("path", ["a\0.png", "\ud800.png", "a" * 300 + ".png"])
def test_a_path_that_no_file_can_have_is_an_error(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(lw.FileError, match=r"cannot write '"):
        lw.image(torch.ones(2, 2)).save(path)
    assert list(tmp_path.iterdir()) == []


# -- devices -----------------------------------------------------------------------------------------------


def test_of_what_is_elsewhere_only_a_part_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.homes.torch import tensors
    from leafwise.homes.torch.home import HOME

    monkeypatch.setattr(tensors, "is_elsewhere", lambda value: True)
    value = counted(4, 6).requires_grad_()
    for index in ((slice(1, 3),), slice(1, 3), (slice(0, 4, 2), slice(2, None)), (2, 3), (slice(None, None, -1),)):
        np.testing.assert_array_equal(HOME.read(value, index), value.detach().numpy()[index])


@pytest.mark.slow
def test_what_is_elsewhere_is_read_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.homes.torch import tensors

    # What stands for a GPU here, which is asked in the same way.
    monkeypatch.setattr(tensors, "is_elsewhere", lambda value: bool(value.requires_grad))
    copied = []
    as_numpy = tensors.as_numpy
    monkeypatch.setattr(tensors, "as_numpy", lambda value: (copied.append(value.numel()), as_numpy(value))[1])
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
        weight = torch.randn(4096, 1024).to(dtype)
        there = weight.clone().requires_grad_()
        np.testing.assert_array_equal(lw.image(there).cells, lw.image(weight).cells)
        np.testing.assert_array_equal(lw.image(there, style="norms").cells, lw.image(weight, style="norms").cells)
        np.testing.assert_array_equal(lw.image(there.T).cells, lw.image(weight.T).cells)
        del copied[:]
        lw.image(there)
        assert copied == [grids.BAND] * 4
