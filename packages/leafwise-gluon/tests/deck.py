"""Parameter management in Gluon: access, traversal, initialization, sharing. Runs on both MXNet 2 and leafwise."""

from mxnet import autograd, init, np, npx
from mxnet.gluon import Block, Parameter, nn

npx.set_np()


def heading(text):
    print()
    print("#", text)


heading("A network, before and after its first input")
net = nn.Sequential()
net.add(nn.Dense(8, activation="relu"))
net.add(nn.Dense(1))
print(net)
net.initialize()
X = np.random.uniform(size=(2, 4))
print(X)
print(net(X).shape)
print(net)
print([f"{float(value):.5f}" for value in net(X).reshape(-1)])

heading("Direct access")
print(net[1].params)
print(type(net[1].bias))
print(net[1].bias)
print(net[1].bias.data())
print(net[0].weight.data())
print(net[1].weight.grad())
print(net[0].weight.data()[0, :2], net[0].weight.data().shape, net[0].weight.data().dtype)

heading("All of them at once")
print(net[0].params)
print(net.collect_params())
print(net.collect_params()["1.bias"].data())
print(net.collect_params(".*weight"))
print(list(net.collect_params("0")))

heading("Initial values")
net.initialize(init=init.Normal(sigma=0.01), force_reinit=True)
print(net[0].weight.data()[0].shape)
net.initialize(init=init.Constant(1), force_reinit=True)
print(net[0].weight.data()[0])
net.initialize(init=init.Uniform(0.5), force_reinit=True)
print(net[0].weight.data()[0])
net[0].weight.initialize(init=init.Xavier(), force_reinit=True)
net[1].initialize(init=init.Constant(42), force_reinit=True)
print(net[0].weight.data()[0])
print(net[1].weight.data())


class OwnInit(init.Initializer):
    """Uniform in (-10, 10), with values smaller than 5 in magnitude set to zero."""

    def _init_weight(self, name, data):
        print("Init", name, data.shape)
        data[:] = np.random.uniform(-10, 10, data.shape)
        data *= np.abs(data) >= 5


net.initialize(OwnInit(), force_reinit=True)
print(net[0].weight.data()[:2])
net[0].weight.data()[:] += 1
net[0].weight.data()[0, 0] = 42
print(net[0].weight.data()[0])
net[1].weight.set_data(np.ones((1, 8)))
print(net[1].weight.data())

heading("A block of one's own")


class Residual(Block):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(2)
        self.scale = Parameter("scale", shape=(2,), init=init.One())

    def forward(self, x):
        return x + self.scale.data() * self.dense(x)


own = Residual()
own.initialize()
print(own)
print(own(np.ones((1, 2))).shape, own.params)
print(own.collect_params())

heading("Gradients")
with autograd.record():
    loss = (own(np.ones((3, 2))) * np.array([1, 2])).sum()
loss.backward()
print(own.dense.bias.grad())
print(own.dense.weight.grad())
print(own.scale.grad().shape, own.scale.grad_req)
with autograd.record():
    loss = own(np.ones((3, 2))).sum()
loss.backward()
print(own.dense.bias.grad())

heading("Sharing")
net = nn.Sequential()
shared = nn.Dense(8, activation="relu")
shared_clone = nn.Dense(8, activation="relu")
print(shared_clone.share_parameters(shared.collect_params()) is shared_clone)
net.add(nn.Dense(8, activation="relu"), shared, shared_clone, nn.Dense(10))
net.initialize()
X = np.random.uniform(size=(2, 20))
print(net(X).shape)
print(net[1].weight.data()[0] == net[2].weight.data()[0])
net[1].weight.data()[0, 0] = 100
print(net[1].weight.data()[0] == net[2].weight.data()[0])
print(net[1].weight is net[2].weight)
print(net[2].weight.data()[:2])
print(net.collect_params())
print(net[1:3])
print(len(net), [type(block).__name__ for block in net], net[-1])
