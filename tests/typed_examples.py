"""What type checkers know about leafwise: `make check` runs mypy --strict over this file. It is not run as a test.

`assert_type` is checked by mypy alone. An ignored error that does not occur is an error, too.
"""

from typing import Any, assert_type

import torch
from torch import nn

import leafwise as lw
from leafwise import results


class Classifier(nn.Module):
    """A model of one's own, whose type must survive."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)

    def classes(self) -> int:
        return self.head.out_features


def verbs_that_change_a_model_return_its_type(model: Classifier) -> int:
    assert_type(lw.load(model, "a.safetensors", rename="auto", allow={"missing"}, cast=True), Classifier)
    assert_type(lw.tie(model, "head.weight", to="body.weight", keep="source"), Classifier)
    assert_type(lw.untie(model, "head.weight"), Classifier)
    assert_type(lw.keep_ties(model, keep="mean"), Classifier)
    assert_type(lw.release_ties(model), Classifier)
    assert_type(lw.freeze(model, "body.**"), Classifier)
    assert_type(lw.thaw(model, lw.where(role="bias")), Classifier)
    assert_type(lw.initialize(model, [lw.Rule("**", init="normal")], seed=1, progress=True), Classifier)
    return lw.freeze(lw.load(model, "a.safetensors"), "body.**").classes()


def containers_keep_their_type(model: Classifier, optimizer: torch.optim.AdamW) -> None:
    assert_type(lw.load({"model": model}, "run.safetensors"), dict[str, Classifier])
    assert_type(lw.load(optimizer, "run.safetensors"), torch.optim.AdamW)


def a_part_may_be_anything(tree: lw.Tree) -> None:
    assert_type(lw.freeze(tree["body"], "**"), Any)
    part: lw.Tree = tree["body"]
    assert_type(lw.load(part, "a.safetensors"), Any)
    assert_type(lw.tie(part, "a", to="b"), Any)


def results_have_types(model: Classifier) -> None:
    assert_type(lw.tree(model), results.Tree)
    assert_type(lw.open("a.safetensors"), results.Tree)
    assert_type(lw.stats(model), results.Stats)
    assert_type(lw.stats(model).total, results.Row)
    assert_type(lw.check(model), results.Findings)
    assert_type(lw.check(model)[0], results.Finding)
    assert_type(lw.diff(model, "a.safetensors"), results.Diff)
    assert_type(lw.image(model, "head.weight"), results.Image)
    assert_type(lw.ties(model), results.Ties)
    assert_type(lw.uses(model), results.Uses)
    assert_type(lw.groups(model, [lw.no_decay()]), results.Groups)
    assert_type(lw.clip(model, 1.0), results.Norms)
    assert_type(lw.flat(model), results.Flat)
    assert_type(lw.plan(model, "a.safetensors"), results.Plan)
    assert_type(lw.verify("a.safetensors"), results.Verified)


def every_result_is_of_the_family(stats: results.Stats, verified: results.Verified) -> None:
    family: list[results.Result] = [stats, verified]
    for result in family:
        assert_type(result.text(width=80, full=True), str)
        assert_type(result.json(), dict[str, Any])
    tables: list[results.Table] = [stats]
    tables[0].pandas()
    assert_type(stats.text(depth=2), str)


def a_save_returns_a_path_or_a_handle(model: Classifier, later: bool) -> None:
    assert_type(lw.save(model, "a.safetensors"), str)
    assert_type(lw.save(model, "a.safetensors", background=True), results.BackgroundSave)
    assert_type(lw.save(model, "a.safetensors", background=later), str | results.BackgroundSave)


def mistakes_are_found(model: Classifier) -> None:
    wrong: nn.Linear = lw.load(model, "a.safetensors")  # type: ignore[assignment]
    lw.stats(x=model)  # type: ignore[call-overload]
    lw.save(model, "a.safetensors", only="**")  # type: ignore[call-overload]
    lw.keep_ties(model, False)  # type: ignore[call-overload]
    lw.clip(model, 1.0, per="a.**")  # type: ignore[arg-type]
    lw.load(model, "a.safetensors", ties="keep")  # type: ignore[call-overload]
    del wrong
