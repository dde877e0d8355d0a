"""The losses of an MLP and of a small CNN over 50 steps, from the same seed; with MXNet or with the front end."""

import numpy

STEPS = 50
CURVES = {
    "mlp sgd": ("mlp", "sgd", {"learning_rate": 0.1}),
    "mlp momentum": ("mlp", "sgd", {"learning_rate": 0.05, "momentum": 0.9, "wd": 0.001}),
    "mlp nag": ("mlp", "nag", {"learning_rate": 0.05, "momentum": 0.9}),
    "mlp adam": ("mlp", "adam", {"learning_rate": 0.01}),
    "mlp rmsprop": ("mlp", "rmsprop", {"learning_rate": 0.005}),
    "mlp adagrad": ("mlp", "adagrad", {"learning_rate": 0.05}),
    "mlp adadelta": ("mlp", "adadelta", {}),
    "cnn sgd": ("cnn", "sgd", {"learning_rate": 0.1}),
    "cnn adam": ("cnn", "adam", {"learning_rate": 0.005}),
    "cnn momentum": ("cnn", "sgd", {"learning_rate": 0.02, "momentum": 0.9, "clip_gradient": 1.0}),
}


def network(mxnet, kind):
    nn = mxnet.gluon.nn
    net = nn.HybridSequential()
    if kind == "mlp":
        net.add(nn.Dense(32, activation="relu"), nn.Dense(16, activation="tanh"), nn.Dense(4))
    else:
        net.add(nn.Conv2D(6, kernel_size=3, padding=1, activation="relu"), nn.MaxPool2D(2, 2))
        net.add(nn.Conv2D(8, kernel_size=3), nn.BatchNorm(), nn.Activation("sigmoid"), nn.AvgPool2D(2, 2))
        net.add(nn.Flatten(), nn.Dense(4))
    return net


def curve(mxnet, mode, name):
    """The mean losses of the steps. Arrays are those of `mode`: np or nd."""
    kind, optimizer, options = CURVES[name]
    mxnet.random.seed(7)
    random = numpy.random.RandomState(7)
    net = network(mxnet, kind)
    net.initialize(mxnet.init.Xavier())
    trainer = mxnet.gluon.Trainer(net.collect_params(), optimizer, dict(options))
    criterion = mxnet.gluon.loss.SoftmaxCrossEntropyLoss()
    array = getattr(mxnet, mode).array
    losses = []
    for _ in range(STEPS):
        labels = random.randint(0, 4, 16)
        images = random.normal(size=(16, 1, 8, 8))
        images[range(16), 0, labels, labels] += 3  # what there is to learn
        with mxnet.autograd.record():
            loss = criterion(net(array(images, dtype="float32")), array(labels, dtype="float32"))
        loss.backward()
        trainer.step(16)
        losses.append(float(f"{float(loss.mean().asnumpy().reshape(())):.7g}"))
    return losses
