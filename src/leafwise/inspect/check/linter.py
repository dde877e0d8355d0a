"""`lw.check`: a linter for parameters."""

from typing import Any

from leafwise.core.tree import Tree, tree
from leafwise.errors import Error
from leafwise.inspect.check.evidence import Looked
from leafwise.inspect.check.findings import Findings
from leafwise.inspect.check.rules.registry import chosen


def check(
    x: Any,
    optimizer: Any = None,
    init: Any = None,
    against: Any = None,
    *,
    select: Any = None,
    ignore: Any = None,
    progress: bool = False,
) -> Findings:
    """Looks for what is wrong with the parameters of a model, a file, or whatever `lw.tree` takes.

    A finding has a `code`, a `level` ("error", "warning", "note"), a `path` and a `message` with the figure and what to
    do. `optimizer=`, one or several, is looked at too: its state, and what it steps. `init=` declares initial values,
    as the rules of `lw.initialize` do (`True`: those that PyTorch's layers begin with), and finds what is not
    distributed so. `against=` is the same model before training, or its file: what did not change is found. `select=`
    and `ignore=` take codes, or fronts of codes such as "LW3".

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))
    >>> with torch.no_grad():
    ...     net[0].weight[3] = 0
    ...     net[2].bias[0] = float("nan")
    >>> for finding in lw.check(net):
    ...     print(finding)
    2.bias: error LW101: 1 NaN of 16 values; load the last checkpoint without them
    0.weight: warning LW110: 1 of 16 units is all zero: 3; cut them out, or initialise them again
    """
    rules = chosen(select, ignore)
    opened: list[Tree] = []
    try:
        t = _opened(x, opened)
        t.check_listed("check")
        before = None if against is None else _opened(against, opened)
        looked = Looked(t, optimizer, init, before, progress)
        found = [finding for rule in rules for finding in rule.findings(looked)]
        skipped = looked.skipped
        checked = sum(seen.path not in skipped for seen in looked.leaves)
        return Findings(found, checked, tuple(rule.code for rule in rules), skipped)
    except ModuleNotFoundError as error:
        raise Error(f"lw.check needs {error.name}: pip install {error.name}") from error
    finally:
        for one in opened:
            one.close()


def _opened(given: Any, opened: list[Tree]) -> Tree:
    """The tree of whatever was given; kept in mind where that opened a file."""
    t = tree(given)
    if t is not given and t.is_file:
        opened.append(t)
    return t
