"""Layers of one's own, without and with parameters. Runs on both versions of MXNet."""

# ruff: noqa: N803

import mxnet as mx
from _printing import error, heading, rounded
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn

npx.set_np()
IS_V1 = mx.__version__.startswith("1")

heading("Without parameters")


class Centered(nn.Block):
    def forward(self, x):
        return x - x.mean()


print(Centered()(np.array([1, 2, 3, 4, 5])), Centered())
net = nn.Sequential()
net.add(nn.Dense(16), Centered())
net.initialize()
print(abs(float(net(np.random.uniform(size=(4, 8))).mean())) < 1e-6)

heading("With parameters")


class OwnDense(nn.Block):
    def __init__(self, units, in_units, **kwargs):
        super().__init__(**kwargs)
        if IS_V1:
            self.weight = self.params.get("weight", shape=(in_units, units))
            self.bias = self.params.get("bias", shape=(units,), init="zeros")
        else:
            self.weight = gluon.Parameter("weight", shape=(in_units, units))
            self.bias = gluon.Parameter("bias", shape=(units,), init="zeros")

    def forward(self, x):
        return npx.relu(np.dot(x, self.weight.data()) + self.bias.data())


dense = OwnDense(3, in_units=5)
print(dense.params)
error(lambda: dense(np.ones((1, 5))))
dense.initialize()
print(rounded(dense(np.random.uniform(size=(2, 5)))))
net = nn.Sequential()
net.add(OwnDense(8, in_units=16), OwnDense(1, in_units=8))
net.initialize(init.Normal(0.5))
print(rounded(net(np.random.uniform(size=(2, 16)))))
print(list(net.collect_params()), net)

heading("Gradients, and a step")
with autograd.record():
    loss = (dense(np.ones((2, 5))) ** 2).sum()
loss.backward()
print(f"{float(loss):.4f}", rounded(dense.bias.grad()))
trainer = gluon.Trainer(dense.collect_params(), "sgd", {"learning_rate": 0.1})
trainer.step(1)
print(rounded(dense.bias.data()))

heading("A quadratic form, with a constant")


class Quadratic(nn.Block):
    """Σ over i and j of x_i W_kij x_j, plus a constant that is not trained."""

    def __init__(self, units, width):
        super().__init__()
        if IS_V1:
            self.weight = self.params.get("weight", shape=(units, width, width), init=init.Uniform(1))
            self.shift = self.params.get_constant("shift", np.arange(units))
        else:
            self.weight = gluon.Parameter("weight", shape=(units, width, width), init=init.Uniform(1))
            self.shift = gluon.Constant(np.arange(units))

    def forward(self, x):
        return np.einsum("bi,kij,bj->bk", x, self.weight.data(), x) + self.shift.data()


quadratic = Quadratic(2, 3)
quadratic.initialize()
with autograd.record():
    out = quadratic(np.array([[1.0, 2.0, 3.0]]))
out.backward()
print(rounded(out), quadratic.weight.grad()[0], quadratic.shift.grad_req)

heading("Control flow")


class Halving(nn.Block):
    """One layer, used twice; its output is halved until it is small."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, activation="relu")
        self.fixed = np.random.uniform(size=(4, 4))

    def forward(self, x):
        x = npx.relu(np.dot(self.dense(x), self.fixed) + 1)
        x = self.dense(x)
        while np.abs(x).sum() > 1:
            x = x / 2
        return x.sum()


mx.random.seed(7)
halving = Halving()
halving.initialize(init.Uniform(0.9))
with autograd.record():
    out = halving(np.random.uniform(size=(2, 4)))
out.backward()
print(f"{float(out):.4f}", rounded(halving.dense.bias.grad()), list(halving.collect_params("dense")))

heading("Functions as layers")
net = nn.HybridSequential()
if IS_V1:
    net.add(nn.HybridLambda(lambda F, x: F.np.tanh(x)), nn.HybridLambda(lambda F, x: x * 2))
else:
    net.add(nn.HybridLambda("tanh"), nn.HybridLambda(lambda x: x * 2))
print(rounded(net(np.array([0.5, 1]))))
print(rounded(nn.Lambda(lambda x: x**2)(np.array([3, 4]))))
