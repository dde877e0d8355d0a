"""More array and gradient operations than in deck.py. Runs on both MXNet 2 and leafwise."""

import copy

from mxnet import autograd, init, np, npx
from mxnet.gluon import nn

npx.set_np()

x = np.array([[1, 2], [3, 4]])
print(x, repr(x), x.shape, x.dtype, x.size, x.ndim)
print(repr(np.ones(2, dtype="float64")), repr(np.full((2,), 3)), repr(np.ones((2, 2), dtype="int32")))
print(x + 1, 2 * x, x / 2, x**2, -x, x @ x)
print(x > 2, x == x, x[x > 2])
print(x.sum(), x.sum(axis=0), x.mean(axis=1, keepdims=True), x.max(axis=1), x.min(), x.std(), x.var())
print(x.T, x.transpose(), x.reshape(-1), x.reshape(4, 1), x.dot(x), np.dot(x, x))
print(x[0], x[:, 1], x[-1, -1], x[::-1], float(x[0, 1]))
print(np.zeros(2), np.ones((1, 2)), np.arange(3), np.arange(1, 4), np.eye(2), np.eye(2, k=1))
print(np.exp(np.zeros(2)), np.abs(-x), np.sqrt(x * x), np.square(x), np.maximum(x, 2))
print(np.concatenate([x, x], axis=1), np.stack([x, x]).shape, np.expand_dims(x, 0).shape)
print(npx.relu(x - 2), npx.sigmoid(np.zeros(1)), npx.softmax(np.zeros((1, 2))))

x[0, 0] = 9
x[1] = [7, 8]
x += 1
print(x, x.copy(), copy.deepcopy(x), x.astype("int32"), x.asnumpy().tolist())

x = np.arange(4)
x.attach_grad()
print(x.grad)
with autograd.record():
    y = 2 * np.dot(x, x)
    with autograd.pause():
        z = x * 100
y.backward()
print(x.grad, y, autograd.is_recording(), autograd.is_training())
with autograd.record():
    y = (x.copy() * 2 + np.array(x) * 3).sum()
y.backward()
print(x.grad)

layer = nn.Dense(1, in_units=2, use_bias=False)
layer.initialize(init.One())
held = layer.weight.data()
held[0, 0] = 3
print(held, layer.weight.data())


def step():
    with autograd.record():
        loss = layer(np.ones((1, 2))).sum()
    loss.backward()


step()
step()
print(layer.weight.grad())
layer.setattr("grad_req", "add")
print(layer.weight.grad())
step()
step()
print(layer.weight.grad(), layer.weight.dtype == np.float32)

np.random.seed(7)
print(np.random.uniform(-1, 1, size=(2, 2)))
print(nn.Dense(2, dtype=np.float64).weight)
