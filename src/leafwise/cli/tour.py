"""`leafwise tour`: shows the main features of leafwise to a newcomer, in the order of a lecture.

Each step is code that is really executed, line by line. Its results are printed below it.
"""

import argparse
import ast
import sys
from typing import TYPE_CHECKING, Any

from leafwise.errors import Error

if TYPE_CHECKING:
    from leafwise.render.terminal import Terminal

# The steps, each with a title (#), an explanation (>) and code. The value of an expression is printed, as in an
# interactive session.
STEPS = """
# A network is a tree
> Modules are its nodes; weights and biases are its leaves. The layer at 2 is used again at 4.
import torch
from torch import nn
import leafwise as lw
shared = nn.Linear(8, 8)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), shared, nn.ReLU(), shared, nn.Linear(8, 1))
t = lw.tree(net)
print(t)

# Reach a leaf by its path
> A leaf gives you the framework's own tensor, never a copy. Its role says what it is for.
t["5.weight"].value
t["5.weight"].value is net[5].weight
t["5.weight"].path.code("net")
t["5.weight"].role, t["5.weight"].axes

# Its gradient, before and after backward
print(t["5.bias"].grad)
x, y = torch.randn(16, 4), torch.randn(16, 1)
nn.functional.mse_loss(net(x), y).backward()
t["5.bias"].grad

# Measure every value
> Mean, standard deviation, extremes, zeros, NaN and infinite values, and magnitudes; also for gradients.
s = lw.stats(net)
print(s)
s["0.weight"].std, s.fold("**.bias").absmax, lw.stats(net, of="grad").total.nan

# Find problems
> lw.check is a linter for parameters. It finds nothing here, until we damage a copy.
import copy
lw.check(net).ok
broken = copy.deepcopy(net)
broken[0].weight.data[3] = 0
print(lw.check(broken, select=["LW1", "LW2"], ignore="LW112"))

> Draw a leaf: blue is negative, red is positive. lw.image(…).save(path) writes a PNG.
print(lw.image(broken, "0.weight"))

# Iterate over leaves
> Each leaf comes once, in PyTorch's own order. Queries select some of them.
for path, leaf in t.items(): print(f"{path!s:9} {leaf.role:14} |grad| = {leaf.grad.norm():.3f}")
[str(path) for path, leaf in t.select("**.bias").items()]
[str(path) for path, leaf in t.select(lw.where(role="linear.*", tied=True)).items()]

# Pass the leaves to an optimizer
optimizer = torch.optim.SGD([leaf.value for leaf in t], lr=0.1)
before = copy.deepcopy(net)
optimizer.step()
torch.allclose(t["2.weight"].value, before[2].weight - 0.1 * t["2.weight"].grad)

> Compare the model before and after the step, leaf by leaf. lw.diff also compares files, in chunks.
print(lw.diff(before, net))

# A tied weight is one leaf
> A change under one name shows under the other.
t["4.weight"] is t["2.weight"]
t["2.weight"].value.data[0, 0] = 100
net[4].weight[0, 0].item()

> Its gradient is the sum over both uses. An untied copy shows the two terms.
untied = copy.deepcopy(net); untied[4] = copy.deepcopy(untied[2])
for model in (net, untied): model.zero_grad(); nn.functional.mse_loss(model(x), y).backward()
first, second = untied[2].weight.grad, untied[4].weight.grad
first.norm(), second.norm(), t["2.weight"].grad.norm()
torch.allclose(t["2.weight"].grad, first + second)

> It counts once: there are two leaves fewer than names.
t.counts.names, t.counts.leaves, t.counts.parameters
lw.tree(untied).counts.parameters - t.counts.parameters

# Tie weights, even transposed
> The decoder's weight becomes a live view of the encoder's: one buffer, one gradient.
auto = nn.ModuleDict({"encoder": nn.Linear(8, 3), "decoder": nn.Linear(3, 8)})
_ = lw.tie(auto, "decoder.weight", to="encoder.weight", transpose=True, keep="source")
print(lw.ties(auto))

> The tie survives what PyTorch does to the model: copying, moving, loading a state dict.
moved = copy.deepcopy(auto).to("meta").to_empty(device="cpu")
_ = moved.load_state_dict(auto.state_dict(), assign=True)
torch.equal(moved["decoder"].weight, moved["encoder"].weight.T)

# The gradient of each use
> The same two terms, this time without an untied copy.
net.zero_grad()
with lw.uses(net) as uses: nn.functional.mse_loss(net(x), y).backward()
for use, gradient in uses["2.weight"].items(): print(use, f"|grad| = {gradient.norm():.3f}")
torch.allclose(uses["2.weight"].total(), t["2.weight"].grad)

# Optimizer groups by rule
> Weight decay depends on the role of a leaf, not on its name. A rule that matches nothing is an error.
net = lw.initialize(net, [lw.Rule(lw.where(role="linear.weight"), init="xavier_normal")], seed=0)
net = lw.freeze(net, "0.*")
groups = lw.groups(net, [lw.no_decay(), lw.Rule("5.*", lr=1e-2)], lr=1e-3, weight_decay=0.1)
print(groups)

> torch.optim takes the groups as they are. Clip gradients by path, and evaluate with averaged weights.
optimizer, average = torch.optim.AdamW(groups), lw.Average(net, decay=0.9)
net.zero_grad(); nn.functional.mse_loss(net(x), y).backward()
lw.clip(net, 0.5)
optimizer.step(); average.update()
with average.applied(): print(nn.functional.mse_loss(net(x), y).item())
try: lw.groups(net, [lw.Rule("LayerNorm.*", weight_decay=0)])
except lw.Error as error: print(error)
net = lw.thaw(net, "0.*")

# A file is a tree, too
> Only its header is read, and code in it is never run. Tied weights are tied in the file, too.
import tempfile, os
path = os.path.join(tempfile.mkdtemp(), "model.pt")
torch.save({"model": net.state_dict(), "step": 7}, path)
with lw.open(path) as f: print(f); part = f["model.0.weight"].numpy((0, slice(2)))
part

# Save atomically, with checksums
> A normal safetensors file. Tied leaves are stored once; every leaf and the header have checksums.
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

> Measure the file, in chunks. The numbers are bitwise equal to those of the live model.
print(lw.stats(path).select("model.**"))
lw.stats(path)["model.2.weight"].l2 == lw.stats(net)["2.weight"].l2

> A single flipped bit is found, and the damaged leaf is named.
import pathlib
data = bytearray(pathlib.Path(path).read_bytes()); data[-30] ^= 1
_ = pathlib.Path(path + ".bad").write_bytes(data)
try: lw.load({"model": net, "optimizer": optimizer, "step": 0}, path + ".bad")
except lw.ChecksumError as error: print(error.leaves[0], "is damaged")

# Load by a plan, and resume
> The plan shows where every value would go. A new, untied model gets the tie back and resumes bit for bit.
fresh = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 1))
saved = lw.open(path)
print(lw.plan(fresh, saved["model"]))
fresh = lw.load(fresh, saved["model"])
state = {"model": fresh, "optimizer": torch.optim.AdamW(fresh.parameters()), "step": 0}
state = lw.load(state, saved)
state["step"], fresh[4].weight is fresh[2].weight
[step(fresh, state["optimizer"]) for _ in range(3)] == [step(net, optimizer) for _ in range(3)]
"""

