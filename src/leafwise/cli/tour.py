"""`leafwise tour`: a newcomer's walk through leafwise, in the order of a lecture.

What is shown is what runs: each step is code, executed line by line, with what it gives printed below it.
"""

import argparse
import ast
import sys
from typing import TYPE_CHECKING, Any

from leafwise.errors import Error

if TYPE_CHECKING:
    from leafwise.render.terminal import Terminal

# Title, a sentence or two, and code; the value of an expression is shown as an interactive session would.
STEPS = (
    (
        "A network is a tree",
        "Modules are its nodes, weights and biases its leaves. Layer 2 is used again at 4.",
        """
import torch
from torch import nn
import leafwise as lw
shared = nn.Linear(8, 8)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), shared, nn.ReLU(), shared, nn.Linear(8, 1))
t = lw.tree(net)
print(t)
""",
    ),
    (
        "Reach a leaf by its path",
        "A leaf hands out the framework's own tensor, never a copy, and says what it is for.",
        """
t["5.weight"].value
t["5.weight"].value is net[5].weight
t["5.weight"].path.code("net")
t["5.weight"].role, t["5.weight"].axes
""",
    ),
    (
        "Its gradient, before and after backward",
        "",
        """
print(t["5.bias"].grad)
x, y = torch.randn(16, 4), torch.randn(16, 1)
nn.functional.mse_loss(net(x), y).backward()
t["5.bias"].grad
""",
    ),
    (
        "One look at every value",
        "Moments, extremes, zeros, what is not finite, and magnitudes by powers of two; of gradients, too.",
        """
s = lw.stats(net)
print(s)
s["0.weight"].std, s.fold("**.bias").absmax, lw.stats(net, of="grad").total.nan
""",
    ),
    (
        "What is wrong with them",
        "A linter for parameters: nothing here, until a fault is planted in a copy.",
        """
import copy
lw.check(net).ok
broken = copy.deepcopy(net)
broken[0].weight.data[3] = 0
print(lw.check(broken, select=["LW1", "LW2"], ignore="LW112"))
""",
    ),
    (
        "",
        "And one look at a leaf: blue is negative, red positive. lw.image(…).save(path) writes a PNG.",
        """
print(lw.image(broken, "0.weight"))
""",
    ),
    (
        "Walk once, use many ways",
        "Every leaf once, in PyTorch's own order; queries pick some of them.",
        """
for path, leaf in t.items(): print(f"{path!s:9} {leaf.role:14} |grad| = {leaf.grad.norm():.3f}")
[str(path) for path, leaf in t.select("**.bias").items()]
[str(path) for path, leaf in t.select(lw.where(role="linear.*", tied=True)).items()]
""",
    ),
    (
        "An optimizer is one of those uses",
        "",
        """
optimizer = torch.optim.SGD([leaf.value for leaf in t], lr=0.1)
before = copy.deepcopy(net)
optimizer.step()
torch.allclose(t["2.weight"].value, before[2].weight - 0.1 * t["2.weight"].grad)
""",
    ),
    (
        "",
        "What the step changed, leaf by leaf; the same of two files, which are read in pieces.",
        """
print(lw.diff(before, net))
""",
    ),
    (
        "Shared means one: the proof",
        "One edit is seen under both names.",
        """
t["4.weight"] is t["2.weight"]
t["2.weight"].value.data[0, 0] = 100
net[4].weight[0, 0].item()
""",
    ),
    (
        "",
        "The gradients of both uses are added up. An untied copy shows the two summands.",
        """
untied = copy.deepcopy(net); untied[4] = copy.deepcopy(untied[2])
for model in (net, untied): model.zero_grad(); nn.functional.mse_loss(model(x), y).backward()
first, second = untied[2].weight.grad, untied[4].weight.grad
first.norm(), second.norm(), t["2.weight"].grad.norm()
torch.allclose(t["2.weight"].grad, first + second)
""",
    ),
    (
        "",
        "And it is counted once: two leaves fewer than names.",
        """
t.counts.names, t.counts.leaves, t.counts.parameters
lw.tree(untied).counts.parameters - t.counts.parameters
""",
    ),
    (
        "Tie what is not, also transposed",
        "The decoder's weight becomes a live view of the encoder's: one buffer, one gradient.",
        """
auto = nn.ModuleDict({"encoder": nn.Linear(8, 3), "decoder": nn.Linear(3, 8)})
_ = lw.tie(auto, "decoder.weight", to="encoder.weight", transpose=True, keep="source")
print(lw.ties(auto))
""",
    ),
    (
        "",
        "Whatever PyTorch does to the model from now on, the tie holds.",
        """
moved = copy.deepcopy(auto).to("meta").to_empty(device="cpu")
_ = moved.load_state_dict(auto.state_dict(), assign=True)
torch.equal(moved["decoder"].weight, moved["encoder"].weight.T)
""",
    ),
    (
        "Which use drives the weight",
        "The two summands again, this time without an untied copy.",
        """
net.zero_grad()
with lw.uses(net) as uses: nn.functional.mse_loss(net(x), y).backward()
for use, gradient in uses["2.weight"].items(): print(use, f"|grad| = {gradient.norm():.3f}")
torch.allclose(uses["2.weight"].total(), t["2.weight"].grad)
""",
    ),
    (
        "Groups by rule, with an account of every leaf",
        "Roles decide what is decayed, never a substring. A rule that matches nothing is an error.",
        """
net = lw.initialize(net, [lw.Rule(lw.where(role="linear.weight"), init="xavier_normal")], seed=0)
net = lw.freeze(net, "0.*")
groups = lw.groups(net, [lw.no_decay(), lw.Rule("5.*", lr=1e-2)], lr=1e-3, weight_decay=0.1)
print(groups)
""",
    ),
    (
        "",
        "They are what torch.optim takes. Gradients are clipped by path, and the average is one swap away.",
        """
optimizer, average = torch.optim.AdamW(groups), lw.Average(net, decay=0.9)
net.zero_grad(); nn.functional.mse_loss(net(x), y).backward()
lw.clip(net, 0.5)
optimizer.step(); average.update()
with average.applied(): print(nn.functional.mse_loss(net(x), y).item())
try: lw.groups(net, [lw.Rule("LayerNorm.*", weight_decay=0)])
except lw.Error as error: print(error)
net = lw.thaw(net, "0.*")
""",
    ),
    (
        "A file is the same tree",
        "Only its header is read, and nothing in it can run. What was shared is shared.",
        """
import tempfile, os
path = os.path.join(tempfile.mkdtemp(), "model.pt")
torch.save({"model": net.state_dict(), "step": 7}, path)
with lw.open(path) as f: print(f); part = f["model.0.weight"].numpy((0, slice(2)))
part
""",
    ),
    (
        "Save: the old file or the new one, never neither",
        "Plain safetensors, with ties stored once and a checksum for every leaf and the header.",
        """
for parameter in net.parameters(): parameter.data.normal_(std=0.3)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
def step(model, optimizer):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward(); optimizer.step()
    return loss.item()
losses = [step(net, optimizer) for _ in range(3)]
path = path.replace("model.pt", "run.safetensors")
path = lw.save({"model": net, "optimizer": optimizer, "step": 3}, path)
lw.verify(path)
""",
    ),
    (
        "",
        "The same look at a file, in pieces: the numbers are those of the live model, bit for bit.",
        """
print(lw.stats(path).select("model.**"))
lw.stats(path)["model.2.weight"].l2 == lw.stats(net)["2.weight"].l2
""",
    ),
    (
        "",
        "One flipped bit is found, and named.",
        """
import pathlib
data = bytearray(pathlib.Path(path).read_bytes()); data[-30] ^= 1
_ = pathlib.Path(path + ".bad").write_bytes(data)
try: lw.load({"model": net, "optimizer": optimizer, "step": 0}, path + ".bad")
except lw.ChecksumError as error: print(error.leaves[0], "is damaged")
""",
    ),
    (
        "Load with proof, and go on where you were",
        "The plan says what goes where. A fresh model, not even tied, resumes bit for bit: the tie comes back first.",
        """
fresh = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 1))
saved = lw.open(path)
print(lw.plan(fresh, saved["model"]))
fresh = lw.load(fresh, saved["model"])
state = {"model": fresh, "optimizer": torch.optim.AdamW(fresh.parameters()), "step": 0}
state = lw.load(state, saved)
state["step"], fresh[4].weight is fresh[2].weight
[step(fresh, state["optimizer"]) for _ in range(3)] == [step(net, optimizer) for _ in range(3)]
""",
    ),
)

