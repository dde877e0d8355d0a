"""Parameters and layers of one's own with NumPy arrays. MXNet 1.x."""

# ruff: noqa: N803

from _printing import rounded
from mxnet import init, np, npx
from mxnet.gluon import nn

npx.set_np()


X = np.random.uniform(size=(2, 4))
net = nn.Sequential()
net.add(nn.Dense(8, activation="relu"))
net.add(nn.Dense(1))
net.initialize()
print(net, rounded(net(X)))
print(net[1].params)
print(type(net[1].bias), net[1].bias, net[1].bias.data())
print(net[1].weight.grad())
print(net.collect_params())
print(net.collect_params()["dense1_bias"].data())


def block1():
    net = nn.Sequential()
    net.add(nn.Dense(32, activation="relu"))
    net.add(nn.Dense(16, activation="relu"))
    return net


def block2():
    net = nn.Sequential()
    for _ in range(2):
        net.add(block1())
    return net


nested = nn.Sequential()
nested.add(block2(), nn.Dense(10))
nested.initialize()
nested(X)
print(nested.collect_params())
print(nested)
print(nested[0][1][0].bias.data()[:3])
net.initialize(init=init.Normal(sigma=0.01), force_reinit=True)
print(net[0].weight.data()[0])
net[0].weight.initialize(init=init.Xavier(), force_reinit=True)
print(net[0].weight.data()[0])


class CenteredLayer(nn.Block):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)

    def forward(self, X):
        return X - X.mean()


print(CenteredLayer()(np.array([1, 2, 3, 4, 5])))


class MyDense(nn.Block):
    def __init__(self, units, in_units, **kwargs):
        super().__init__(**kwargs)
        self.weight = self.params.get("weight", shape=(in_units, units))
        self.bias = self.params.get("bias", shape=(units,))

    def forward(self, x):
        linear = np.dot(x, self.weight.data(ctx=x.ctx)) + self.bias.data(ctx=x.ctx)
        return npx.relu(linear)


dense = MyDense(units=3, in_units=5)
print(dense.params)
dense.initialize()
print(rounded(dense(np.random.uniform(size=(2, 5)))))


class Hybrid(nn.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = self.params.get("scale", shape=(4,), init=init.Constant(2))
        self.shift = self.params.get_constant("shift", np.ones(4))

    def hybrid_forward(self, F, x, scale, shift):
        return F.np.maximum(F.npx.relu(x * scale), 0.5) + shift


hybrid = Hybrid()
hybrid.initialize()
print(rounded(hybrid(X)), hybrid.collect_params())
hybrid.hybridize()
print(rounded(hybrid(X)), hybrid.shift.data(), type(hybrid.scale.data()))