END = """Where to go from here
  leafwise show FILE                     the tree of a checkpoint, from its header
  leafwise stats FILE                    mean, standard deviation, extremes, NaN, zeros and magnitudes
  leafwise check FILE                    problems: dead units, wrong scales, lost ties and more
  leafwise diff A B                      what changed: values, names, shapes, dtypes, ties
  leafwise image FILE PATH -o FILE.png   a picture of one leaf
  leafwise view FILE                     all of this in the browser
  leafwise convert A.pt B.safetensors    write a checkpoint as safetensors or npz
  leafwise verify FILE                   compare a checkpoint with its checksums
  leafwise plan FILE package.module:build    what loading it into your model would do
  leafwise show package.module:build     the tree of your own model
  leafwise ties package.module:build     its tied leaves
  leafwise groups package.module:build   its optimizer groups: weight decay and learning rate of every leaf
  docs/guide.md                          the same tour in more detail
"""


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "tour",
        help="show what leafwise does, on a small network",
        description="Builds a small network and shows what leafwise does with it, step by step. Needs PyTorch.",
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
    number = 0
    for step in STEPS.strip().split("\n\n"):
        lines = step.split("\n")
        if lines[0].startswith("# "):
            number += 1
            print("\n" * (number > 1) + _styled(f"{number}. {lines.pop(0)[2:]}", "1;36", terminal))
        else:
            print()
        if lines[0].startswith("> "):
            print(_styled(lines.pop(0)[2:], "", terminal))
        play("\n".join(lines), scope, terminal)
    print("\n" + _styled(END.rstrip(), "", terminal))
    return _show_viewer(scope["net"])


def _show_viewer(net: Any) -> int:
    """Asks whether to show the network in the browser, if there is somebody to ask."""
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()):
        return 0
    try:
        answer = input("\nShow the network of this tour in the browser? [y/N] ")
    except (EOFError, KeyboardInterrupt):
        print()
        return 0
    if answer.strip().lower() not in ("y", "yes"):
        return 0
    from leafwise.cli.view import serve

    return serve([net], ["net"], browser=True)


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
