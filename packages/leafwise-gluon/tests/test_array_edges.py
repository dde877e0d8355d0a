"""Cases at the edges of arrays, where PyTorch or NumPy would give another result than MXNet. Results are MXNet's."""

from collections.abc import Iterator
from typing import Any

import pytest

from leafwise_gluon import MXNetError, autograd, dialect, modes, nd, np, npx

VERSIONS: list[dialect.Version] = [1, 2]


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> Iterator[dialect.Version]:
    """Each version of MXNet in turn, in NumPy mode."""
    dialect.use_version(request.param)
    try:
        with modes.np_array(), modes.np_shape():
            yield request.param
    finally:
        dialect.use_version(2)


@pytest.mark.parametrize("array", [np.arange, nd.arange])
@pytest.mark.parametrize("code", ["x[1:] += x[:-1]", "x -= x[3:4]", "x *= x[0]", "x[:3] /= x[2:3]"])
def test_an_array_is_not_changed_in_place_by_a_shifted_part_of_itself(version: int, array: Any, code: str) -> None:
    x = array(6)
    with pytest.raises(MXNetError, match="overlapping part of the same array; use a copy"):
        exec(code, {"x": x})
    assert x.asnumpy().tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("array", [np.arange, nd.arange])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x += x", [0, 2, 4, 6, 8, 10]),
        ("x[0:3] -= x[3:6]", [-3, -3, -3, 3, 4, 5]),
        ("x[1] += x[2]", [0, 3, 2, 3, 4, 5]),
        ("x[:-1] = x[1:]", [1, 2, 3, 4, 5, 5]),
        ("x[1:] = x[0]", [0, 0, 0, 0, 0, 0]),
        ("x[:2] = x[4:]", [4, 5, 2, 3, 4, 5]),
    ],
)
def test_an_array_is_changed_by_itself_or_by_another_part(
    version: int, array: Any, code: str, expected: list[int]
) -> None:
    x = array(6)
    exec(code, {"x": x})
    assert x.asnumpy().tolist() == expected


@pytest.mark.parametrize("code", ["x[1:] = x[:-1]", "x[::-1] = x"])
def test_values_that_overlap_are_copied_first_for_np_and_refused_for_nd(version: int, code: str) -> None:
    x = np.arange(4)
    exec(code, {"x": x})
    assert x.tolist() in ([0, 0, 1, 2], [3, 2, 1, 0])
    with pytest.raises(MXNetError, match="overlapping part of the same array; assign a copy"):
        exec(code, {"x": nd.arange(4)})


def test_a_wrong_shape_is_a_value_error_for_nd_and_an_mxnet_error_for_np(version: int) -> None:
    with pytest.raises(ValueError, match=r"\(2,\) to an ndarray of shape \(3,\)"):
        nd.zeros((4, 3))[0] = nd.ones((2,))
    with pytest.raises(MXNetError, match=r"\(2,\) to an ndarray of shape \(3,\)"):
        np.zeros((4, 3))[0] = np.ones(2)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_sums_and_products_of_floats_are_truncated_to_integers_in_the_end(version: int, dtype: str) -> None:
    x = np.array([[0.6, 0.6, 2.7], [1.9, -1.4, 1.5]], dtype=dtype)
    assert np.sum(x, dtype="int32").item() == 5
    assert np.prod(x, dtype="int64").item() == -3
    assert x.sum(axis=0, dtype="int8").tolist() == [2, 0, 4]


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_the_variance_of_integers_is_refused_with_any_dtype(version: int, dtype: str) -> None:
    x = np.array([[1, 0, 1], [2, 1, 1]], dtype=dtype)
    with pytest.raises(MXNetError, match=r"ndarray\.var of integers"):
        x.var(axis=0, dtype="float32")
    with pytest.raises(MXNetError, match=r"ndarray\.std of float16"):
        x.astype("float16").std(dtype="float32")


