"""What the tests compare about the networks of the model zoo: names, shapes and outputs. Runs on MXNet and here."""

import hashlib
import zlib
from typing import Any

import numpy

# One network of each family and kind of block, with the size of the pictures it is given.
NETWORKS = {
    "alexnet": 224,
    "vgg11": 64,
    "vgg11_bn": 64,
    "resnet18_v1": 64,
    "resnet50_v1": 64,
    "resnet18_v2": 64,
    "resnet50_v2": 64,
    "densenet121": 224,
    "squeezenet1.0": 224,
    "squeezenet1.1": 224,
    "mobilenet0.25": 64,
    "mobilenetv2_0.25": 64,
    "inceptionv3": 299,
}


def facts(vision: Any, array: Any, name: str, **arguments: str) -> dict[str, Any]:
    """The names and shapes of the parameters of a network, and its output for given parameters and a given picture."""
    net = vision.get_model(name, classes=10, **arguments)
    net.initialize("zeros")
    size = NETWORKS[name]
    picture = array(numpy.random.RandomState(0).rand(1, 3, size, size).astype("float32"))
    net(picture)
    structural = net._collect_params_with_prefix()
    for path, parameter in structural.items():
        parameter.set_data(array(values(path, parameter.shape)))
    rows = [f"{path} {tuple(parameter.shape)}" for path, parameter in structural.items()]
    keys = [f"{key} {tuple(parameter.shape)}" for key, parameter in net.collect_params().items()]
    return {
        "count": len(keys),
        "keys": hashlib.sha256("\n".join(keys).encode()).hexdigest(),
        "first and last": [*keys[:3], *keys[-3:]],
        "paths": hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest(),
        "output": [round(float(number), 5) for number in net(picture).asnumpy()[0]],
    }


def initial_facts(mx: Any, vision: Any, name: str) -> list[float]:
    """The sums of the initial weights of a network after its first input, in the order of the parameters."""
    mx.random.seed(7)
    net = vision.get_model(name, classes=10)
    net.initialize(mx.init.Xavier())
    net((mx.nd if mx.__version__[0] == "1" else mx.np).zeros((1, 3, 224, 224)))
    parameters = net._collect_params_with_prefix().items()
    return [float(one.data().asnumpy().sum()) for path, one in parameters if path.endswith("weight")]


def values(path: str, shape: tuple[int, ...]) -> Any:
    """Values for a parameter, which depend on its path, and keep the outputs of layers at a similar scale."""
    random = numpy.random.RandomState(zlib.crc32(path.encode()))
    kind = path.rpartition(".")[2]
    if kind == "weight":
        return (random.randn(*shape) * numpy.sqrt(1.6 / numpy.prod(shape[1:]))).astype("float32")
    near = 1.0 if kind in ("gamma", "running_var") else 0.0
    return (near + 0.1 * random.rand(*shape)).astype("float32")
