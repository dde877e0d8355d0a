"""Batch normalization from scratch and as a layer; other norms. Runs on both versions of MXNet."""

# ruff: noqa: N803, N806

import mxnet as mx
import numpy
from _printing import heading, rounded
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn

npx.set_np()
IS_V1 = mx.__version__.startswith("1")

heading("From scratch")


def batch_norm(X, gamma, beta, moving_mean, moving_var, eps, momentum):
    if not autograd.is_training():
        scaled = (X - moving_mean) / np.sqrt(moving_var + eps)
    else:
        axes = 0 if X.ndim == 2 else (0, 2, 3)
        mean = X.mean(axis=axes, keepdims=True)
        var = ((X - mean) ** 2).mean(axis=axes, keepdims=True)
        scaled = (X - mean) / np.sqrt(var + eps)
        moving_mean = momentum * moving_mean + (1.0 - momentum) * mean
        moving_var = momentum * moving_var + (1.0 - momentum) * var
    return gamma * scaled + beta, moving_mean, moving_var


class OwnBatchNorm(nn.Block):
    def __init__(self, features, dims, **kwargs):
        super().__init__(**kwargs)
        shape = (1, features) if dims == 2 else (1, features, 1, 1)
        if IS_V1:
            self.gamma = self.params.get("gamma", shape=shape, init=init.One())
            self.beta = self.params.get("beta", shape=shape, init=init.Zero())
        else:
            self.gamma = gluon.Parameter("gamma", shape=shape, init=init.One())
            self.beta = gluon.Parameter("beta", shape=shape, init=init.Zero())
        self.moving_mean = np.zeros(shape)
        self.moving_var = np.ones(shape)

    def forward(self, X):
        Y, self.moving_mean, self.moving_var = batch_norm(
            X, self.gamma.data(), self.beta.data(), self.moving_mean, self.moving_var, eps=1e-5, momentum=0.9
        )
        return Y


source = numpy.random.RandomState(7)
digits = source.randint(0, 3, 24)
images = source.uniform(size=(24, 1, 8, 8)).astype("float32")
images[numpy.arange(24), 0, digits * 3] += 1
X, y = np.array(images), np.array(digits)


def network(norm):
    mx.random.seed(2)
    net = nn.Sequential()
    net.add(nn.Conv2D(4, kernel_size=3), norm(4, 4), nn.Activation("sigmoid"), nn.AvgPool2D(2, strides=2))
    net.add(nn.Dense(10), norm(10, 2), nn.Activation("sigmoid"), nn.Dense(3))
    net.initialize(init.Xavier())
    return net


def train(net):
    criterion = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    for step in range(12):
        with autograd.record():
            loss = criterion(net(X), y)
        loss.backward()
        trainer.step(len(y))
        if step % 4 == 3:
            print(f"{float(loss.mean()):.4f} {float(criterion(net(X), y).mean()):.4f}")


own = network(OwnBatchNorm)
train(own)
print(rounded(own[1].gamma.data()), rounded(own[1].beta.data()))
print(rounded(own[1].moving_mean), rounded(own[1].moving_var))

heading("As a layer")
net = network(lambda *_: nn.BatchNorm())
train(net)
print(rounded(net[1].gamma.data()), rounded(net[1].beta.data()))
print(rounded(net[1].running_mean.data()), rounded(net[1].running_var.data()))
print(net[1], [parameter.grad_req for parameter in net[1].params.values()])

heading("Options")
values = np.array([[1.0, 2.0], [3.0, 6.0], [5.0, 1.0]])
for options in (
    {},
    {"momentum": 0.5, "epsilon": 0.1},
    {"scale": False},
    {"center": False},
    {"use_global_stats": True},
    {"axis": 0},
):
    norm = nn.BatchNorm(**options)
    norm.initialize()
    values.attach_grad()
    with autograd.record():
        out = norm(values)
        total = (out**2 * np.array([1, 2])).sum()
    total.backward()
    print(options, norm)
    print(rounded(out), rounded(values.grad, 3))
    print(rounded(norm.running_mean.data()), rounded(norm.running_var.data()), rounded(norm(values)))
    print([(parameter.shape, parameter.grad_req) for parameter in norm.params.values()])

heading("Other norms")
grid = np.random.uniform(size=(2, 4, 3))
norms = [nn.LayerNorm(), nn.LayerNorm(axis=1, epsilon=0.1)]
if not IS_V1:  # which has the others for arrays of nd only
    norms += [nn.InstanceNorm(), nn.GroupNorm(num_groups=2)]
for norm in norms:
    norm.initialize()
    grid.attach_grad()
    with autograd.record():
        out = norm(grid)
        total = (out * np.arange(3)).sum()
    total.backward()
    print(norm, rounded(out[0, 0]), rounded(grid.grad[0, 1], 3), [each.shape for each in norm.params.values()])
