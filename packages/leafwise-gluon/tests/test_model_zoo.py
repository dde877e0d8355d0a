"""The networks of the model zoo have MXNet's parameter names, shapes and outputs."""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import zoo_facts

from leafwise_gluon import as_mxnet

HERE = Path(__file__).parent
GOLDEN = {version: json.loads((HERE / f"zoo_facts{version}.golden.json").read_text()) for version in (1, 2)}
SLOW, LARGE = pytest.mark.slow, ("alexnet", "vgg11", "vgg11_bn")  # of which each has tens of millions of parameters


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SLOW if name in LARGE else ()) for name in zoo_facts.NETWORKS]
)
@pytest.mark.parametrize("version", [1, 2])
def test_names_shapes_and_outputs_are_those_of_mxnet(version: Any, name: str) -> None:
    with as_mxnet(version):
        import mxnet as mx
        from mxnet.gluon.model_zoo import vision

        array = mx.nd.array if version == 1 else mx.np.array
        facts = zoo_facts.facts(vision, array, name, **({"prefix": "net_"} if version == 1 else {}))
    expected = GOLDEN[version][name]
    numpy.testing.assert_allclose(facts.pop("output"), expected.pop("output"), rtol=1e-5, atol=5e-5)
    assert facts == expected


def test_weights_are_not_downloaded(tmp_path: Path) -> None:
    from leafwise_gluon import MXNetError
    from leafwise_gluon.model_zoo import vision

    with pytest.raises(MXNetError, match=r"downloading the weights of alexnet; put alexnet-XXXXXXXX\.params"):
        vision.alexnet(pretrained=True, root=str(tmp_path))


def test_pretrained_weights_are_taken_from_a_file_that_mxnet_downloaded(tmp_path: Path) -> None:
    from leafwise_gluon import np
    from leafwise_gluon.model_zoo import vision

    net = vision.squeezenet1_1(classes=2)
    net.initialize()
    net(np.zeros((1, 3, 224, 224)))
    net.save_parameters(str(tmp_path / "squeezenet1.1-0123abcd.params"))
    loaded = vision.get_model("squeezenet1.1", classes=2, pretrained=True, root=str(tmp_path))
    for name, parameter in net.collect_params().items():
        assert (loaded.collect_params()[name].data() == parameter.data()).all()


def test_an_unknown_network_is_an_error_that_lists_the_known_ones() -> None:
    from leafwise_gluon.model_zoo import vision

    with pytest.raises(ValueError, match=r"Model nonet is not supported\. Available options are\n\talexnet"):
        vision.get_model("nonet")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", ["resnet18_v1", "resnet50_v1", "resnet18_v2", "squeezenet1.1", "mobilenetv2_0.25"])
def test_initial_values_are_drawn_in_mxnets_order(version: Any, name: str) -> None:
    with as_mxnet(version):
        import mxnet as mx
        from mxnet.gluon.model_zoo import vision

        facts = zoo_facts.initial_facts(mx, vision, name)
    numpy.testing.assert_allclose(facts, GOLDEN[version]["initial"][name], rtol=1e-5, atol=1e-3)
