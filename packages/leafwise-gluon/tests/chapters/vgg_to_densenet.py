"""Networks made of blocks: VGG, NiN, Inception, ResNet and DenseNet, all of them small. Runs on both versions."""

import mxnet as mx
import numpy
from _printing import heading
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn

npx.set_np()
source = numpy.random.RandomState(0)
digits = source.randint(0, 3, 8)
images = source.uniform(size=(8, 1, 16, 16)).astype("float32")
images[numpy.arange(8), 0, digits * 5] += 1
X, y = np.array(images), np.array(digits)


def sequence(*layers):
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def show(net):
    """Prints the shapes from layer to layer, the number of parameters, and what a few steps of training give."""
    mx.random.seed(3)
    net.initialize(init.Xavier())
    out = X[:2]
    for layer in net:
        out = layer(out)
        print(type(layer).__name__, out.shape)
    shapes = [parameter.shape for parameter in net.collect_params().values()]
    print(len(shapes), sum(int(numpy.prod(shape)) for shape in shapes), shapes[:3], shapes[-2:])
    print(f"{float(net(X).sum()):.4f}")
    net.hybridize()
    criterion = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    for _ in range(4):
        with autograd.record():
            loss = criterion(net(X), y)
        loss.backward()
        trainer.step(len(y))
        print(f"{float(loss.mean()):.3f}", end=" ")
    print()


heading("VGG")


def vgg_block(convolutions, channels):
    block = nn.HybridSequential()
    for _ in range(convolutions):
        block.add(nn.Conv2D(channels, kernel_size=3, padding=1, activation="relu"))
    block.add(nn.MaxPool2D(pool_size=2, strides=2))
    return block


blocks = [vgg_block(convolutions, channels) for convolutions, channels in ((1, 4), (2, 6), (2, 8))]
show(sequence(*blocks, nn.Dense(16, activation="relu"), nn.Dropout(0.5), nn.Dense(3)))
print(blocks[1])

heading("Network in network")


def nin_block(channels, **options):
    return sequence(
        nn.Conv2D(channels, activation="relu", **options),
        nn.Conv2D(channels, kernel_size=1, activation="relu"),
        nn.Conv2D(channels, kernel_size=1, activation="relu"),
    )


show(
    sequence(
        nin_block(6, kernel_size=5, strides=2),
        nn.MaxPool2D(pool_size=3, strides=2),
        nin_block(3, kernel_size=3, padding=1),
        nn.GlobalAvgPool2D(),
        nn.Flatten(),
    )
)

heading("Parallel paths")


class Inception(nn.Block):
    def __init__(self, one, three, five, pooled, **kwargs):
        super().__init__(**kwargs)
        self.one = nn.Conv2D(one, kernel_size=1, activation="relu")
        self.three = sequence(
            nn.Conv2D(three[0], kernel_size=1, activation="relu"),
            nn.Conv2D(three[1], kernel_size=3, padding=1, activation="relu"),
        )
        self.five = nn.Conv2D(five, kernel_size=5, padding=2, activation="relu")
        self.pool = nn.MaxPool2D(pool_size=3, strides=1, padding=1)
        self.pooled = nn.Conv2D(pooled, kernel_size=1, activation="relu")

    def forward(self, x):
        return np.concatenate((self.one(x), self.three(x), self.five(x), self.pooled(self.pool(x))), axis=1)


net = nn.Sequential()
net.add(nn.Conv2D(4, 3, strides=2), Inception(2, (2, 4), 3, 2), Inception(3, (2, 4), 2, 1), nn.Dense(3))
show(net)
print(net[1])

heading("ResNet")


class Residual(nn.Block):
    def __init__(self, channels, has_projection=False, strides=1, **kwargs):
        super().__init__(**kwargs)
        self.conv1 = nn.Conv2D(channels, kernel_size=3, padding=1, strides=strides)
        self.conv2 = nn.Conv2D(channels, kernel_size=3, padding=1)
        self.projection = nn.Conv2D(channels, kernel_size=1, strides=strides) if has_projection else None
        self.norm1, self.norm2 = nn.BatchNorm(), nn.BatchNorm()

    def forward(self, x):
        y = self.norm2(self.conv2(npx.relu(self.norm1(self.conv1(x)))))
        return npx.relu(y + (self.projection(x) if self.projection else x))


block = Residual(3)
block.initialize()
print(block(np.ones((2, 3, 6, 6))).shape, list(block.collect_params(".*norm1"))[-1][-11:])
block = Residual(6, has_projection=True, strides=2)
block.initialize()
print(block(np.ones((2, 3, 6, 6))).shape, block)


def residual_stage(channels, count, is_first=False):
    stage = nn.Sequential()
    for number in range(count):
        changes = number == 0 and not is_first
        stage.add(Residual(channels, changes, strides=2 if changes else 1))
    return stage


net = nn.Sequential()
net.add(nn.Conv2D(4, kernel_size=3, padding=1), nn.BatchNorm(), nn.Activation("relu"))
net.add(residual_stage(4, 2, is_first=True), residual_stage(8, 2), nn.GlobalAvgPool2D(), nn.Dense(3))
show(net)

heading("DenseNet")


class DenselyConnected(nn.Block):
    def __init__(self, convolutions, channels, **kwargs):
        super().__init__(**kwargs)
        self.net = nn.Sequential()
        for _ in range(convolutions):
            self.net.add(sequence(nn.BatchNorm(), nn.Activation("relu"), nn.Conv2D(channels, 3, padding=1)))

    def forward(self, x):
        for block in self.net:
            x = np.concatenate((x, block(x)), axis=1)
        return x


transition = sequence(nn.BatchNorm(), nn.Activation("relu"), nn.Conv2D(5, 1), nn.AvgPool2D(2, strides=2))
net = nn.Sequential()
net.add(nn.Conv2D(4, 3), DenselyConnected(2, 3), transition, DenselyConnected(2, 3), nn.GlobalAvgPool2D(), nn.Dense(3))
show(net)
