"""Functions of npx that are no neural operations: control flow, memory of other libraries, devices and modes."""

import numpy
import pytest
import torch

from leafwise_gluon import MXNetError, autograd, np, npx


def test_foreach_passes_states_on() -> None:
    outputs, states = npx.foreach(lambda x, s: (x + s[0], [x + s[0]]), np.arange(4), [np.zeros(())])
    assert outputs.tolist() == [0, 1, 3, 6]
    assert states[0].item() == 6
    pairs, _ = npx.foreach(lambda x, s: ([x[0], x[1] * 2], s), [np.ones(3), np.ones(3)], [])
    assert [pair.tolist() for pair in pairs] == [[1, 1, 1], [2, 2, 2]]


def test_foreach_is_differentiated() -> None:
    x = np.array([1, 2, 3])
    x.attach_grad()
    with autograd.record():
        _, product = npx.foreach(lambda x, s: (x, x * s), x, np.ones(()))
    product.backward()
    assert x.grad.tolist() == [6, 3, 2]


def test_while_loop_stops_and_pads() -> None:
    outputs, (i, total) = npx.while_loop(
        lambda i, total: i < 3, lambda i, total: (total, (i + 1, total + i)), (np.zeros(()), np.zeros(())), 5
    )
    assert outputs.tolist() == [0, 0, 1, 0, 0]
    assert (i.item(), total.item()) == (3, 3)
    with pytest.raises(ValueError, match="max_iterations should be specified"):
        npx.while_loop(lambda x: x < 3, lambda x: (x, x + 1), [np.zeros(())])


def test_cond_calls_one_of_two_functions() -> None:
    a, b = np.ones(2), np.zeros(2)
    assert npx.cond(lambda a, b: a.sum() > b.sum(), lambda a, b: a, lambda a, b: b, [a, b]).tolist() == [1, 1]


def test_arrays_share_the_memory_of_numpy_and_dlpack() -> None:
    values = numpy.zeros(3, "float32")
    array = npx.from_numpy(values)
    array[0] = 5
    assert values[0] == 5
    copied = npx.from_numpy(values, zero_copy=False)
    copied[0] = 7
    assert values[0] == 5
    same = npx.from_dlpack(npx.to_dlpack_for_write(array))
    same[1] = 6
    assert values[1] == 6


def test_plain_tensors_stay_plain() -> None:
    result = npx.softmax(torch.zeros(2, 2))
    assert type(result) is torch.Tensor
    assert result.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_results_can_be_written_to_an_array() -> None:
    out = np.zeros(2)
    assert npx.relu(np.array([-1, 2]), out=out) is out
    assert out.tolist() == [0, 2]
    with pytest.raises(MXNetError, match=r"out has shape \(2,\), but the result has shape \(3,\)"):
        npx.relu(np.ones(3), out=out)


def test_a_position_twice_is_refused_where_the_result_is_arbitrary() -> None:
    twice = np.array([[0, 0], [1, 1]], dtype="int32")
    with pytest.raises(MXNetError, match="index_update with a position twice"):
        npx.index_update(np.zeros((2, 3)), twice, np.ones(2))


def test_devices_and_modes_are_there() -> None:
    assert npx.current_device() == npx.cpu() == npx.Device("cpu", 0)
    assert npx.num_gpus() == torch.cuda.device_count()
    assert (npx.is_np_array(), npx.is_np_shape(), npx.is_np_default_dtype()) == (True, True, False)
    npx.waitall()
    with pytest.raises(MXNetError, match="set_np_default_dtype"):
        npx.set_np_default_dtype(True)
    with pytest.raises(AttributeError, match="quantized"):
        _ = npx.quantized_conv
