"""Linear regression, from scratch and with layers; weight decay. Runs on both versions of MXNet."""

# ruff: noqa: N803, N806

import mxnet as mx
from _printing import heading, rounded
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn

npx.set_np()
COUNT, BATCH = 120, 10
true_w, true_b = np.array([2, -3.4]), 4.2


def synthetic(w, b, count):
    X = np.random.normal(0, 1, (count, len(w)))
    y = np.dot(X, w) + b
    y += np.random.normal(0, 0.01, y.shape)
    return X, y.reshape((-1, 1))


def batches(X, y, order):
    for start in range(0, len(y), BATCH):
        rows = np.array(order[start : start + BATCH])
        yield X[rows], y[rows]


heading("Data")
features, labels = synthetic(true_w, true_b, COUNT)
print(features[0], labels[0], features.shape, labels.shape, labels.dtype)
order = [number * 7 % COUNT for number in range(COUNT)]
X, y = next(batches(features, labels, order))
print(rounded(X[:2]), rounded(y[:2]))

heading("From scratch")
w = np.random.normal(0, 0.01, (2, 1))
b = np.zeros(1)
w.attach_grad()
b.attach_grad()
print(w, b, w.grad)


def model(X):
    return np.dot(X, w) + b


def squared_loss(guess, y):
    return (guess - y.reshape(guess.shape)) ** 2 / 2


def descend(params, rate, size):
    for param in params:
        param[:] = param - rate * param.grad / size


for epoch in range(3):
    for X, y in batches(features, labels, order):
        with autograd.record():
            loss = squared_loss(model(X), y)
        loss.backward()
        descend([w, b], 0.1, BATCH)
    print(f"epoch {epoch + 1}, loss {float(squared_loss(model(features), labels).mean()):.4f}")
print(rounded(w), rounded(b), rounded(w.grad))
print(rounded(true_w - w.reshape(true_w.shape), 3), rounded(true_b - b, 3))

heading("With layers")
dataset = gluon.data.ArrayDataset(features, labels)
loader = gluon.data.DataLoader(dataset, BATCH, shuffle=False)
net = nn.Sequential()
net.add(nn.Dense(1))
net.initialize(init.Normal(sigma=0.01))
half_square = gluon.loss.L2Loss()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
for epoch in range(3):
    for X, y in loader:
        with autograd.record():
            loss = half_square(net(X), y)
        loss.backward()
        trainer.step(BATCH)
    print(f"epoch {epoch + 1}, loss {half_square(net(features), labels).mean().asnumpy():.4f}")
print(rounded(net[0].weight.data()), rounded(net[0].bias.data()), loss.shape)

heading("Other losses")
for criterion in (gluon.loss.L1Loss(), gluon.loss.L2Loss(weight=0.5)):
    net.initialize(init.Normal(sigma=0.01), force_reinit=True)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.2})
    for X, y in loader:
        with autograd.record():
            loss = criterion(net(X), y)
        loss.backward()
        trainer.step(BATCH)
    print(criterion, rounded(net[0].weight.data()), f"{float(criterion(net(features), labels).mean()):.4f}")

heading("Weight decay")
mx.random.seed(4)
width = 40
train = synthetic(np.ones(width) * 0.01, 0.05, 20)
test = synthetic(np.ones(width) * 0.01, 0.05, 50)
for decay in (0, 3):
    net = nn.Sequential()
    net.add(nn.Dense(1))
    net.initialize(init.Normal(sigma=1))
    for parameter in net.collect_params(".*bias").values():
        parameter.wd_mult = 0
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.02, "wd": decay})
    for _ in range(20):
        with autograd.record():
            loss = half_square(net(train[0]), train[1])
        loss.backward()
        trainer.step(20)
    losses = [float(half_square(net(X), y).mean()) for X, y in (train, test)]
    print([f"{value:.4f}" for value in losses], f"{float(np.sqrt((net[0].weight.data() ** 2).sum())):.4f}")
