"""Training: curves and scripts follow MXNet's, and the Trainer keeps what it promises."""

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from tests.forked import Commands
from training_curves import CURVES, curve

from leafwise_gluon import Parameter, Trainer, as_mxnet, autograd, loss, nn, np, optimizer
from leafwise_gluon.base import MXNetError
from leafwise_gluon.context import cpu
from leafwise_gluon.dialect import Version

HERE = Path(__file__).parent
NUMBER = re.compile(r"-?\d+\.\d+")


@pytest.fixture(params=[(1, "nd"), (1, "np"), (2, "np")], ids=str)
def stand_in(request: pytest.FixtureRequest) -> Iterator[tuple[Any, int, str]]:
    version, mode = request.param
    with as_mxnet(version), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mxnet

        if mode == "np":
            mxnet.npx.set_np()
        yield mxnet, version, mode


def test_curves_follow_those_of_mxnet(stand_in: tuple[Any, int, str]) -> None:
    mxnet, version, mode = stand_in
    golden = json.loads((HERE / f"training.golden{version}.json").read_text("utf-8"))[mode]["curve"]
    assert list(golden) == list(CURVES)
    for name, losses in golden.items():
        assert curve(mxnet, mode, name) == pytest.approx(losses, abs=1e-4), name


@pytest.mark.parametrize("version", [1, 2])
def test_the_script_prints_what_mxnet_prints(version: int, scripts: Commands) -> None:
    done = scripts.run("--mxnet", str(version), HERE / "training_script.py")
    assert done.returncode == 0, done.stderr
    ours = done.stdout.splitlines()
    theirs = (HERE / f"training_script.mxnet{version}.golden.txt").read_text("utf-8").splitlines()
    assert [NUMBER.sub("#", line) for line in ours] == [NUMBER.sub("#", line) for line in theirs]
    for our_line, their_line in zip(ours, theirs, strict=True):
        numbers = [float(number) for number in NUMBER.findall(their_line)]
        # The last printed digit may differ between processors.
        assert [float(number) for number in NUMBER.findall(our_line)] == pytest.approx(numbers, abs=2e-4), their_line


# -- the Trainer -------------------------------------------------------------------------------------------------------


def trained(trainer: Trainer, net: Any, steps: int = 3) -> None:
    for _ in range(steps):
        with autograd.record():
            result = loss.L2Loss()(net(np.ones((2, 3))), np.ones((2, 2)))
        result.backward()
        trainer.step(2)


def dense(init: Any = "ones") -> Any:
    net = nn.Dense(2, in_units=3)
    net.initialize(init=init)
    return net


def test_shared_parameters_are_updated_once() -> None:
    first, second = dense(), dense()
    second.share_parameters(first.collect_params())
    params = {f"a.{name}": param for name, param in first.collect_params().items()}
    params |= {f"b.{name}": param for name, param in second.collect_params().items()}
    trainer = Trainer(params, "sgd", {"learning_rate": 1.0})
    with autograd.record():
        result = first(np.ones((1, 3))).sum()
    result.backward()
    trainer.step(1)
    assert first.weight.data().asnumpy().tolist() == [[0.0] * 3] * 2


def test_deferred_parameters_may_be_given_before_their_shape_is_known() -> None:
    net = nn.Dense(2)
    net.initialize()
    trained(Trainer(net.collect_params(), "adam"), net)
    assert net.weight.shape == (2, 3)


def test_gradients_of_several_contexts_are_added_up() -> None:
    for update_on_kvstore in (None, False):
        param = Parameter("x", shape=(4,))
        param.initialize(ctx=[cpu(0), cpu(1)], init="zeros")
        trainer = Trainer([param], "sgd", {"learning_rate": 1.0}, update_on_kvstore=update_on_kvstore)
        for number, array in enumerate(param.list_data()):
            with autograd.record():
                result = ((number + 1) * array).sum()
            result.backward()
        trainer.step(1)
        assert [array.asnumpy().tolist() for array in param.list_data()] == [[-3.0] * 4] * 2
    with pytest.raises(AssertionError, match="All Parameters must be initialized on the same set"):
        Trainer([param, *dense().collect_params().values()], "sgd")


def test_a_distributed_store_is_refused() -> None:
    with pytest.raises(MXNetError, match="kvstore='dist_sync'"):
        Trainer(dense().collect_params(), "sgd", kvstore="dist_sync")


@pytest.mark.parametrize("name", ["sgd", "adam", "nadam", "rmsprop"])
def test_states_come_back_equal_and_training_goes_on_as_if_nothing_had_happened(name: str, tmp_path: Path) -> None:
    options = {"learning_rate": 0.1} | ({"momentum": 0.9} if name == "sgd" else {})
    whole, part = dense("ones"), dense("ones")
    trained(Trainer(whole.collect_params(), name, options), whole, 6)
    trainer = Trainer(part.collect_params(), name, options)
    trained(trainer, part)
    trainer.save_states(str(tmp_path / "t.states"))
    again = Trainer(part.collect_params(), name, {"learning_rate": 7})
    again.load_states(str(tmp_path / "t.states"))
    assert again.learning_rate == 0.1
    trained(again, part)
    assert part.weight.data().asnumpy() == pytest.approx(whole.weight.data().asnumpy(), abs=1e-7)


