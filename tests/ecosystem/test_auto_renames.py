"""Names in checkpoints of other libraries: `rename="auto"` matches them correctly, or the load is refused."""

import copy
import warnings
from typing import Any

import pytest
import torch
from tests.lazy import Lazy
from tools import auto_renames
from torch import nn

import leafwise as lw

peft = Lazy("peft")
# The expected outcomes. In those that are refused, guessing would fill the wrong leaves.
ARCHITECTURES = {
    "bert": "as it is",
    "vit": "exact",
    "llava": "exact",
    "gpt_neox": "exact",
    "sam3_tracker": "exact",
    "pixio": "not certain",
    "cohere_asr": "not certain",
    "pp_doclayout_v4": "not certain",
    "kimi_k25": "stored otherwise",
    "mixtral": "stored otherwise",
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_architecture_of_transformers_is_loaded_incorrectly(name: str) -> None:
    found = auto_renames.outcome_of(name)
    assert found is not None
    assert found.kind == ARCHITECTURES[name]
    assert found.is_exact_there, found  # the checkpoint is complete


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(4, 4), nn.Linear(4, 4)
        self.classifier = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.classifier(self.query(x) + self.value(x))


def adapted() -> Any:
    config = peft.LoraConfig(target_modules=["query", "value"], modules_to_save=["classifier"], r=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.get_peft_model(Classifier(), config)


def test_a_head_does_not_load_into_either_of_the_two_heads_of_a_peft_model() -> None:
    base, model = Classifier(), adapted()
    plan = lw.plan(model, base.state_dict(), rename="auto", allow={"missing"})
    assert not plan.holds
    assert plan.unexpected == ["classifier.weight", "classifier.bias"]
    weight = next(one for one in plan.proposals if one.pairs[0][0] == "classifier.weight")
    assert [name.split("classifier.")[1] for name in weight.targets] == [
        "original_module.weight",
        "modules_to_save.default.weight",
    ]
    lw.load(model, base.state_dict(), rename="auto", allow={"missing", "unexpected"})
    for name in ("query", "value"):
        layer = getattr(model.base_model.model, name)
        assert torch.equal(layer.base_layer.weight, getattr(base, name).weight)


def test_neither_of_the_two_heads_that_peft_stores_is_chosen_automatically() -> None:
    source, model = adapted(), Classifier()
    before = copy.deepcopy(model)
    plan = lw.plan(model, source.state_dict(), rename="auto", allow={"unexpected"})
    assert plan.missing == ["classifier.weight", "classifier.bias"]
    lw.load(model, source.state_dict(), rename="auto", allow={"missing", "unexpected"})
    assert torch.equal(model.classifier.weight, before.classifier.weight)
    assert torch.equal(model.query.weight, source.base_model.model.query.base_layer.weight)
    chosen = {"base_model.model.classifier.modules_to_save.default": "base_model.model.classifier"}
    assert "classifier.weight" not in lw.plan(model, source.state_dict(), rename=chosen).missing


def test_an_adapter_loads_into_its_layers() -> None:
    source, model = adapted(), adapted()
    for parameter in source.parameters():
        nn.init.normal_(parameter)
    stored = {name: value for name, value in peft.get_peft_model_state_dict(source).items() if "lora" in name}
    lw.load(model, stored, rename="auto", allow={"missing"})
    for name, value in source.state_dict().items():
        if "lora" in name:
            assert torch.equal(model.state_dict()[name], value), name
