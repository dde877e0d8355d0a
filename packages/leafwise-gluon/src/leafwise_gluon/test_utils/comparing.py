"""Whether arrays are equal, or nearly."""

from collections.abc import Callable
from typing import Any

import numpy

from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.test_utils.tolerances import get_atol, get_etol, get_rtol, get_tols


def _numpy(value: Any) -> Any:
    return value.asnumpy() if isinstance(value, ArrayValues) else value


def same(a: Any, b: Any) -> bool:
    """Whether two arrays are equal."""
    return numpy.array_equal(_numpy(a), _numpy(b))


def same_array(array1: Any, array2: Any) -> bool:
    """Whether two arrays share their memory: whether writing to one changes the other."""
    array1[:] += 1
    shared = same(array1, array2)
    array1[:] -= 1
    return shared and same(array1, array2)


def checkShapes(a: Any, b: Any) -> None:  # noqa: N802
    if a.shape != b.shape:
        raise AssertionError(f"a.shape = {a.shape} and b.shape = {b.shape} are not equal")


def almost_equal(
    a: Any,
    b: Any,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    use_broadcast: bool = True,
) -> bool:
    if not use_broadcast:
        checkShapes(a, b)
    return numpy.allclose(_numpy(a), _numpy(b), rtol=get_rtol(rtol), atol=get_atol(atol), equal_nan=equal_nan)


def assert_almost_equal(
    a: Any,
    b: Any,
    rtol: Any = None,
    atol: Any = None,
    names: tuple[str, str] = ("a", "b"),
    equal_nan: bool = False,
    use_broadcast: bool = True,
    mismatches: tuple[int, int] = (10, 10),
) -> None:
    """Raises an AssertionError unless `abs(a - b) <= atol + rtol * abs(b)`. The tolerances may be given by dtype.

    >>> from leafwise_gluon import np, test_utils
    >>> test_utils.assert_almost_equal(np.array([1.0]), np.array([1.00001]))
    """
    if not use_broadcast:
        checkShapes(a, b)
    rtol, atol = get_tols(a, b, rtol, atol)
    left, right = numpy.asarray(_numpy(a)), numpy.asarray(_numpy(b))
    if left.dtype == right.dtype == numpy.bool_:
        numpy.testing.assert_equal(left, right)
        return
    if almost_equal(left, right, rtol, atol, equal_nan=equal_nan):
        return
    left, right = numpy.broadcast_arrays(left, right)
    with numpy.errstate(invalid="ignore", divide="ignore"):
        errors = numpy.abs(left - right) / (atol + rtol * numpy.abs(right) + 1e-20)
    errors = numpy.where(numpy.isnan(errors), numpy.inf, errors)
    worst = numpy.unravel_index(int(errors.argmax()), errors.shape) if errors.size else ()
    place = f"Location of maximum error: {worst}, {names[0]}={left[worst]}, {names[1]}={right[worst]}"
    wrong = 100 * float((errors > 1).mean())
    raise AssertionError(
        f"Error {errors[worst]:f} exceeds tolerance rtol={rtol:e}, atol={atol:e} (mismatch {wrong:f}%).\n{place}\n"
        f" {names[0]}: {left!r}\n {names[1]}: {right!r}"
    )


def assert_allclose(a: Any, b: Any, rtol: float = 1e-07, atol: float = 0, equal_nan: bool = True) -> None:
    assert_almost_equal(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)


def assert_almost_equal_ignore_nan(
    a: Any, b: Any, rtol: Any = None, atol: Any = None, names: tuple[str, str] = ("a", "b")
) -> None:
    """Like `assert_almost_equal`, where neither array has a NaN."""
    left, right = numpy.copy(_numpy(a)), numpy.copy(_numpy(b))
    ignored = numpy.isnan(left) | numpy.isnan(right)
    left[ignored] = right[ignored] = 0
    assert_almost_equal(left, right, rtol, atol, names)


def assert_almost_equal_with_err(
    a: Any,
    b: Any,
    rtol: Any = None,
    atol: Any = None,
    etol: float | None = None,
    names: tuple[str, str] = ("a", "b"),
    equal_nan: bool = False,
    mismatches: tuple[int, int] = (10, 10),
) -> None:
    """Like `assert_almost_equal`, but a share `etol` of the elements may be wrong."""
    if not get_etol(etol):
        assert_almost_equal(a, b, rtol, atol, names, equal_nan, mismatches=mismatches)
        return
    rtol, atol = get_tols(a, b, rtol, atol)
    wrong = ~numpy.isclose(_numpy(a), _numpy(b), rtol, atol, equal_nan)
    assert wrong.mean() <= get_etol(etol), f"{wrong.mean():.1%} of the elements are wrong, more than {etol:.1%}"


def assert_exception(f: Callable[..., Any], exception_type: type[BaseException], *args: Any, **kwargs: Any) -> None:
    """Calls a function, which must raise an error of this type."""
    try:
        f(*args, **kwargs)
    except exception_type:
        return
    raise AssertionError(f"{f} did not raise {exception_type.__name__}")
