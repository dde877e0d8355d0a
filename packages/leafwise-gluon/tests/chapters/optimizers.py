"""Optimizers from scratch next to those of the Trainer. Runs on both versions of MXNet."""

# ruff: noqa: N806

import numpy
from _printing import heading, rounded
from mxnet import autograd, gluon, init, lr_scheduler, np, npx
from mxnet.gluon import nn

npx.set_np()
source = numpy.random.RandomState(6)
features = np.array(source.normal(size=(60, 4)).astype("float32"))
labels = np.array((source.normal(size=(60, 4)).astype("float32") * 0.1).sum(1)) + np.dot(features, np.arange(4))
BATCH, RATE = 20, 0.05


def batches():
    for start in range(0, 60, BATCH):
        yield features[start : start + BATCH], labels[start : start + BATCH].reshape((-1, 1))


def squared_loss(guess, y):
    return (guess - y) ** 2 / 2


def sgd(param, grad, state, step):
    param[:] -= RATE * grad


def momentum(param, grad, state, step):
    (velocity,) = state
    velocity[:] = 0.9 * velocity + grad
    param[:] -= RATE * velocity


def adagrad(param, grad, state, step):
    (squares,) = state
    squares[:] += np.square(grad)
    param[:] -= RATE * grad / np.sqrt(squares + 1e-7)


def rmsprop(param, grad, state, step):
    (squares,) = state
    squares[:] = 0.9 * squares + 0.1 * np.square(grad)
    param[:] -= RATE * grad / np.sqrt(squares + 1e-8)


def adadelta(param, grad, state, step):
    squares, changes = state
    squares[:] = 0.9 * squares + 0.1 * np.square(grad)
    change = np.sqrt(changes + 1e-5) / np.sqrt(squares + 1e-5) * grad
    param[:] -= change
    changes[:] = 0.9 * changes + 0.1 * change * change


def adam(param, grad, state, step):
    mean, squares = state
    mean[:] = 0.9 * mean + 0.1 * grad
    squares[:] = 0.999 * squares + 0.001 * np.square(grad)
    param[:] -= RATE * (mean / (1 - 0.9**step)) / (np.sqrt(squares / (1 - 0.999**step)) + 1e-8)


def from_scratch(update, states):
    params = [np.ones((4, 1)) * 0.1, np.zeros(1)]
    state = [[np.zeros(param.shape) for _ in range(states)] for param in params]
    for param in params:
        param.attach_grad()
    step = 0
    for _ in range(3):
        for X, y in batches():
            with autograd.record():
                loss = squared_loss(np.dot(X, params[0]) + params[1], y).mean()
            loss.backward()
            step += 1
            for param, parts in zip(params, state, strict=True):
                update(param, param.grad, parts, step)
        print(f"{float(loss):.4f}", end=" ")
    print(rounded(params[0], 3), rounded(params[1], 3))


def with_trainer(name, options):
    net = nn.Dense(1)
    net.initialize(init.Constant(0.1))
    trainer = gluon.Trainer(net.collect_params(), name, options)
    criterion = gluon.loss.L2Loss()
    for _ in range(3):
        for X, y in batches():
            with autograd.record():
                loss = criterion(net(X), y)
            loss.backward()
            trainer.step(BATCH)
        print(f"{float(loss.mean()):.4f}", end=" ")
    print(rounded(net.weight.data(), 3), rounded(net.bias.data(), 3))


for update, states, options in (
    (sgd, 0, {"learning_rate": RATE}),
    (momentum, 1, {"learning_rate": RATE, "momentum": 0.9}),
    (adagrad, 1, {"learning_rate": RATE}),
    (rmsprop, 1, {"learning_rate": RATE}),
    (adadelta, 2, {"rho": 0.9}),
    (adam, 2, {"learning_rate": RATE}),
):
    heading(update.__name__)
    from_scratch(update, states)
    with_trainer({"momentum": "sgd"}.get(update.__name__, update.__name__), options)

heading("Others, and options of all")
for name, options in (
    ("nag", {"learning_rate": RATE, "momentum": 0.9}),
    ("adamax", {"learning_rate": RATE}),
    ("nadam", {"learning_rate": RATE}),
    ("rmsprop", {"learning_rate": RATE, "centered": True}),
    ("sgd", {"learning_rate": RATE, "wd": 0.5, "clip_gradient": 0.01}),
    ("adam", {"learning_rate": RATE, "wd": 0.1, "beta1": 0.5}),
):
    print(name, options)
    with_trainer(name, options)

heading("Schedules")
for schedule in (
    lr_scheduler.FactorScheduler(2, 0.5, base_lr=RATE),
    lr_scheduler.MultiFactorScheduler([3, 6], 0.1, base_lr=RATE),
    lr_scheduler.PolyScheduler(9, base_lr=RATE, pwr=2),
    lr_scheduler.CosineScheduler(9, base_lr=RATE, final_lr=0.01, warmup_steps=3),
):
    with_trainer("sgd", {"lr_scheduler": schedule, "learning_rate": RATE})
    print(type(schedule).__name__, [f"{schedule(update):.4f}" for update in range(1, 11)])
