"""Convolutions from scratch and as layers, pooling, LeNet. Runs on both versions of MXNet."""

# ruff: noqa: N803, N806

import mxnet as mx
import numpy
from _printing import heading, rounded
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn

npx.set_np()

heading("Cross-correlation from scratch")


def correlate(X, K):
    height, width = K.shape
    Y = np.zeros((X.shape[0] - height + 1, X.shape[1] - width + 1))
    for row in range(Y.shape[0]):
        for column in range(Y.shape[1]):
            Y[row, column] = (X[row : row + height, column : column + width] * K).sum()
    return Y


X = np.arange(12).reshape(3, 4)
print(correlate(X, np.array([[0, 1], [2, 3]])))
edges = np.ones((4, 6))
edges[:, 2:4] = 0
kernel = np.array([[1, -1]])
Y = correlate(edges, kernel)
print(Y, correlate(edges.T, kernel))

heading("A kernel that is learned")
conv = nn.Conv2D(1, kernel_size=(1, 2), use_bias=False)
conv.initialize()
X, target = edges.reshape(1, 1, 4, 6), Y.reshape(1, 1, 4, 5)
for step in range(10):
    with autograd.record():
        loss = (conv(X) - target) ** 2
    loss.backward()
    conv.weight.data()[:] -= 3e-2 * conv.weight.grad()
    if step % 3 == 0:
        print(f"step {step}, loss {float(loss.sum()):.4f}")
print(rounded(conv.weight.data()))

heading("Padding, strides, channels")
image = np.random.uniform(size=(1, 1, 8, 8))
for options in (
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": (5, 3), "padding": (2, 1)},
    {"kernel_size": 3, "padding": 1, "strides": 2},
    {"kernel_size": (3, 5), "padding": (0, 1), "strides": (3, 4)},
    {"kernel_size": 3, "dilation": 2, "activation": "relu"},
):
    conv = nn.Conv2D(2, **options)
    conv.initialize(init.Xavier())
    out = conv(image)
    print(conv, out.shape, f"{float(out.sum()):.4f}")
grouped = nn.Conv2D(4, 1, groups=2)
grouped.initialize(init.One())
print(grouped(np.ones((1, 6, 2, 2)))[0, :, 0, 0], grouped.weight.shape)
for conv, sizes in ((nn.Conv1D(2, 3), (5,)), (nn.Conv3D(2, 2), (4, 3, 2))):
    conv.initialize(init.One())
    print(conv, conv(np.ones((1, 3, *sizes))).shape)

heading("Pooling")
X = np.arange(16).reshape(1, 1, 4, 4)
for pool in (
    nn.MaxPool2D(3),
    nn.MaxPool2D(3, padding=1, strides=2),
    nn.AvgPool2D(2),
    nn.AvgPool2D((2, 3), strides=(2, 3), padding=(0, 1)),
    nn.AvgPool2D(3, padding=1, count_include_pad=False, strides=2),
    nn.MaxPool2D(3, strides=2, ceil_mode=True),
    nn.GlobalAvgPool2D(),
    nn.GlobalMaxPool2D(),
):
    print(pool, rounded(pool(X)))

heading("LeNet")


def lenet():
    mx.random.seed(4)
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(channels=4, kernel_size=5, padding=2, activation="sigmoid"),
        nn.AvgPool2D(pool_size=2, strides=2),
        nn.Conv2D(channels=6, kernel_size=3, activation="sigmoid"),
        nn.AvgPool2D(pool_size=2, strides=2),
        nn.Dense(12, activation="sigmoid"),
        nn.Dense(8, activation="sigmoid"),
        nn.Dense(3),
    )
    net.initialize(init.Xavier())
    return net


source = numpy.random.RandomState(2)
digits = source.randint(0, 3, 24)
images = source.uniform(size=(24, 1, 12, 12)).astype("float32")
images[numpy.arange(24), 0, digits * 4] += 2
X, y = np.array(images), np.array(digits)
net = lenet()
out = X[:1]
for layer in net:
    out = layer(out)
    print(type(layer).__name__, out.shape)
print([parameter.shape for parameter in net.collect_params().values()])
criterion = gluon.loss.SoftmaxCrossEntropyLoss()
for hybridized in (False, True):
    net = lenet()
    if hybridized:
        net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.02})
    for step in range(20):
        with autograd.record():
            loss = criterion(net(X), y)
        loss.backward()
        trainer.step(24)
        if step % 5 == 4:
            print(f"step {step + 1}, loss {float(loss.mean()):.4f}")
print(net)
