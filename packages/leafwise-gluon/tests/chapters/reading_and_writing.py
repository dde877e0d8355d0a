"""Arrays and parameters in files. Runs on both versions of MXNet."""

import os
import tempfile

import mxnet as mx
from _printing import error, heading, rounded
from mxnet import init, np, npx
from mxnet.gluon import nn

npx.set_np()
IS_V1 = mx.__version__.startswith("1")
os.chdir(tempfile.mkdtemp())


heading("Arrays")
x = np.arange(4)
y = np.random.uniform(size=(2, 3))
npx.save("one", x)
print(npx.load("one"))
if IS_V1:
    npx.save("two", [x, y])
    npx.save("named", {"x": x, "y": y})
    print(npx.load("two"))
    npx.save("none", [])
    print(npx.load("none"))
else:
    npx.savez("two", x, y)
    npx.savez("named", x=x, y=y)
    print(sorted(npx.load("two")))
named = npx.load("named")
print(type(named).__name__, sorted(named), (named["y"] == y).all(), named["x"].dtype, type(named["x"]).__name__)
for dtype in ("float16", "float64", "int8", "int32", "int64", "uint8"):
    npx.save("typed", np.array([1, 2, 3], dtype=dtype))
    loaded = npx.load("typed")
    loaded = loaded[0] if isinstance(loaded, list) else loaded
    print(dtype, loaded, loaded.dtype)
npx.save("shapes", np.array(3.5))
print(npx.load("shapes"))
npx.save("shapes", np.zeros((0, 3)))
print(npx.load("shapes"))
error(lambda: npx.save("wrong", 3))

heading("Parameters of a network")


class Perceptron(nn.Block):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden = nn.Dense(8, activation="relu")
        self.output = nn.Dense(3)

    def forward(self, x):
        return self.output(self.hidden(x))


net = Perceptron()
net.initialize(init.Xavier())
X = np.random.uniform(size=(2, 5))
Y = net(X)
print(rounded(Y))
net.save_parameters("net.params")
clone = Perceptron()
clone.load_parameters("net.params")
print((clone(X) == Y).all(), clone.hidden.weight.shape)
content = npx.load("net.params")
print([(name, array.shape) for name, array in content.items()])
clone.hidden.weight.data()[:] = 0
print((clone(X) == Y).all())
clone.load_parameters("net.params")
print((clone(X) == Y).all())

heading("Other networks")


class Deeper(Perceptron):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.last = nn.Dense(2, in_units=3)


deeper = Deeper()
deeper.initialize()
error(lambda: deeper.load_parameters("net.params"))
deeper.load_parameters("net.params", allow_missing=True)
print((deeper(X) == Y).all())
deeper.save_parameters("deeper.params")
error(lambda: net.load_parameters("deeper.params"))
net.load_parameters("deeper.params", ignore_extra=True)
wider = Perceptron()
wider.hidden = nn.Dense(9)
wider.initialize()
wider(X)
error(lambda: wider.load_parameters("net.params"))
print(wider.hidden.weight.shape)

heading("Types")
half = Perceptron()
half.hidden.weight.shape, half.output.weight.shape = (8, 5), (3, 8)
half.cast("float16")
half.initialize(init.One())
half.save_parameters("half.params")
error(lambda: net.load_parameters("half.params"))
net.load_parameters("half.params", cast_dtype=True)
print(net.hidden.weight.dtype, net.hidden.weight.data().dtype)
net.load_parameters("half.params", cast_dtype=True, dtype_source="saved")
print(net.hidden.weight.data().dtype)

heading("Shared parameters")


def tied():
    net = nn.Sequential()
    first = nn.Dense(5, in_units=5)
    if IS_V1:
        second = nn.Dense(5, in_units=5, params=first.params)
    else:
        second = nn.Dense(5, in_units=5)
        second.share_parameters(first.collect_params())
    net.add(first, second)
    return net


net = tied()
net.initialize(init.Uniform(1))
for deduplicate in (False, True):
    net.save_parameters("tied.params", deduplicate=deduplicate)
    print(sorted(npx.load("tied.params")))
    other = tied()
    other.load_parameters("tied.params")
    print((other(X) == net(X)).all(), other[0].weight is other[1].weight)
separate = nn.Sequential()
separate.add(nn.Dense(5, in_units=5), nn.Dense(5, in_units=5))
error(lambda: separate.load_parameters("tied.params"))

heading("Batch statistics are saved too")
net = nn.HybridSequential()
net.add(nn.Dense(3), nn.BatchNorm())
net.initialize()
net(X)
net.save_parameters("norm.params")
content = npx.load("norm.params")
print([(name, array.shape) for name, array in content.items()])
net.hybridize()
net.load_parameters("norm.params")
for name in ("absent.params", "text.params"):
    try:
        net.load_parameters(name)
    except ValueError:
        print("ValueError", name)
    with open("text.params", "w") as file:
        file.write("not parameters")
