"""`lw.tie` and `lw.untie` on Blocks: a tie is a Parameter that two Blocks share."""

import copy
from typing import Any

import pytest
import torch

import leafwise as lw
from leafwise_gluon import as_mxnet, nn

BOTH = pytest.mark.parametrize("version", [1, 2])


def net_of(version: Any) -> tuple[Any, Any]:
    """Three Dense layers of the same size, and an input for them."""
    with as_mxnet(version):
        import mxnet as mx

        net = mx.gluon.nn.HybridSequential()
        with net.child_names():
            for _ in range(3):
                net.add(mx.gluon.nn.Dense(4, in_units=4))
        net.initialize()
        return net, (mx.nd if version == 1 else mx.np).ones((2, 4))


def tied_paths(net: Any) -> list[list[str]]:
    return [[str(name.path) for name in tie.names] for tie in lw.ties(net)]


@BOTH
def test_tie_makes_blocks_share_a_parameter(version: Any) -> None:
    net, x = net_of(version)
    values = net[0].weight.data().asnumpy()
    assert lw.tie(net, "2.weight", to="0.weight", keep="source") is net
    assert net[2].weight is net[0].weight
    assert tied_paths(net) == [["0.weight", "2.weight"]]
    assert (net[2].weight.data().asnumpy() == values).all()
    assert len(list(net.parameters())) == 5
    assert len(list(net.collect_params().keys())) == (
        5 if version == 1 else 6
    )  # 2.x lists a shared parameter under each path
    untied = lw.untie(copy.deepcopy(net), "2.weight")
    with as_mxnet(version):
        from mxnet import autograd

        for model in (net, untied):
            with autograd.record():
                loss = model(x).sum()
            loss.backward()
    both = untied[0].weight.tensor.grad + untied[2].weight.tensor.grad
    torch.testing.assert_close(net[0].weight.tensor.grad, both)


@BOTH
@pytest.mark.parametrize(("keep", "kept"), [("source", 1.0), ("target", 3.0), ("mean", 2.0)])
def test_keep_chooses_the_values(version: Any, keep: Any, kept: float) -> None:
    net, _ = net_of(version)
    with torch.no_grad():
        net[0].weight.tensor.fill_(1)
        net[1].weight.tensor.fill_(3)
    lw.tie(net, "1.weight", to="0.weight", keep=keep)
    assert net[1].weight.data().asnumpy().tolist() == [[kept] * 4] * 4


@BOTH
def test_untie_gives_a_block_a_parameter_of_its_own(version: Any) -> None:
    net, _ = net_of(version)
    lw.tie(net, "1.weight", to="0.weight", keep="source")
    before = net[1].weight.data().asnumpy()
    lw.untie(net, "1.weight")
    assert tied_paths(net) == []
    assert net[1].weight is not net[0].weight
    assert (net[1].weight.data().asnumpy() == before).all()
    assert len(list(net.collect_params().keys())) == 6
    net[1].weight.set_data(net[1].weight.data() * 0)
    assert (net[0].weight.data().asnumpy() == before).all()


@BOTH
def test_a_tie_survives_what_pytorch_does(version: Any) -> None:
    net, _ = net_of(version)
    lw.tie(net, "2.weight", to="0.weight", keep="source")
    lw.keep_ties(net)
    net.double()
    net.load_state_dict({name: torch.zeros_like(tensor) for name, tensor in net.state_dict().items()}, assign=True)
    assert tied_paths(net) == [["0.weight", "2.weight"]]
    net.to_empty(device="cpu")
    assert tied_paths(net) == [["0.weight", "2.weight"]]


def test_a_transposed_tie_of_blocks_is_refused() -> None:
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=4), nn.Dense(4, in_units=3))
    net.initialize()
    with pytest.raises(lw.Error, match="which shares parameters as they are; only a plain tie is possible"):
        lw.tie(net, "1.weight", to="0.weight", transpose=True, keep="source")


@BOTH
def test_the_code_of_a_path_reaches_the_tensor(version: Any) -> None:
    net, _ = net_of(version)
    code = lw.tree(net)["1.weight"].path.code("net")
    assert code == "net[1].weight.tensor"
    assert eval(code) is net[1].weight.tensor
