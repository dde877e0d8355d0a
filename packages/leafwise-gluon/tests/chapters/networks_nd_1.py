"""From regression to residual networks with arrays of nd and hybrid_forward. MXNet 1.x."""

# ruff: noqa: N803

import mxnet as mx
import numpy
from _printing import heading, rounded
from mxnet import autograd, gluon, init, nd
from mxnet.gluon import nn

source = numpy.random.RandomState(4)

heading("Linear regression from scratch")
X = nd.array(source.normal(size=(60, 2)))
y = nd.dot(X, nd.array([[2], [-3.4]])) + 4.2
w, b = nd.random.normal(scale=0.01, shape=(2, 1)), nd.zeros(shape=(1,))
for param in (w, b):
    param.attach_grad()
for epoch in range(3):
    for start in range(0, 60, 10):
        with autograd.record():
            loss = (nd.dot(X[start : start + 10], w) + b - y[start : start + 10]) ** 2 / 2
        loss.backward()
        for param in (w, b):
            param[:] = param - 0.1 * param.grad / 10
    print(epoch, f"{((nd.dot(X, w) + b - y) ** 2 / 2).mean().asscalar():.4f}")
print(rounded(w), rounded(b))


def train(net, optimizer, options, data, labels, criterion, steps=9):
    trainer = gluon.Trainer(net.collect_params(), optimizer, options)
    for step in range(steps):
        with autograd.record():
            loss = criterion(net(data), labels)
        loss.backward()
        trainer.step(data.shape[0])
        if step % 4 == 0:
            print(f"{loss.mean().asscalar():.4f}", end=" ")
    print(f"{criterion(net(data), labels).mean().asscalar():.4f}")


heading("Linear regression with layers")
for criterion in (gluon.loss.L2Loss(), gluon.loss.L1Loss(), gluon.loss.HuberLoss(rho=0.5)):
    mx.random.seed(1)
    net = nn.Sequential()
    net.add(nn.Dense(1))
    net.initialize(init.Normal(sigma=0.01))
    train(net, "sgd", {"learning_rate": 0.3}, X, y, criterion)

heading("Softmax regression, and a perceptron with dropout")
digits = source.randint(0, 3, 24)
images = source.uniform(size=(24, 1, 8, 8)).astype("float32")
images[numpy.arange(24), 0, digits * 3] += 1
X, y = nd.array(images), nd.array(digits)
criterion = gluon.loss.SoftmaxCrossEntropyLoss()


def sequence(*layers, prefix=None):
    mx.random.seed(3)
    net = nn.HybridSequential(prefix=prefix)
    net.add(*layers)
    return net


for layers in (
    [nn.Dense(3)],
    [nn.Flatten(), nn.Dense(12, activation="tanh"), nn.Dense(3)],
    [nn.Dense(12, activation="relu"), nn.Dropout(0.3), nn.Dense(3)],
):
    net = sequence(*layers)
    net.initialize(init.Normal(sigma=0.1))
    train(net, "sgd", {"learning_rate": 0.5, "momentum": 0.5, "wd": 0.01}, X, y, criterion)
    net.hybridize()
    print(rounded(net(X[:1]), 3), f"{(net(X).argmax(axis=1) == y).mean().asscalar():.3f}")

heading("LeNet and VGG")
lenet = sequence(
    nn.Conv2D(channels=4, kernel_size=3, padding=1, activation="sigmoid"),
    nn.MaxPool2D(pool_size=2, strides=2),
    nn.Dense(8, activation="sigmoid"),
    nn.Dense(3),
    prefix="lenet_",
)
vgg = nn.HybridSequential(prefix="vgg_")
with vgg.name_scope():
    for channels in (4, 6):
        vgg.add(nn.Conv2D(channels, kernel_size=3, padding=1, use_bias=False), nn.BatchNorm())
        vgg.add(nn.Activation("relu"), nn.MaxPool2D())
    vgg.add(nn.Dense(3))
for net in (lenet, vgg):
    mx.random.seed(5)
    net.initialize(init.Xavier())
    print(net(X).shape, net)
    train(net, "adam", {"learning_rate": 0.02}, X, y, criterion)
print(vgg.collect_params())

heading("Residual blocks")


class Residual(gluon.HybridBlock):
    def __init__(self, channels, strides=1, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.body = nn.HybridSequential(prefix="")
            self.body.add(nn.Conv2D(channels, 3, strides, 1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
            self.body.add(nn.Conv2D(channels, 3, 1, 1, use_bias=False), nn.BatchNorm())
            self.shortcut = nn.Conv2D(channels, 1, strides, use_bias=False, prefix="down_") if strides > 1 else None

    def hybrid_forward(self, F, x):
        shortcut = x if self.shortcut is None else self.shortcut(x)
        return F.Activation(self.body(x) + shortcut, act_type="relu")


net = nn.HybridSequential(prefix="res_")
with net.name_scope():
    net.add(
        nn.Conv2D(4, 3, padding=1, use_bias=False),
        Residual(4),
        Residual(6, strides=2),
        nn.GlobalAvgPool2D(),
        nn.Dense(3),
    )
mx.random.seed(6)
net.initialize(init.MSRAPrelu())
net(X)
net.hybridize()
train(net, "nag", {"learning_rate": 0.05, "momentum": 0.5}, X, y, criterion)
print(list(net.collect_params()))

heading("Norms")
grid = nd.array(source.uniform(size=(2, 4, 3)))
for norm in (nn.BatchNorm(), nn.LayerNorm(), nn.InstanceNorm(), nn.GroupNorm(num_groups=2)):
    norm.initialize()
    grid.attach_grad()
    with autograd.record():
        out = norm(grid)
        total = (out * out * grid).sum()
    total.backward()
    print(norm, rounded(out[0, 0]), rounded(grid.grad[0, 1], 3), [each.shape for each in norm.params.values()])
