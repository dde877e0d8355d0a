"""`lw.check`: a linter for parameters."""

from collections import Counter
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
    """Finds problems in the parameters of a model or checkpoint: NaN, dead units, wrong scales, lost ties and more.

    `source` is anything that `lw.tree` takes. More arguments allow more checks:

    - `optimizer` is an optimizer, or a list of them: checks their state, and whether they step every leaf once.
    - `init` has the rules by which the model was initialized (see `lw.initialize`); `True` stands for the defaults of
      PyTorch's layers. Reports leaves with another distribution.
    - `against` is the same model before training, or its checkpoint. Reports leaves that have not changed.
    - `select` and `ignore` take codes of rules or prefixes of codes, such as `"LW3"`.
    - `progress=True` shows a progress bar.

    Each finding has a `code`, a `level` ("error", "warning" or "note"), a `path`, and a `message` with the figures and
    what to do.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))
    >>> with torch.no_grad():
    ...     net[0].weight[3] = 0
    ...     net[2].bias[0] = float("nan")
    >>> for finding in lw.check(net):
    ...     print(finding)
    2.bias: error LW101: 1 NaN among 16 values, at [0]; load the last checkpoint without them
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
        checked = Counter(leaf.section for leaf in evidence.leaves if leaf.path not in skipped)
        return Findings(findings, checked, tuple(rule.code for rule in rules), skipped)
