"""The networks whose parameters are in the files of tests/files. Runs on MXNet and here, in both dialects.

The values of the parameters follow from their paths, so that the tests know them.
"""

from contextlib import nullcontext
from typing import Any

from zoo_facts import values


def net_of(nn: Any, version: int) -> Any:
    """A small network with a convolution, statistics, and a Dense layer that is used twice."""
    net = nn.HybridSequential(**({"prefix": "net_"} if version == 1 else {}))
    with net.name_scope() if version == 1 else nullcontext():
        conv, norm, shared = nn.Conv2D(4, 3, in_channels=2), nn.BatchNorm(in_channels=4), nn.Dense(5, in_units=5)
        twin = nn.Dense(5, in_units=5, **({"params": shared.params} if version == 1 else {}))
        last = nn.Dense(5, in_units=16)
    if version == 2:
        twin.share_parameters(shared.collect_params())
    net.add(conv, norm, last, shared, twin)
    return net


def filled(net: Any, array: Any) -> Any:
    """The network, with the values of every parameter set."""
    for path, parameter in net._collect_params_with_prefix().items():
        parameter.set_data(array(values(path, parameter.shape)))
    return net
