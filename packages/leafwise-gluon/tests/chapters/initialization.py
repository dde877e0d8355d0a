"""Initial values: built-in initializers, one's own, values that are set. Runs on both versions of MXNet."""

import mxnet as mx
from _printing import error, heading, rounded
from mxnet import gluon, init, np, npx
from mxnet.gluon import nn

npx.set_np()
X = np.random.uniform(size=(2, 6))


def network():
    net = nn.Sequential()
    net.add(nn.Dense(4, activation="relu"), nn.Dense(2))
    return net


heading("The default")
net = network()
net.initialize()
print(rounded(net(X)))
print(net[0].weight.data(), net[0].bias.data())

heading("One initializer for all")
for initializer in (init.Normal(0.1), init.Uniform(0.2), init.Constant(3), init.One(), init.Zero(), "xavier", "ones"):
    mx.random.seed(11)
    net.initialize(initializer, force_reinit=True)
    print(rounded(net[0].weight.data()[0]), rounded(net[0].bias.data()))

heading("Another for each layer")
mx.random.seed(5)
net = network()
net.initialize(init.Normal(0.5))
net[0].weight.initialize(init=init.Xavier(), force_reinit=True)
net[1].initialize(init=init.Constant(42), force_reinit=True)
print(rounded(net(X)))
print(rounded(net[0].weight.data()[0]), rounded(net[1].weight.data()[0]))
layer = nn.Dense(3, in_units=2, weight_initializer=init.Orthogonal(), bias_initializer=init.Constant(0.5))
layer.initialize(init.Zero())
print(np.dot(layer.weight.data().T, layer.weight.data()).round(3), layer.bias.data())

heading("Scales")
for variant in (
    init.Xavier("gaussian", "in", 2),
    init.Xavier("uniform", "out", 6),
    init.MSRAPrelu(),
    init.MSRAPrelu("in", 0),
):
    mx.random.seed(9)
    weight = gluon.Parameter("weight", shape=(40, 10, 3, 3))
    weight.initialize(variant)
    values = weight.data()
    print(type(variant).__name__, f"{float(values.std()):.5f}", rounded(values[0, 0, 0]))
upsampling = gluon.Parameter("weight", shape=(1, 1, 4, 4))
upsampling.initialize(init.Bilinear())
print(upsampling.data())
forget = gluon.Parameter("i2h_bias", shape=(8,))
forget.initialize(init.LSTMBias(forget_bias=1.0))
print(forget.data())

heading("An initializer of one's own")


class TwoSided(init.Initializer):
    """Values between 5 and 10 of either sign, and zeros."""

    def _init_weight(self, name, data):
        print("Init", name.split("_")[-1], data.shape)
        data[:] = np.random.uniform(-10, 10, data.shape)
        data *= np.abs(data) >= 5


mx.random.seed(2)
net = network()
net.initialize(TwoSided())
net(X)
print(rounded(net[0].weight.data()[:2]))


@init.register
class Ramp(init.Initializer):
    def _init_weight(self, _, data):
        data[:] = np.arange(data.size).reshape(data.shape) / data.size


net.initialize("ramp", force_reinit=True)
print(rounded(net[1].weight.data()))

heading("Values that are set")
net[0].weight.data()[:] += 1
net[0].weight.data()[0, 0] = 42
print(rounded(net[0].weight.data()[0]))
net[1].bias.set_data(np.array([1, 2]))
print(net[1].bias.data(), rounded(net(X)))
error(lambda: net[1].bias.set_data(np.array([1, 2, 3])))
error(lambda: net.initialize("unheard", force_reinit=True))
