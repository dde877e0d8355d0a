"""Training as in a textbook's chapters: linear and softmax regression, an MLP with each optimizer, schedules, states.

It runs with both versions of MXNet; record_training.py records what they print.
"""

import os
import tempfile

import mxnet as mx
import numpy
from mxnet import autograd, gluon, init, lr_scheduler, np, npx
from mxnet.gluon import loss, nn

npx.set_np()
IS_V1 = mx.__version__.startswith("1")
metric = mx.metric if IS_V1 else gluon.metric
random = numpy.random.RandomState(1)

print("-- linear regression")
true_w, true_b = numpy.array([2, -3.4]), 4.2
features = random.normal(size=(200, 2)).astype("float32")
labels = (features @ true_w + true_b + random.normal(scale=0.01, size=200)).astype("float32")
dataset = gluon.data.ArrayDataset(np.array(features), np.array(labels))
loader = gluon.data.DataLoader(dataset, batch_size=10)
net = nn.Sequential()
net.add(nn.Dense(1))
mx.random.seed(1)
net.initialize(init.Normal(sigma=0.01))
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.03})
l2 = loss.L2Loss()
print(l2)
for epoch in range(3):
    for X, y in loader:
        with autograd.record():
            batch_loss = l2(net(X), y)
        batch_loss.backward()
        trainer.step(10)
    print(f"epoch {epoch + 1}, loss {float(l2(net(np.array(features)), np.array(labels)).mean()):.4f}")
print("error of w", abs(true_w - net[0].weight.data().asnumpy()).max() < 0.02, net[0].bias.data().shape)

print("-- weight decay, with other factors for the bias")
net = nn.Sequential()
net.add(nn.Dense(1))
mx.random.seed(1)
net.initialize(init.Normal(sigma=1))
net[0].bias.wd_mult = 0
net[0].bias.lr_mult = 0.5
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01, "wd": 3})
for _ in range(20):
    with autograd.record():
        batch_loss = l2(net(np.array(features)), np.array(labels))
    batch_loss.backward()
    trainer.step(200)
print(f"{float((net[0].weight.data() ** 2).sum()):.4f} {float(net[0].bias.data().sum()):.4f}")