def test_functions_of_integers_and_of_poles(version: int) -> None:
    assert npx.erf(np.array([4, 6, 2], dtype="uint8")).tolist() == [0, 1, 0]
    values = npx.gamma(np.array([-2, -0.5, -3, 0.5])).tolist()
    assert [value != value for value in values] == [True, False, True, False]
    assert values[1::2] == pytest.approx([-3.544908, 1.772454])


def test_normalising_a_vector_divides_each_number_by_its_own_size(version: int) -> None:
    assert nd.L2Normalization(nd.array([0, 2, -3])).asnumpy().tolist() == pytest.approx([0, 1, -1])


def test_results_have_the_shapes_and_dtypes_of_mxnet(version: int) -> None:
    assert np.in1d(np.ones((2, 3)), np.ones(1)).shape == (6,)
    grids = np.meshgrid(np.array([2.5]), np.array([6, 0], dtype="uint8"))
    assert [(grid.dtype.name, grid.shape) for grid in grids] == [("float32", (2, 1)), ("uint8", (2, 1))]
    assert repr(np.array([], dtype="bool")) == "array([], dtype=bool)"
    assert [nd.arange(6)[0].shape, nd.arange(6)[..., 0].shape] == [(), (1,)]


def test_an_element_has_one_axis_in_version_1_outside_numpy_mode() -> None:
    dialect.use_version(1)
    try:
        assert np.array([1, 2])[0].shape == (1,)
    finally:
        dialect.use_version(2)


@pytest.mark.parametrize("array", [np.array, nd.array])
def test_numbers_that_make_no_array_are_type_errors(version: int, array: Any) -> None:
    with pytest.raises(TypeError, match="inhomogeneous"):
        array([[1], [2, 3]])
    with pytest.raises(TypeError, match="NaN or infinity to int32"):
        array([1, float("nan")], dtype="int32")


def test_a_parameter_that_does_not_fit_the_size_of_a_sample_is_refused_and_draws_nothing(version: int) -> None:
    np.random.seed(0)
    expected = np.random.uniform(size=2).tolist()
    np.random.seed(0)
    for size in [1, (3, 1), 70]:
        with pytest.raises(MXNetError, match=r"shape \(3,\) for a sample of size"):
            np.random.normal(np.zeros(3), 1, size)
        with pytest.raises(MXNetError, match=r"shape \(3,\) for a sample of size"):
            npx.random.bernoulli(logit=np.zeros(3), size=size)
    assert np.random.uniform(size=2).tolist() == expected


def test_integers_are_truncated_and_empty_arrays_flattened(version: int) -> None:
    x = npx.smooth_l1(np.array([5, -1, 0], dtype="int64"))
    assert (x.dtype.name, x.tolist()) == ("int64", [4, 0, 0])
    assert npx.batch_flatten(np.zeros((0, 3, 2))).shape == (0, 6)
    w = np.array([1.5, 2.5])
    w.attach_grad()
    with autograd.record():
        assert np.cumsum(w, dtype="int32").tolist() == [1, 3]


def test_a_cross_product_broadcasts_vectors(version: int) -> None:
    one, two = np.array([[1, 0, 0], [0, 1, 0]]), np.ones((2, 2, 3))
    assert np.cross(one, two).tolist() == [[[0, -1, 1], [1, 0, -1]]] * 2


def test_integers_may_have_no_gradient_but_not_one_to_be_computed(version: int) -> None:
    x, z = np.ones(2, dtype="int32"), np.array([3, 4])
    x.attach_grad("null")
    z.attach_grad()
    assert (x.grad.dtype.name, x.grad.tolist()) == ("int32", [0, 0])
    with autograd.record():
        y = x * z
    y.backward()
    assert z.grad.tolist() == [1, 1]
    with pytest.raises(MXNetError, match=r"attach_grad of int32; use \.astype"):
        x.attach_grad()


def test_ranges_of_dtypes_that_are_rare(version: int) -> None:
    assert np.arange(3, dtype="uint16").tolist() == [0, 1, 2]
    for arange in (np.arange, nd.arange):
        with pytest.raises(MXNetError, match="arange is not defined for bool"):
            arange(3, dtype="bool")
