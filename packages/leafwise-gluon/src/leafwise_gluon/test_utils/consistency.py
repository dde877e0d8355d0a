"""Whether a hybridized network gives what it gives without."""

from collections.abc import Callable, Sequence
from typing import Any

from leafwise_gluon import autograd
from leafwise_gluon.test_utils.comparing import assert_almost_equal


def check_gluon_hybridize_consistency(
    net_builder: Callable[[], Any],
    data_l: Sequence[Any],
    numpy_func: Callable[..., Any] | None = None,
    test_grad: bool = True,
    rtol: float = 1e-4,
    atol: float = 1e-4,
) -> None:
    """Compares outputs and gradients with and without `hybridize()`, and the output with a function of NumPy arrays."""
    parameters: dict[str, Any] | None = None
    expected: Any = None
    gradients: list[Any] | None = None
    for hybridize in (False, True):
        for recording in (False, True) if test_grad else (False,):
            net = net_builder()
            if parameters is None:
                net.initialize()
            else:
                net.load_dict(parameters)
            if hybridize:
                net.hybridize()
            inputs = [array.copy() for array in data_l]
            if recording:
                for array in inputs:
                    array.attach_grad()
                with autograd.record():
                    output = net(*inputs)
                output.backward(output)
            else:
                output = net(*inputs)
            if parameters is None:
                parameters = {name: parameter.data() for name, parameter in net.collect_params().items()}
            expected = output.asnumpy() if expected is None else expected
            assert_almost_equal(output.asnumpy(), expected, rtol=rtol, atol=atol)
            if recording:
                new = [array.grad.asnumpy() for array in inputs]
                gradients = new if gradients is None else gradients
                for gradient, first in zip(new, gradients, strict=True):
                    assert_almost_equal(gradient, first, rtol=rtol, atol=atol)
    if numpy_func is not None:
        assert_almost_equal(expected, numpy_func(*(array.asnumpy() for array in data_l)), rtol=rtol, atol=atol)
