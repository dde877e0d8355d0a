"""A character model as in a textbook, in both dialects: recurrent layers and cells of all kinds, trained by hand, and a
recurrent network without layers. record_recurrent.py records what MXNet prints.
"""

import mxnet as mx
from mxnet import autograd, gluon, init
from mxnet.gluon import nn, rnn

V1 = mx.__version__.startswith("1")
if V1:
    array, one_hot, softmax, tanh = mx.nd.array, mx.nd.one_hot, mx.nd.log_softmax, mx.nd.tanh
    pick, zeros, dot, stack = mx.nd.pick, mx.nd.zeros, mx.nd.dot, lambda steps: mx.nd.stack(*steps)
else:
    array, one_hot, softmax, tanh = mx.np.array, mx.npx.one_hot, mx.npx.log_softmax, mx.np.tanh
    pick, zeros, dot, stack = mx.npx.pick, mx.np.zeros, mx.np.dot, mx.np.stack

TEXT = "time traveller for so it will be convenient to speak of him "
LETTERS = sorted(set(TEXT))
STEPS, BATCH, HIDDEN = 6, 9, 16
codes = [LETTERS.index(letter) for letter in TEXT]


def batch():
    starts = range(0, BATCH * STEPS, STEPS)
    inputs = array([codes[start : start + STEPS] for start in starts])
    labels = array([codes[start + 1 : start + STEPS + 1] for start in starts])
    return inputs.T, labels.T


class CharacterModel(gluon.Block):
    def __init__(self, layer):
        super().__init__()
        self.rnn = layer
        self.dense = nn.Dense(len(LETTERS))

    def forward(self, inputs, state):
        output, state = self.rnn(one_hot(inputs, len(LETTERS)), state)
        return self.dense(output.reshape((-1, output.shape[-1]))), state

    def begin_state(self, batch_size):
        return self.rnn.begin_state(batch_size=batch_size)


def loss_of(scores, labels):
    return -pick(softmax(scores), labels.reshape((-1,))).mean()


def clip_and_step(params, rate, theta):
    total = sum((param.grad() ** 2).sum().asnumpy().item() for param in params) ** 0.5
    factor = min(1, theta / total)
    for param in params:
        param.set_data(param.data() - rate * factor * param.grad())


def train(net, epochs=12):
    inputs, labels = batch()
    params = list(net.collect_params().values())
    for epoch in range(epochs):
        state = net.begin_state(BATCH)
        with autograd.record():
            scores, state = net(inputs, state)
            loss = loss_of(scores, labels)
        loss.backward()
        clip_and_step(params, 2.0, 1.0)
        if epoch % 4 == 0:
            print("  epoch", epoch, "loss", round(loss.asnumpy().item(), 4))


for layer in (
    rnn.RNN(HIDDEN, activation="tanh"),
    rnn.GRU(HIDDEN),
    rnn.LSTM(HIDDEN, num_layers=2),
    rnn.LSTM(HIDDEN, bidirectional=True),
):
    mx.random.seed(1)
    net = CharacterModel(layer)
    net.initialize(init.Normal(0.1))
    scores, state = net(batch()[0], net.begin_state(BATCH))
    print(layer, scores.shape, [part.shape for part in state])
    print("  parameters", [param.shape for param in net.collect_params().values()])
    train(net)

for cell in (rnn.RNNCell(HIDDEN), rnn.LSTMCell(HIDDEN), rnn.GRUCell(HIDDEN)):
    mx.random.seed(2)
    width = one_hot(batch()[0], len(LETTERS))
    if not V1:
        cell.infer_shape(0, width, False)
    cell.initialize(init.Xavier())
    outputs, states = cell.unroll(STEPS, width, layout="TNC", merge_outputs=True)
    sums = [round(part.sum().asnumpy().item(), 4) for part in (outputs, states[0])]
    print(cell, outputs.shape, *sums)

# A recurrent network without layers.
mx.random.seed(3)
draw = (lambda *shape: mx.nd.random.normal(0, 0.1, shape=shape)) if V1 else (
    lambda *shape: mx.np.random.normal(0, 0.1, size=shape)
)  # fmt: skip
weights = [draw(len(LETTERS), HIDDEN), draw(HIDDEN, HIDDEN), zeros(HIDDEN), draw(HIDDEN, len(LETTERS))]
for weight in weights:
    weight.attach_grad()
inputs, labels = batch()
for epoch in range(9):
    with autograd.record():
        hidden, scores = zeros((BATCH, HIDDEN)), []
        for step in one_hot(inputs, len(LETTERS)):
            hidden = tanh(dot(step, weights[0]) + dot(hidden, weights[1]) + weights[2])
            scores.append(dot(hidden, weights[3]))
        loss = loss_of(stack(scores).reshape((-1, len(LETTERS))), labels)
    loss.backward()
    for weight in weights:
        weight[:] = weight - 1.0 * weight.grad
    if epoch % 4 == 0:
        print("by hand: epoch", epoch, "loss", round(loss.asnumpy().item(), 4))
