"""Shapes that follow from the first input. Runs on both versions of MXNet."""

import mxnet as mx
from _printing import error, heading, rounded
from mxnet import init, np, npx
from mxnet.gluon import nn

npx.set_np()


def network():
    net = nn.HybridSequential()
    net.add(nn.Dense(4, activation="relu"), nn.BatchNorm(), nn.Dense(3, in_units=4), nn.Dense(2, use_bias=False))
    return net


def shapes(net):
    print([parameter.shape for parameter in net.collect_params().values()])


class Reporting(init.Initializer):
    def _init_weight(self, name, data):
        print("Init", data.shape)
        data[:] = 0.25


heading("Before the first input")
net = network()
print(net)
error(lambda: net[0].weight.data() and None)
shapes(net)
net.initialize(Reporting())
shapes(net)
error(lambda: net[0].weight.data() and None)
error(lambda: net[0].weight.grad() and None)
error(lambda: net.save_parameters("nowhere.params"))

heading("The first input, and the next")
print(rounded(net(np.ones((2, 5)))))
shapes(net)
print(net)
print(rounded(net(np.ones((1, 5)))))
net.initialize(Reporting(), force_reinit=True)

heading("Some shapes are known")
net = nn.Sequential()
net.add(nn.Dense(2, in_units=3), nn.Dense(2), nn.Dense(2, in_units=2))
net.initialize(Reporting())
net(np.ones((1, 3)))

heading("Values that are set before the first input")
net = nn.Dense(2)
net.initialize()
net.weight.set_data(np.ones((2, 3)))
print(net.weight.shape, rounded(net(np.ones((1, 3)))))

heading("Convolutions, norms and embeddings")
net = nn.HybridSequential()
net.add(nn.Conv2D(2, 3, padding=1), nn.BatchNorm(), nn.Conv2DTranspose(3, 2, strides=2), nn.LayerNorm(), nn.Dense(2))
net.initialize(init.One())
shapes(net)
mx.random.seed(0)
print(rounded(net(np.random.uniform(size=(1, 3, 4, 4)))))
shapes(net)
print(net)
net = nn.Embedding(4, 2)
net.initialize()
print(net(np.array([1, 3])).shape, net)

heading("Hybridized")
net = network()
net.initialize(Reporting())
net.hybridize()
print(rounded(net(np.ones((2, 5)))))
shapes(net)
