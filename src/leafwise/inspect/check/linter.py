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
    """Looks for problems in the parameters of a model, a file, or anything else that `lw.tree` accepts.

    Each finding has a `code`, a `level` ("error", "warning" or "note"), a `path`, and a `message` with the figures and
    what to do. `optimizer=` is one optimizer or several: their state is checked too, and which leaves they step.
    `init=` declares initial values, like the rules of `lw.initialize` (`True`: the defaults of PyTorch's layers), and
    leaves that are distributed differently are reported. `against=` is the same model before training, or its
    checkpoint: leaves that have not changed are reported. `select=` and `ignore=` take codes or prefixes of codes, such
    as "LW3".

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))
    >>> with torch.no_grad():
    ...     net[0].weight[3] = 0
    ...     net[2].bias[0] = float("nan")
    >>> for finding in lw.check(net):
    ...     print(finding)
    2.bias: error LW101: 1 NaN among 16 values; load the last checkpoint without them
    0.weight: warning LW110: 1 of 16 units is all zero: 3; prune or reinitialize it
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