END = """Where to go from here
  leafwise show FILE                     the same tree over a checkpoint, reading only its header
  leafwise stats FILE                    one look at every value: moments, extremes, NaN, zeros, magnitudes
  leafwise check FILE                    what is wrong with it: dead units, scales, lost ties, and so on
  leafwise diff A B                      what changed: values, names, shapes, dtypes, ties
  leafwise image FILE PATH -o FILE.png   one leaf as a picture
  leafwise convert A.pt B.safetensors    from one format to another, safely
  leafwise verify FILE                   every checksum
  leafwise plan FILE package.module:build    what loading it into your model would do
  leafwise show package.module:build     over a model of yours
  leafwise ties package.module:build     what it shares, and how
  leafwise groups package.module:build   what an optimizer would decay, and how fast each leaf would learn
  python -m leafwise.gluon SCRIPT.py     the lecture's own Gluon code, which MXNet can no longer run
  docs/guide.md                          the same walk at leisure
"""


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "tour",
        help="a short walk through leafwise",
        description="Builds a small network in the terminal and shows what leafwise does with it. Needs PyTorch.",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        import torch
    except ImportError as error:
        raise Error("the tour needs PyTorch: pip install 'leafwise[torch]'") from error
    from leafwise.render.terminal import Terminal

    torch.manual_seed(0)
    terminal = Terminal.of(sys.stdout)
    scope: dict[str, Any] = {"__name__": "tour"}
    for number, (title, text, code) in enumerate(_numbered(STEPS)):
        print("\n" * (number > 0) + _styled(title, "1;36", terminal) if title else "")
        if text:
            print(_styled(text, "", terminal))
        play(code, scope, terminal)
    print("\n" + _styled(END.rstrip(), "", terminal))
    return 0


def _numbered(steps: tuple[tuple[str, str, str], ...]) -> list[tuple[str, str, str]]:
    numbered, count = [], 0
    for title, text, code in steps:
        count += bool(title)
        numbered.append((f"{count}. {title}" if title else "", text, code.strip()))
    return numbered


def play(code: str, scope: dict[str, Any], terminal: "Terminal") -> None:
    """Shows and runs code, one line at a time."""
    for statement in ast.parse(code).body:
        source = ast.get_source_segment(code, statement) or ""
        for number, line in enumerate(source.splitlines()):
            print(_styled("... " if number else ">>> ", "2", terminal) + _styled(line, "33", terminal))
        if isinstance(statement, ast.Expr):
            value = eval(compile(ast.Expression(statement.value), "<tour>", "eval"), scope)
            if value is not None:
                print(repr(value))
        else:
            exec(compile(ast.Module([statement], []), "<tour>", "exec"), scope)


def _styled(text: str, code: str, terminal: "Terminal") -> str:
    from leafwise.render.text import in_ascii

    text = in_ascii(text) if terminal.ascii else text
    return f"\x1b[{code}m{text}\x1b[0m" if terminal.color and text and code else text
