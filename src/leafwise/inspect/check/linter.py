"""`lw.check`: a linter for parameters."""

from collections import Counter
from contextlib import ExitStack
from typing import Any, overload

from leafwise.core.parts import check_listed, check_whole_leaves
from leafwise.core.verbs import check_sendable, opened
from leafwise.core.work.executor_tasks import Workers
from leafwise.core.work.fleet import each_checkpoint, is_pattern
from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.findings import Findings
from leafwise.inspect.check.rules.registry import selected_rules
from leafwise.inspect.ranks.teamwork import team_of_trees


@overload
def check(
    source: Any,
    optimizer: Any = None,
    init: Any = None,
    against: Any = None,
    *,
    select: Any = None,
    ignore: Any = None,
    progress: bool = False,
    executor: None = None,
) -> Findings: ...
@overload
def check(
    source: Any,
    optimizer: Any = None,
    init: Any = None,
    against: Any = None,
    *,
    select: Any = None,
    ignore: Any = None,
    progress: bool = False,
    executor: Any,
) -> Any: ...
def check(
    source: Any,
    optimizer: Any = None,
    init: Any = None,
    against: Any = None,
    *,
    select: Any = None,
    ignore: Any = None,
    progress: bool = False,
    executor: Any = None,
) -> Any:
    """Finds problems in the parameters of a model or checkpoint: NaN, dead units, wrong scales, lost ties and more.

    `source` is anything that `lw.tree` takes. More arguments allow more checks:

    - `optimizer` is an optimizer, or a list of them: checks their state, and whether they step every leaf once.
    - `init` has the rules by which the model was initialized (see `lw.initialize`); `True` stands for the defaults of
      PyTorch's layers. Reports leaves with another distribution.
    - `against` is the same model before training, or its checkpoint. Reports leaves that have not changed.
    - `select` and `ignore` take codes of rules or prefixes of codes, such as `"LW3"`.
    - `progress=True` shows a progress bar.
    - With `executor`, other processes read the file, and `source` may be a pattern, as for `lw.stats`: the result for a
      pattern is a `Fleet`, with the findings of each checkpoint that matches.

    If leaves are sharded over processes, every rank must call it, and gets the findings of the whole model.

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
    options = optimizer, init, against, select, ignore
    if executor is not None and is_pattern(source):
        selected_rules(select, ignore)  # raises if they are not valid
        return each_checkpoint(
            source, "check", executor, lambda path, workers: findings_of(path, *options, workers=workers), progress
        )
    return findings_of(source, *options, progress, None if executor is None else Workers(executor))


def findings_of(
    source: Any,
    optimizer: Any = None,
    init: Any = None,
    against: Any = None,
    select: Any = None,
    ignore: Any = None,
    progress: bool = False,
    workers: Workers | None = None,
) -> Findings:
    """The findings in one model or checkpoint. If there are workers, they read the values."""
    rules = selected_rules(select, ignore)
    with ExitStack() as files:
        t = files.enter_context(opened(source, "check"))
        baseline = None if against is None else files.enter_context(opened(against, "check"))
        for part in (t,) if baseline is None else (t, baseline):
            check_whole_leaves(part, "check")
            if workers is not None:
                check_sendable(part, "check")
        check_listed(t, "check")
        team = team_of_trees(t) if baseline is None else team_of_trees(t, baseline)
        evidence = Evidence(t, optimizer, init, baseline, progress, workers, team)

        def checked() -> Findings:
            findings = [finding for rule in rules for finding in rule.findings(evidence)]
            skipped = evidence.skipped
            sections = Counter(leaf.section for leaf in evidence.leaves if leaf.path not in skipped)
            return Findings(findings, sections, tuple(rule.code for rule in rules), skipped)

        return checked() if evidence.ranks is None else evidence.ranks.findings(rules, checked)
