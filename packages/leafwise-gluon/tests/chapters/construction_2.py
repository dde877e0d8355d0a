"""Networks from blocks, hooks, summaries, lazy initialization, layers of one's own, errors. MXNet 2.x."""

# ruff: noqa: N803

import warnings

from _printing import heading, rounded
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn


def error(call):
    try:
        print(call())
    except Exception as problem:
        print(type(problem).__name__, str(problem).split("\n")[0])


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    print([str(warning.message).split("\n")[0][:100] for warning in caught])


x = np.random.uniform(size=(2, 5))

heading("Blocks")


class Perceptron(nn.Block):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Dense(4, activation="relu")
        self.out = nn.Dense(3)

    def forward(self, x):
        return self.out(self.hidden(x))


class Chain(nn.Block):
    def __init__(self, *blocks):
        super().__init__()
        self.blocks = blocks
        for index, block in enumerate(blocks):
            self.register_child(block, str(index))

    def forward(self, x):
        for block in self._children.values():
            x = block()(x)
        return x


for net in (Perceptron(), Chain(nn.Dense(4, activation="relu"), nn.Dense(3))):
    net.initialize()
    print(net, rounded(net(x)))
    print(net.collect_params())


class Hidden(nn.Block):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Dense(2)]


warned(lambda: Hidden().initialize())


class Several(nn.Block):
    def forward(self, x, y=None):
        return (x, x + 1) if y is None else x + y


net = nn.Sequential()
net.add(Several(), Several())
print(net(x).shape)
net.add(Several())
print([output.shape for output in net(x)])
net = nn.HybridSequential()
net.add(nn.Dense(3, activation="relu"), nn.Dense(2), nn.Activation("tanh"))
print(net, list(net._children), net[0:2], len(net), isinstance(net, nn.Sequential))

heading("Lazy initialization")


class Reporting(init.Initializer):
    def _init_weight(self, name, data):
        print("Init", name, data.shape)
        data[:] = 0.5


error(lambda: net(x))
print(net.collect_params())
net.initialize(Reporting())
print(rounded(net(x)))
net.initialize(Reporting(), force_reinit=True)


class Scale(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.factor = gluon.Parameter("factor", shape=(-1,), init="ones", allow_deferred_init=True)
        self.shift = gluon.Constant(np.ones(1))

    def infer_shape(self, x):
        print("infer", x.shape)
        self.factor.shape = (x.shape[1],)

    def forward(self, x):
        return x * self.factor.data() + self.shift.data()


scale = Scale()
scale.initialize()
print(scale.params, rounded(scale(x)), rounded(scale(x)), scale.params)


class Unclear(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.u = gluon.Parameter("u", shape=(-1, 3), allow_deferred_init=True)

    def forward(self, x):
        return x * self.u.data()


unclear = Unclear()
unclear.initialize()
error(lambda: unclear(x))

heading("Summaries and hooks")
net.summary(x)
both = nn.Sequential()
shared, clone = nn.Dense(5), nn.Dense(5)
clone.share_parameters(shared.collect_params())
both.add(shared, clone, scale)
both.initialize(force_reinit=True)
both.summary(x)
pre = both[0].register_forward_pre_hook(lambda block, inputs: print("before", inputs[0].shape))
post = both[0].register_forward_hook(lambda block, inputs, output: print("after", output.shape) or 3)
print(both(x).shape)
pre.detach()
both(x)
warned(lambda: both[0].hybridize())
post.detach()
both(x)
print(both.apply(lambda block: print(type(block).__name__)) is both)

heading("Hybridize")
warned(lambda: net.hybridize(static_alloc=True, static_shape=True))
print(rounded(net(x)))
error(lambda: net.summary(x))
warned(lambda: net.add(nn.Dense(1)))
net.hybridize(active=False)
warned(lambda: both.hybridize())
warned(lambda: both.cast("float16"))
print(both.collect_params())
fresh = nn.HybridSequential()
error(lambda: fresh.export("nowhere"))

heading("Parameters")
weight = gluon.Parameter("w", shape=(2, 3))
error(weight.list_device)
error(lambda: weight.reset_device(npx.cpu(0)))
weight.initialize(device=[npx.cpu(0), npx.cpu(1)])
print(weight.list_data(), weight.list_device(), len(weight.list_grad()))
error(lambda: weight.data(npx.cpu(3)))
held = weight.data()
weight.data(npx.cpu(1))[:] = 7
print(held, weight.data(npx.cpu(1)))
weight.reset_device(npx.cpu(0))
print(weight.data(), held)
held = weight.data()
weight.set_data(np.ones((2, 3)))
print(held)
error(lambda: weight.set_data(np.ones((3, 2))))
weight.initialize(init.Constant(3), force_reinit=True)
print(held, weight.data())
for grad_req in ("write", "add"):
    weight.grad_req = grad_req
    for _ in range(2):
        with autograd.record():
            loss = (weight.data() * 2).sum()
        loss.backward()
    print(weight.grad())
weight.cast("float16")
print(weight, weight.data().dtype, weight.grad().dtype)
constant = gluon.Constant([[1, 2], [3, 4]])
print(constant, constant.name, constant.grad_req)
warned(lambda: setattr(constant, "grad_req", "write"))
constant.initialize()
print(constant.data(), constant.grad_req)

heading("Sharing and loading")
first, second = nn.Dense(2, in_units=2), nn.Dense(2, in_units=2)
second.share_parameters({"weight": first.weight})
print(first.weight is second.weight, first.bias is second.bias)
first.initialize()
error(lambda: first.load_dict({"weight": np.ones((2, 2))}))
error(lambda: first.load_dict({"weight": np.ones((2, 2)), "bias": np.ones(2), "z": np.ones(1)}))
error(lambda: first.load_dict({"weight": np.ones((2, 3)), "bias": np.ones(2)}))
error(lambda: first.load_dict({"weight": np.ones((2, 2), dtype="float64"), "bias": np.ones(2)}))
first.load_dict({"arg:weight": np.ones((2, 2)), "bias": np.ones(2)})
print(second.weight.data())

heading("Errors")
error(lambda: gluon.Block()(x))
error(lambda: gluon.HybridBlock()(x))
error(lambda: net(3))
error(lambda: setattr(scale, "factor", 3))
error(lambda: setattr(scale, "child", nn.Sequential()))
error(lambda: gluon.Parameter("w", grad_req="often"))
error(lambda: gluon.Parameter("w", stype="odd"))
error(lambda: gluon.Parameter("w", shape=(3, -1)).initialize())
error(lambda: gluon.Parameter("w").initialize())


class Old(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        return x


error(Old)
