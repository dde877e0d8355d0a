"""Softmax regression and a perceptron with one hidden layer, from scratch and with layers. Runs on both versions."""

# ruff: noqa: N803, N806

import mxnet as mx
import numpy
from _printing import heading, rounded
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn

npx.set_np()
IS_V1 = mx.__version__.startswith("1")
CLASSES, PIXELS, COUNT, BATCH = 4, 25, 96, 16

source = numpy.random.RandomState(3)
digits = source.randint(0, CLASSES, COUNT)
images = source.uniform(size=(COUNT, 1, 5, 5)).astype("float32")
images[numpy.arange(COUNT), 0, digits, digits] += 1
dataset = gluon.data.ArrayDataset(images, digits.astype("int32"))
loader = gluon.data.DataLoader(dataset, BATCH)

heading("Operations")
X = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
print(X.sum(0, keepdims=True), X.sum(1, keepdims=True))


def softmax(scores):
    exponentials = np.exp(scores)
    return exponentials / exponentials.sum(1, keepdims=True)


X = np.random.normal(0, 1, (2, 5))
print(rounded(softmax(X)), rounded(softmax(X).sum(1)))
print(rounded(npx.softmax(X) - softmax(X)), rounded(npx.log_softmax(X)))
guess = np.array([[0.1, 0.3, 0.6], [0.3, 0.2, 0.5]])
print(guess[[0, 1], [0, 2]], npx.pick(guess, np.array([0, 2])))
print(guess.argmax(axis=1), (guess.argmax(axis=1).astype("int32") == np.array([2, 1], dtype="int32")).mean())


def cross_entropy(guess, y):
    return -np.log(guess[list(range(len(guess))), y])


print(rounded(cross_entropy(guess, np.array([0, 2]))))


def accuracy(model):
    right = 0.0
    for X, y in loader:
        right += float((model(X).argmax(axis=1).astype(y.dtype) == y).astype("float32").sum())
    return right / COUNT


def train(model, criterion, step, epochs):
    for epoch in range(epochs):
        total = 0.0
        for X, y in loader:
            with autograd.record():
                loss = criterion(model(X), y)
            loss.backward()
            step(len(y))
            total += float(loss.sum())
        print(f"epoch {epoch + 1}, loss {total / COUNT:.4f}, accuracy {accuracy(model):.3f}")


def descent(params, rate):
    for param in params:
        param.attach_grad()

    def step(size):
        for param in params:
            param[:] = param - rate * param.grad / size

    return step


heading("Softmax regression from scratch")
W, b = np.random.normal(0, 0.01, (PIXELS, CLASSES)), np.zeros(CLASSES)
train(lambda X: softmax(np.dot(X.reshape((-1, PIXELS)), W) + b), cross_entropy, descent([W, b], 0.5), 3)
print(rounded(b))

heading("Softmax regression with layers")


def with_trainer(net, options):
    trainer = gluon.Trainer(net.collect_params(), "sgd", options)
    train(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer.step, 3)


net = nn.Sequential()
net.add(nn.Dense(CLASSES))
net.initialize(init.Normal(sigma=0.01))
with_trainer(net, {"learning_rate": 0.5})
print(net, net[0].weight.shape)

heading("A perceptron from scratch")
mx.random.seed(6)
W1, b1 = np.random.normal(0, 0.3, (PIXELS, 12)), np.zeros(12)
W2, b2 = np.random.normal(0, 0.3, (12, CLASSES)), np.zeros(CLASSES)


def relu(X):
    return np.maximum(X, 0)


def perceptron(X):
    return np.dot(relu(np.dot(X.reshape((-1, PIXELS)), W1) + b1), W2) + b2


train(perceptron, gluon.loss.SoftmaxCrossEntropyLoss(), descent([W1, b1, W2, b2], 0.3), 3)

heading("A perceptron with layers")
for activation in ("relu", "sigmoid", "tanh", "softrelu", "softsign"):
    mx.random.seed(6)
    net = nn.HybridSequential()
    net.add(nn.Dense(12, activation=activation), nn.Dense(CLASSES))
    net.initialize(init.Normal(sigma=0.3))
    net.hybridize()
    print(net[0])
    with_trainer(net, {"learning_rate": 0.3})

heading("Activations and their gradients")
x = np.arange(-2.0, 2.5, 1)
x.attach_grad()
for function in (npx.relu, npx.sigmoid, np.tanh, lambda x: npx.leaky_relu(x, slope=0.1), npx.softmax):
    with autograd.record():
        y = function(x)
    y.backward()
    print(rounded(y), rounded(x.grad))

heading("Dense labels and weights")
scores = np.array([[1.0, 2.0, 3.0], [3.0, 1.0, 0.5]])
dense = gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)
print(rounded(dense(scores, npx.one_hot(np.array([2, 0]), 3))))
print(rounded(gluon.loss.SoftmaxCELoss(weight=2)(scores, np.array([2, 0]), np.array([[1], [0.5]]))))
print(rounded(gluon.loss.SigmoidBCELoss()(scores, np.ones((2, 3)))))
