"""`mxnet.autograd`: recording, gradients of arrays, and functions with gradients of their own."""

from typing import Any

import pytest

from leafwise_gluon import MXNetError, autograd, np


def attached(*numbers: float) -> Any:
    x = np.array(numbers)
    x.attach_grad()
    return x


def test_grad_returns_a_list_and_leaves_the_gradient_of_the_array_alone() -> None:
    x = attached(1, 2)
    with autograd.record():
        y = x * x
    (gradient,) = autograd.grad(y, x, head_grads=np.array([1, 10]))
    assert gradient.asnumpy().tolist() == [2, 40]
    assert x.grad.tolist() == [0, 0]
    with pytest.raises(MXNetError, match="not in a computational graph"):
        autograd.grad(y, x)


def test_a_gradient_can_be_differentiated_again() -> None:
    x = attached(1, 2)
    with autograd.record():
        y = x * x * x
        (first,) = autograd.grad(y, [x], create_graph=True, retain_graph=True)
        z = (first * first).sum()
    z.backward()
    assert x.grad.tolist() == [36, 288]


def test_grad_needs_arrays_with_attach_grad_that_the_heads_depend_on() -> None:
    x, other = attached(1, 2), attached(3)
    with autograd.record():
        y = x * x
        z = y * 2
    with pytest.raises(MXNetError, match="the 1-th variable because it does not require gradient"):
        autograd.grad(z, [y], retain_graph=True)
    with pytest.raises(MXNetError, match="the 2-th variable because it is unreachable from the outputs"):
        autograd.grad(z, [x, other])


def test_backward_takes_lists_and_each_head_once() -> None:
    x = attached(1, 2)
    with autograd.record():
        y, z = x * 2, x * 3
    autograd.backward([y, y], retain_graph=True)
    assert x.grad.tolist() == [2, 2]
    autograd.backward([y, z], [np.array([1, 10]), None])
    assert x.grad.tolist() == [5, 23]
    with pytest.raises(AssertionError, match=r"same length: 2 vs\. 1"):
        autograd.backward([y, z], [None])


def test_an_array_from_a_graph_that_backward_released_is_a_constant() -> None:
    x = attached(1, 1)
    with autograd.record():
        y = x * 2
        z = y * 3
        unused = y * 5
    z.backward()
    with autograd.record():
        again = (y * x).sum() + z.sum()
    again.backward()
    assert x.grad.tolist() == [2, 2]
    with pytest.raises(MXNetError, match="not in a computational graph"):
        unused.backward()
    y.attach_grad()
    with autograd.record():
        fresh = y * 7
    fresh.backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([2, 2], [7, 7])


@pytest.mark.parametrize(("grad_req", "expected"), [("write", [2, 2]), ("add", [9, 9]), ("null", [7, 7])])
def test_mark_variables_uses_the_gradient_arrays_that_are_given(grad_req: str, expected: list[int]) -> None:
    x, gradient = np.ones(2), np.full(2, 7.0)
    autograd.mark_variables([x], [gradient], grad_req)
    if grad_req != "null":
        with autograd.record():
            y = x * 2
        y.backward()
    assert x.grad.tolist() == gradient.tolist() == expected


def test_set_recording_and_set_training_return_what_was_before() -> None:
    assert not autograd.set_recording(True)
    assert autograd.set_recording(False)
    assert not autograd.set_training(True)
    assert autograd.set_training(False)


class Swapped(autograd.Function):
    """The product and the sum of two arrays, with the gradients of both swapped."""

    def forward(self, x: Any, y: Any) -> Any:
        assert not autograd.is_recording()
        self.save_for_backward(x, y)
        return x * y, x + y

    def backward(self, product: Any, total: Any) -> Any:
        assert (autograd.is_recording(), autograd.is_training()) == (False, True)
        x, y = self.saved_tensors
        return product * x + total, product * y + total


def test_a_function_has_the_gradient_that_it_defines() -> None:
    x, y = attached(2), attached(3)
    function = Swapped()
    with autograd.record():
        product, total = function(x, y)
        z = (product * 10 + total).sum()
    z.backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([21], [31])
    with pytest.raises(AssertionError, match="Each Function instance can only be called once"):
        function(x, y)
    assert [part.tolist() for part in Swapped()(x, y)] == [[6], [5]]


class OneTooMany(autograd.Function):
    def forward(self, x: Any) -> Any:
        return x * 2

    def backward(self, gradient: Any) -> Any:
        return gradient, gradient


def test_a_function_must_return_one_gradient_for_each_input() -> None:
    x = attached(2)
    with autograd.record():
        y = OneTooMany()(x)
    with pytest.raises(MXNetError, match=r"OneTooMany\.backward must return a gradient for each input: 1, not 2"):
        y.backward()


def test_an_array_knows_whether_backward_has_written_its_gradient() -> None:
    x = attached(1, 2)
    assert not x._fresh_grad
    with autograd.record():
        y = x * 2
    y.backward()
    assert x._fresh_grad
    x._fresh_grad = False
    assert not x._fresh_grad
