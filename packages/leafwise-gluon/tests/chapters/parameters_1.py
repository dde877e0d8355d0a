"""Parameters: access, initialization, sharing, contexts. MXNet 1.x."""

import warnings

import mxnet as mx
from _printing import heading
from mxnet import autograd, gluon, init, nd
from mxnet.gluon import nn


def error(call):
    try:
        print(call())
    except Exception as problem:
        print(type(problem).__name__, str(problem).split("\n")[0])


x = nd.ones((2, 5))

heading("Access")
net = nn.Sequential()
net.add(nn.Dense(4, activation="relu"))
net.add(nn.Dense(2))
error(lambda: net[0].weight.data())
net.initialize()
print(net.collect_params())
error(lambda: net[0].weight.data())
print(net[0].bias.data(), net[0].bias.grad())
net(x)
print(net[0].params, net[1].weight)
print(type(net[0].weight), net[0].weight.name, net[0].weight.shape, net[0].weight.dtype, net[0].weight.grad_req)
print(net[0].weight.data())
print(net[1].params["dense1_weight"].data(), net[0].params.get("weight") is net[0].weight)
print(net.collect_params()["dense1_bias"].data())
print([(name, parameter.shape) for name, parameter in net.collect_params().items()])
print(list(net.collect_params("dense1")), list(net.collect_params("weight")), list(net.collect_params(".*weight")))

heading("Initial values")
net.initialize(init=init.Normal(sigma=0.01), force_reinit=True)
print(net[0].weight.data())
net.initialize(init=init.Constant(1), force_reinit=True)
print(net[0].weight.data()[0])
net[0].weight.initialize(init=init.Xavier(), force_reinit=True)
net[1].initialize(init=init.Constant(42), force_reinit=True)
print(net[0].weight.data()[0], net[1].weight.data()[0])


class OwnInit(init.Initializer):
    def _init_weight(self, name, data):
        print("Init", name, data.shape)
        data[:] = nd.random.uniform(low=-10, high=10, shape=data.shape)
        data *= data.abs() >= 5


net.initialize(OwnInit(), force_reinit=True)
print(net[0].weight.data()[0])
held = net[0].weight.data()
net[0].weight.set_data(held + 1)
print(held[0])
net.initialize(init.Zero(), force_reinit=True)
print(held[0], net[0].weight.data()[0])
for name in ("Uniform", "Normal", "Xavier", "MSRAPrelu", "Zero", "One"):
    mx.random.seed(3)
    parameter = gluon.Parameter("w", shape=(8, 30))
    parameter.initialize(getattr(init, name)())
    print(name, parameter.data()[:2, :3], getattr(init, name)().dumps())
bilinear = gluon.Parameter("w", shape=(2, 1, 4, 4))
bilinear.initialize(init.Bilinear())
print(bilinear.data()[0])
print(init.create("xavier", rnd_type="gaussian").dumps(), init.Uniform(1) == init.Uniform(1))
target = nd.zeros((2, 2))
for name in ("x_weight", "x_bias", "x_gamma", "x_beta", "x_moving_var", "x"):
    error(lambda name=name: init.Uniform(0.5)(init.InitDesc(name), target))
    print(name, target)
init.Mixed(["bias", ".*"], [init.Zero(), init.One()])(init.InitDesc("a_weight"), target)
print(target)
init.Load({"arg:q": nd.ones((2, 2)) * 4})("q", target)
print(target)
error(lambda: net.initialize("nonsense", force_reinit=True))
error(lambda: net.initialize(init.Mixed([".*"], [init.One()]), force_reinit=True))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    net.initialize()
    print([str(warning.message) for warning in caught])

heading("Sharing")
net = nn.Sequential()
shared = nn.Dense(4, activation="relu")
net.add(nn.Dense(4, activation="relu"), shared, nn.Dense(4, activation="relu", params=shared.params), nn.Dense(3))
net.initialize()
net(x)
print(net[1].weight.data()[0] == net[2].weight.data()[0])
net[1].weight.data()[0, 0] = 100
print(net[1].weight.data()[0] == net[2].weight.data()[0])
print(net[2].name, net[2].weight.name, net[1].weight is net[2].weight)
print(net.collect_params())
print(nn.Dense(4, params=shared.collect_params(), prefix="other_").params)
error(lambda: nn.Dense(5, params=shared.params))

heading("Dictionaries of parameters")
params = gluon.ParameterDict("pre_")
weight = params.get("w", shape=(2, 0), allow_deferred_init=True)
print(params, weight)
print(params.get("w", shape=(2, 3)) is weight, weight)
error(lambda: params.get("w", shape=(3, 3)))
constant = params.get_constant("c", nd.array([1, 2]))
print(constant, constant.grad_req)
error(lambda: params.get_constant("c", nd.array([1, 3])))
error(lambda: params.get_constant("d"))
error(lambda: params.get_constant("w", nd.array([1, 3])))
other = gluon.ParameterDict("pre_", shared=params)
print(other.get("w") is weight, list(other), other.prefix)
third = gluon.ParameterDict("pre_")
third.get("w", shape=(2, 3))
error(lambda: params.update(third))
error(lambda: params["pre_z"])
params.initialize()
print(weight.data(), constant.data(), weight.list_ctx())
params.setattr("lr_mult", 0.5)
print(weight.lr_mult)

heading("Gradients")
for grad_req in ("write", "add"):
    weight.grad_req = grad_req
    for _ in range(2):
        with autograd.record():
            loss = (weight.data() * 2).sum()
        loss.backward()
    print(weight.grad())
gradient = weight.grad()
params.zero_grad()
print(gradient)
weight.grad_req = "null"
error(weight.grad)
error(lambda: setattr(weight, "grad_req", "often"))
error(lambda: setattr(weight, "shape", (4, 4)))
weight.cast("float16")
print(weight, weight.data().dtype)

heading("Contexts")
net = nn.Dense(2, in_units=3)
net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
print(net.weight.list_ctx(), len(net.weight.list_data()), len(net.weight.list_grad()))
print(net.weight.data(mx.cpu(1)))
net.weight.data(mx.cpu(1))[:] = 7
print(net.weight.data(mx.cpu(0)))
error(lambda: net.weight.data(mx.cpu(2)))
net.collect_params().reset_ctx(mx.cpu(0))
print(net.weight.data(), net.weight.list_ctx())
