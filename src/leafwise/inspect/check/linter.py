"""`lw.check`: a linter for parameters."""

from contextlib import ExitStack
from typing import Any

from leafwise.core.arguments import renamed_arguments
from leafwise.core.verbs import opened
from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.findings import Findings
from leafwise.inspect.check.rules.registry import selected_rules


@renamed_arguments(x="source")
def check(
    source: Any,
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
    0.weight: warning LW110: 1 of 16 units is all zero: 3; cut them out, or initialize them again
    """
    rules = selected_rules(select, ignore)
    with ExitStack() as files:
        t = files.enter_context(opened(source, "check"))
        t.check_listed("check")
        baseline = None if against is None else files.enter_context(opened(against, "check"))
        evidence = Evidence(t, optimizer, init, baseline, progress)
        findings = [finding for rule in rules for finding in rule.findings(evidence)]
        skipped = evidence.skipped
        checked = sum(leaf.path not in skipped for leaf in evidence.leaves)
        return Findings(findings, checked, tuple(rule.code for rule in rules), skipped)
