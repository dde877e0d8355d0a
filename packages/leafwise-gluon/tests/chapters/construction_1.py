"""Networks from blocks: containers, blocks of one's own, names. MXNet 1.x."""

# ruff: noqa: N803

from _printing import heading
from mxnet import gluon, nd
from mxnet.gluon import nn


def rounded(array):
    return [[f"{float(value):.4f}" for value in row] for row in array.asnumpy()]


x = nd.random.uniform(shape=(2, 5))

heading("A container")
net = nn.Sequential()
net.add(nn.Dense(4, activation="relu"), nn.Dense(3))
print(net)
net.initialize()
print(rounded(net(x)))
print(net)
print(len(net), net[-1], net[0:1], [type(layer).__name__ for layer in net])

heading("A block")


class Perceptron(gluon.Block):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden = nn.Dense(4, activation="relu")
        self.out = nn.Dense(3)

    def forward(self, x):
        return self.out(self.hidden(x))


net = Perceptron()
net.initialize()
print(net, rounded(net(x)))
print(net.name, net.prefix, net.hidden.name, net.out.name)


class Chain(gluon.Block):
    def add(self, block):
        self._children[block.name] = block

    def forward(self, x):
        for block in self._children.values():
            x = block(x)
        return x


net = Chain()
net.add(nn.Dense(4, activation="relu"))
net.add(nn.Dense(3))
net.initialize()
print(net, rounded(net(x)), list(net._children))


class FixedHidden(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.fixed = self.params.get_constant("fixed", nd.random.uniform(shape=(5, 5)))
            self.dense = nn.Dense(5, activation="relu")

    def hybrid_forward(self, F, x, fixed):
        x = self.dense(x)
        x = F.relu(F.dot(x, fixed) + 1)
        return self.dense(x)


net = FixedHidden()
net.initialize()
print(net, rounded(net(x)))
print(net.collect_params())


class Nest(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.net = nn.HybridSequential()
            with self.net.name_scope():
                self.net.add(nn.Dense(6, activation="relu"), nn.Dense(4, activation="sigmoid"))
            self.dense = nn.Dense(3)

    def hybrid_forward(self, F, x):
        return self.dense(self.net(x))


chimera = nn.HybridSequential(prefix="chimera_")
with chimera.name_scope():
    chimera.add(Nest(), nn.Dense(5), FixedHidden())
chimera.initialize()
print(chimera, rounded(chimera(x)))
print(chimera.collect_params())
print(chimera.collect_params(".*weight"))
print(sorted(chimera._collect_params_with_prefix()))

heading("Names")
print([nn.Dense(2).name for _ in range(3)], nn.Dense(2, prefix="own_").name, nn.Dense(2, prefix="").name)
with chimera.name_scope():
    inner = nn.Dense(2)
    named = nn.Dense(2, prefix="named_")
print(inner.name, named.name, named.weight.name, inner.params.prefix)
empty = Perceptron(prefix="")
print(repr(empty.name), empty.hidden.name)
print(nn.HybridSequential(prefix="a_")[:].prefix, chimera[0:2].prefix, chimera[0:2].name)

heading("What a summary shows")
chimera.summary(x)
net = nn.Sequential()
shared = nn.Dense(5, activation="relu")
net.add(shared, nn.Dense(5, params=shared.params), nn.Dense(2))
net.initialize()
net(x)
net.summary(x)

heading("Hooks and apply")
pre = net[0].register_forward_pre_hook(lambda block, inputs: print("before", block.name, inputs[0].shape))
post = net[0].register_forward_hook(lambda block, inputs, output: print("after", block.name, output.shape))
net(x)
pre.detach()
net(x)
post.detach()
net(x)
print(net.apply(lambda block: print(type(block).__name__)) is net)


def error(call):
    try:
        print(call())
    except Exception as problem:
        print(type(problem).__name__, str(problem).split("\n")[0])


heading("Errors")
error(lambda: gluon.Block()(x))
error(lambda: gluon.HybridBlock()(x))
error(lambda: chimera(3))
error(lambda: setattr(chimera[0], "dense", 3))
error(lambda: nn.Dense(2)(x))
error(lambda: Nest().register_child(nn.Sequential()))
error(lambda: chimera.optimize_for(x))
chimera.hybridize()
error(lambda: chimera.summary(x))
error(lambda: Nest().export("nowhere"))
print(rounded(chimera(x)))
