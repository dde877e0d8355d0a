"""Dropout, from scratch and as a layer. Runs on both versions of MXNet."""

# ruff: noqa: N803

import mxnet as mx
import numpy
from _printing import heading
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn

npx.set_np()


def dropout(X, rate):
    assert 0 <= rate <= 1
    if rate == 1:
        return np.zeros_like(X)
    mask = np.random.uniform(0, 1, X.shape) > rate
    return mask.astype(np.float32) * X / (1.0 - rate)


heading("From scratch")
X = np.arange(16).reshape(2, 8)
for rate in (0, 0.5, 1):
    print(dropout(X, rate))

heading("As a layer")
layer = nn.Dropout(0.5)
layer.initialize()
print(layer, nn.Dropout(0.2, axes=(1,)), nn.Dropout(0))
print(layer(X))
mx.random.seed(8)
with autograd.record():
    print(layer(X))
    print(layer(X))
with autograd.record(train_mode=False):
    print(layer(X))
with autograd.train_mode():
    print(nn.Dropout(0.25)(X), nn.Dropout(0)(X))
    print(nn.Dropout(0.5, axes=(0,))(np.ones((3, 6))))
    print(nn.Dropout(0.5, axes=(1,))(np.ones((6, 3))))
    print(npx.dropout(X, p=0.5))
print(npx.dropout(X, p=0.5, mode="always"))

heading("Gradients pass where values do")
ones = np.ones((2, 8))
ones.attach_grad()
with autograd.record():
    out = layer(ones)
    total = (out * 3).sum()
total.backward()
print((ones.grad == out * 3).all(), ones.grad)

heading("In a network")
source = numpy.random.RandomState(5)
images = np.array(source.uniform(size=(32, 12)).astype("float32"))
labels = np.array((source.uniform(size=32) * 3).astype("int32"))


def network():
    mx.random.seed(1)
    net = nn.HybridSequential()
    net.add(nn.Dense(16, activation="relu"), nn.Dropout(0.2))
    net.add(nn.Dense(16, activation="relu"), nn.Dropout(0.5), nn.Dense(3))
    net.initialize(init.Normal(sigma=0.3))
    return net


criterion = gluon.loss.SoftmaxCrossEntropyLoss()
for hybridized in (False, True):
    net = network()
    net(images)
    if hybridized:
        net.hybridize()
    mx.random.seed(2)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.3})
    for step in range(12):
        with autograd.record():
            loss = criterion(net(images), labels)
        loss.backward()
        trainer.step(32)
        if step % 4 == 3:
            print(f"{float(loss.mean()):.4f} {float(criterion(net(images), labels).mean()):.4f}")
print(net)