def test_states_have_the_schedule(tmp_path: Path) -> None:
    from leafwise_gluon.lr_scheduler import FactorScheduler

    net = dense()
    trainer = Trainer(net.collect_params(), "adam", {"lr_scheduler": FactorScheduler(1, 0.5, base_lr=0.001)})
    trained(trainer, net)
    trainer.save_states(tmp_path / "t.states")
    again = Trainer(net.collect_params(), "adam")
    again.load_states(tmp_path / "t.states")
    assert again.learning_rate == trainer.learning_rate == 0.00025


def test_states_of_another_optimizer_or_of_mxnet_are_refused(tmp_path: Path) -> None:
    net = dense()
    Trainer(net.collect_params(), "adam").save_states(tmp_path / "adam.states")
    with pytest.raises(MXNetError, match=r"states of Adam .* into a Trainer with SGD"):
        Trainer(net.collect_params(), "sgd").load_states(tmp_path / "adam.states")
    (tmp_path / "mxnet.states").write_bytes(b"\x80\x04}.")
    with pytest.raises(MXNetError, match="which MXNet has pickled"):
        Trainer(net.collect_params(), "sgd").load_states(tmp_path / "mxnet.states")
    with pytest.raises(MXNetError, match=r"Updater\.get_states"):
        optimizer.get_updater(optimizer.create("sgd")).get_states()


@pytest.mark.parametrize(("version", "name"), [(1, "sgld"), (1, "lbsgd"), (2, "sgld"), (2, "lans")])
def test_optimizers_that_are_not_built_are_refused_by_name(version: Version, name: str) -> None:
    with as_mxnet(version), pytest.raises(MXNetError, match=name):
        optimizer.create(name)


def test_an_optimizer_of_the_other_version_is_not_found() -> None:
    with pytest.raises(ValueError, match="Cannot find optimizer lbsgd"):
        optimizer.create("lbsgd")


def test_a_step_changes_the_tensors_in_place() -> None:
    net = dense()
    tensor, version = net.weight.tensor, net.weight.tensor.data_ptr()
    trained(Trainer(net.collect_params(), "adam"), net)
    assert net.weight.tensor is tensor
    assert tensor.data_ptr() == version
    assert tensor.requires_grad


def test_losses_accept_tensors_as_modules_of_torch_do() -> None:
    pred = torch.tensor([[1.0, 2.0]], requires_grad=True)
    result = loss.SoftmaxCrossEntropyLoss()(pred, torch.tensor([1]))
    assert isinstance(result, torch.Tensor)
    result.sum().backward()
    assert pred.grad is not None
    assert pred.grad.numpy() == pytest.approx(numpy.array([[0.2689414, -0.2689414]]))


def test_a_user_s_own_loss_and_keywords() -> None:
    class Twice(loss.L2Loss):
        def forward(self, pred: Any, label: Any, sample_weight: Any = None) -> Any:
            return 2 * super().forward(pred, label, sample_weight)

    x, y = np.array([[1.0, 3.0]]), np.array([[0.0, 0.0]])
    assert Twice()(x, y).item() == 5.0
    assert loss.L2Loss()(x, y, sample_weight=np.array([[2.0]])).item() == 5.0


def test_ftml_with_a_learning_rate_of_0_gives_nan_as_in_mxnet() -> None:
    parameter = Parameter("w", shape=(2,), init="ones", lr_mult=0.0)
    parameter.initialize()
    trainer = Trainer([parameter], "ftml")
    with autograd.record():
        total = (parameter.data() * 2).sum()
    total.backward()
    trainer.step(1)
    assert numpy.isnan(parameter.data().asnumpy()).all()


@pytest.mark.parametrize("update_on_kvstore", [True, False])
def test_set_data_drops_the_momentum_of_a_store_that_updates(update_on_kvstore: bool) -> None:
    contexts = [cpu(0), cpu(1)]
    parameter = Parameter("w", shape=(2,), init="ones")
    parameter.initialize(device=contexts)
    options = {"learning_rate": 0.1, "momentum": 0.9}
    trainer = Trainer([parameter], "sgd", options, update_on_kvstore=update_on_kvstore)
    seen = []
    for step in range(4):
        if step == 2:
            parameter.set_data(np.full(2, 3.0))
        with autograd.record():
            totals = [(parameter.data(context) * 2).sum() for context in contexts]
        for total in totals:
            total.backward()
        trainer.step(1)
        seen.append(float(parameter.data(contexts[1])[0]))
    # as MXNet computed it
    assert seen == pytest.approx([0.6, -0.16, *([2.6, 1.84] if update_on_kvstore else [1.916, 0.5404])], abs=1e-5)
