"""Shapes that are known later, and layers of one's own. MXNet 1.x."""

# ruff: noqa: N803

import mxnet as mx
from _printing import error, heading, rounded
from mxnet import gluon, init, nd
from mxnet.gluon import nn


class Reporting(init.Initializer):
    def _init_weight(self, name, data):
        print("Init", name, data.shape)
        data[:] = 0.5


heading("At the first forward pass")
net = nn.HybridSequential(prefix="net_")
with net.name_scope():
    net.add(nn.Dense(4, activation="relu"), nn.Dense(3, in_units=4), nn.Dense(2))
net.initialize(init=Reporting())
print(net.collect_params())
print("forward")
print(rounded(net(nd.ones((1, 6)))))
net(nd.ones((3, 6)))
net.initialize(init=Reporting(), force_reinit=True)
print(net)

heading("Layers without and with parameters")


class Centered(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.broadcast_sub(x, x.mean())


print(Centered()(nd.array([1, 2, 3, 4, 5])), Centered())


class OwnDense(gluon.HybridBlock):
    def __init__(self, units, in_units=0, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(units, in_units), allow_deferred_init=True)
            self.bias = self.params.get("bias", shape=(units,), init="zeros")
        self._units = units

    def hybrid_forward(self, F, x, weight, bias):
        return F.relu(F.FullyConnected(x, weight, bias, num_hidden=self._units))


for dense in (OwnDense(3, 5), OwnDense(3)):
    mx.random.seed(1)
    dense.initialize()
    print(rounded(dense(nd.ones((2, 5)))), dense, dense.params)
net = nn.HybridSequential()
net.add(OwnDense(8), OwnDense(1))
net.initialize(Reporting())
print(rounded(net(nd.ones((2, 16)))))


class Scaled(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(3)
            self.scale = self.params.get("scale", shape=(0, 0), allow_deferred_init=True, init="ones")

    def hybrid_forward(self, F, x, scale):
        return self.dense(x) * scale


scaled = Scaled()
scaled.initialize(Reporting())
print(rounded(scaled(nd.ones((2, 4)))), scaled.collect_params())


class Doubled(nn.Dense):
    def hybrid_forward(self, F, x, weight, bias=None):
        return super().hybrid_forward(F, x, weight, bias) * 2


doubled = Doubled(2, in_units=3)
doubled.initialize(init.One())
print(doubled(nd.ones((1, 3))), doubled.name)
error(lambda: gluon.Parameter("w", shape=(3, 0)).initialize())
error(lambda: gluon.Parameter("w").initialize())