print("-- softmax regression")
classes = random.randint(0, 5, 120).astype("int32")
images = random.normal(size=(120, 1, 4, 4)).astype("float32") * 0.5
images[range(120), 0, classes % 4, classes // 2] += 2
X, y = np.array(images), np.array(classes)


def train(net, optimizer, options, steps, every):
    trainer = gluon.Trainer(net.collect_params(), optimizer, options)
    criterion = loss.SoftmaxCrossEntropyLoss()
    for step in range(steps):
        with autograd.record():
            batch_loss = criterion(net(X), y)
        batch_loss.backward()
        trainer.step(len(y))
        if (step + 1) % every == 0:
            print(f"  {step + 1}: {float(batch_loss.mean()):.4f}", end="")
    print()
    return trainer


def mlp(*layers):
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(*layers)
    net.initialize(init.Xavier())
    net.hybridize()
    return net


net = mlp(nn.Dense(5))
train(net, "sgd", {"learning_rate": 0.5}, 30, 10)
accuracy = metric.Accuracy() if not IS_V1 else None
if accuracy is not None:
    accuracy.update([y], [net(X)])
    print(accuracy.get()[0], f"{accuracy.get()[1]:.2f}")
entropy = metric.CrossEntropy()
entropy.update([y], [npx.softmax(net(X))])
print(entropy.get()[0], f"{entropy.get()[1]:.4f}")

print("-- MLP, with each optimizer")
OPTIMIZERS = {
    "sgd": {"learning_rate": 0.1},
    "nag": {"learning_rate": 0.1, "momentum": 0.5},
    "adam": {"learning_rate": 0.01},
    "adagrad": {"learning_rate": 0.1},
    "adadelta": {"rho": 0.9},
    "rmsprop": {"learning_rate": 0.01},
    "ftrl": {"learning_rate": 0.1},
    "adamax": {"learning_rate": 0.01},
    "nadam": {"learning_rate": 0.01},
    "signum": {"learning_rate": 0.002},
    "lamb": {"learning_rate": 0.01},
    "ftml": {"learning_rate": 0.01},
    "dcasgd": {"learning_rate": 0.1},
}
if not IS_V1:
    OPTIMIZERS["adamw"] = {"learning_rate": 0.01, "wd": 0.1}
for name, options in OPTIMIZERS.items():
    print(name, end="")
    train(mlp(nn.Dense(16, activation="relu"), nn.Dense(5)), name, options, 20, 5)

print("-- schedules")
schedule = lr_scheduler.MultiFactorScheduler([3, 6], factor=0.1, base_lr=0.5)
trainer = gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": schedule, "learning_rate": 0.5})
criterion = loss.SoftmaxCrossEntropyLoss()
for _ in range(8):
    with autograd.record():
        batch_loss = criterion(net(X), y)
    batch_loss.backward()
    trainer.step(len(y))
    print(f"{trainer.learning_rate:.4f}", end=" ")
print()
try:
    trainer.set_learning_rate(0.1)
except UserWarning as warning:
    print("UserWarning", str(warning)[:30])
schedule = lr_scheduler.CosineScheduler(20, warmup_steps=5, base_lr=0.3, final_lr=0.01)
print([round(schedule(update), 4) for update in range(0, 24, 3)])
trainer = gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": lr_scheduler.FactorScheduler(1, 0.5, base_lr=3)})
print(trainer.learning_rate)

print("-- stale gradients, and parameters without values")
net = nn.Sequential()
net.add(nn.Dense(2, in_units=2), nn.Dense(2, in_units=2))
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
with autograd.record():
    out = net[0](np.ones((1, 2))).sum()
out.backward()
try:
    trainer.step(1)
except UserWarning as warning:
    print("UserWarning", str(warning)[:22])
before = net[1].weight.data().copy(), net[0].weight.data().copy()
trainer.step(1, ignore_stale_grad=True)
print((before[0] == net[1].weight.data()).all(), (before[1] == net[0].weight.data()).all())
try:
    gluon.Trainer(nn.Dense(2).collect_params(), "sgd")
except RuntimeError as error:
    print("RuntimeError", str(error)[-24:])
for wrong in ("parameters", [1]):
    try:
        gluon.Trainer(wrong, "sgd")
    except ValueError as error:
        print("ValueError", str(error)[:54])
try:
    gluon.Trainer(net.collect_params(), "unheard")
except ValueError as error:
    print("ValueError", error)

print("-- states")
net = mlp(nn.Dense(5))
trainer = train(net, "adam", {"learning_rate": 0.1}, 5, 5)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "trainer.states")
    trainer.save_states(path)
    again = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.5})
    again.load_states(path)
print(again.learning_rate, again.optimizer.num_update)
for _ in range(3):
    with autograd.record():
        batch_loss = criterion(net(X), y)
    batch_loss.backward()
    again.step(len(y))
print(f"{float(criterion(net(X), y).mean()):.4f}")

print("-- an optimizer of one's own")


@mx.optimizer.register
class Halving(mx.optimizer.Optimizer):
    """Gradient descent with a state that counts."""

    def create_state(self, index, weight):
        return mx.nd.zeros((1,))

    def update_one(self, index, weight, grad, state):
        self._update_count(index)
        state[:] += 1
        weight[:] -= self._get_lr(index) * self.rescale_grad * (grad + self._get_wd(index) * weight)

    if IS_V1:

        def update(self, index, weight, grad, state):
            self.update_one(index, weight, grad, state)

    else:

        def step(self, indices, weights, grads, states):
            for each in zip(indices, weights, grads, states, strict=True):
                self.update_one(*each)


trainer = train(mlp(nn.Dense(5)), "halving", {"learning_rate": 0.5, "wd": 0.01}, 10, 5)
print(trainer._updaters[0].states[0].asnumpy())
updater = mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))
weight = np.ones((2,))
updater(0, np.array([1.0, 2.0]), weight)
updater(0, np.array([1.0, 2.0]), weight)
print(weight, updater.states[0].asnumpy())
