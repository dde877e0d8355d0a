"""An argument that is accepted has the effect that it has in MXNet; where it would have none, there is an error."""

from collections.abc import Callable
from typing import Any

import pytest

from leafwise_gluon import as_mxnet, dialect, nd, np, npx, random, rnn
from leafwise_gluon.base import MXNetError
from leafwise_gluon.data.vision import transforms
from leafwise_gluon.dialect import Version

VERSIONS: tuple[Version, ...] = (1, 2)


def _image() -> Any:
    return nd.ones((1, 1, 4, 4))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: nd.dot(nd.ones((2, 2)), nd.ones((2, 2)), forward_stype="csr"), MXNetError, "forward_stype='csr'"),
        (lambda: nd.dot(nd.ones((2, 2)), nd.ones((2, 2)), forward_stype="foo"), MXNetError, "Invalid Input: 'foo'"),
        (lambda: nd.Pooling(_image(), kernel=(2, 2), output_size=(1, 1)), MXNetError, "Pooling with output_size"),
        (lambda: nd.softmax(nd.ones((2, 3)), nd.array([1, 2])), MXNetError, "softmax needs length if"),
        (lambda: nd.softmax(nd.ones((2, 3)), use_length=True), MXNetError, "softmax needs length if"),
        (lambda: nd.concat(nd.ones((1, 1)), nd.ones((1, 1)), num_args=3), MXNetError, "num_args=3, but there are 2"),
        (lambda: nd.stack(nd.ones(1), num_args=2), MXNetError, "num_args=2, but there are 1"),
        (lambda: nd.add_n(nd.ones(1), num_args=2), MXNetError, "num_args=2, but there are 1"),
        (lambda: nd.Crop(_image(), nd.ones((1, 1, 2, 2)), num_args=1), MXNetError, "num_args=1, but there are 2"),
        (lambda: nd.UpSampling(_image(), scale=2, num_args=3), MXNetError, "num_args=3, but there are 1"),
        (lambda: nd.UpSampling(_image(), scale=2, sample_type="nearest", multi_input_mode="foo"), MXNetError, "'foo'"),
        (lambda: nd.LeakyReLU(nd.ones(1), act_type="rrelu"), MXNetError, "act_type='leaky' with slope=0.2295"),
        (lambda: npx.leaky_relu(np.ones(1), act_type="rrelu"), MXNetError, "act_type='leaky' with slope=0.2295"),
        (lambda: nd.LeakyReLU(nd.ones(1), nd.ones(1)), MXNetError, "gamma for act_type 'prelu' only"),
        (lambda: nd.SequenceLast(nd.ones((3, 2)), nd.ones(2)), MXNetError, "sequence_length if and only if"),
        (lambda: nd.SequenceReverse(nd.ones((3, 2)), nd.ones(2)), MXNetError, "sequence_length if and only if"),
        (lambda: nd.SequenceMask(nd.ones((3, 2, 2)), axis=2), MXNetError, "needs axis 0 or 1"),
        (lambda: nd.ctc_loss(nd.ones((3, 2, 4)), nd.ones((2, 2)), nd.ones(2)), MXNetError, "ctc_loss needs lengths"),
        (lambda: nd.ctc_loss(nd.ones((3, 2, 4)), nd.ones((2, 2)), use_data_lengths=True), MXNetError, "needs lengths"),
        (lambda: nd.contrib.BilinearResize2D(_image(), _image()), MXNetError, "like with mode 'like' only"),
        (lambda: nd.contrib.BilinearResize2D(_image(), scale_width=2.0), MXNetError, "both scale_height and"),
        (lambda: np.linalg.pinv(np.ones((2, 2)), hermitian=True), NotImplementedError, "hermitian"),
        (lambda: random.seed(1, ctx="foo"), MXNetError, "unknown device 'foo'"),
        (lambda: nd.multi_all_finite(nd.ones(1), nd.ones(1)), MXNetError, "num_arrays=1, but there are 2"),
        (lambda: nd.multi_sum_sq(nd.ones(1)), MXNetError, "num_arrays"),
        (lambda: nd.reset_arrays(nd.ones(1), num_arrays=2), MXNetError, "num_arrays=2, but there are 1"),
        (lambda: np.quantile(np.ones(2), np.array(0.5), overwrite_input=False), NotImplementedError, "overwrite_input"),
        (lambda: np.percentile(np.ones(2), np.array(50), overwrite_input=True), NotImplementedError, "overwrite_input"),
        (lambda: np.random.multinomial(1, [0.5, 0.5], ctx=None), TypeError, "'ctx'"),
    ],
)
def test_an_argument_that_would_be_ignored_is_an_error(
    version: Version, call: Callable[[], Any], error: type[Exception], text: str
) -> None:
    with as_mxnet(version), pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)


def test_lengths_of_log_softmax() -> None:
    with as_mxnet(1), pytest.raises(MXNetError, match="Cannot find argument 'length'"):
        npx.log_softmax(np.ones((2, 3)), length=np.array([1, 2]))
    with pytest.raises(AssertionError, match="Length input is not used"):
        npx.log_softmax(np.ones((2, 3)), length=np.array([1, 2]))
    with pytest.raises(MXNetError, match="does not support use_length"):
        npx.log_softmax(np.ones((2, 3)), length=np.array([1, 2]), use_length=True)


def test_images_are_mirrored_with_a_probability_in_mxnet_2_only() -> None:
    assert transforms.RandomFlipLeftRight(p=0.3).p == 0.3
    with as_mxnet(1):
        assert transforms.RandomFlipTopBottom().p == 0.5
        with pytest.raises(TypeError, match="RandomFlipTopBottom has no argument p"):
            transforms.RandomFlipTopBottom(0.3)


def test_the_number_of_arrays_may_be_given() -> None:
    one = nd.ones((1, 2))
    assert nd.concat(one, one, num_args=2).shape == (1, 4)
    assert nd.stack(one, one, num_args=2).shape == (2, 1, 2)
    assert nd.add_n(one, one, num_args=2).asnumpy().tolist() == [[2, 2]]
    assert nd.multi_sum_sq(one, one, num_arrays=2).asnumpy().tolist() == [2, 2]


@pytest.mark.parametrize("make", [rnn.LSTM, rnn.LSTMCell])
def test_what_makes_the_first_states_gets_its_arguments(make: Callable[[int], Any]) -> None:
    given: list[dict[str, Any]] = []

    def ones(shape: Any, **others: Any) -> Any:
        given.append(others)
        return nd.ones(shape)

    with as_mxnet(1):
        drawn = make(2).begin_state(2, func=nd.random.uniform, low=5, high=6)
        assert all((state.asnumpy() >= 5).all() for state in drawn)
        make(2).begin_state(2, func=ones, scale=3)
        assert [others["scale"] for others in given] == [3, 3]
        with pytest.raises(MXNetError, match="Cannot find argument 'low'"):
            make(2).begin_state(2, low=5)
    given.clear()
    assert dialect.version() == 2
    make(2).begin_state(2, func=ones, scale=3)
    assert [sorted(others) for others in given] == [["device", "dtype"]] * 2
