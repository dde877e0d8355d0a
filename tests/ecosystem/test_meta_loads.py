"""Hugging Face models loaded on meta: loaded values stay, and buffers that are not in the checkpoint are computed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tools import meta_loads
from torch import nn

import leafwise as lw

# Their `_init_weights` also draws the parameters of children, or some buffers are only computed by the constructor.
ARCHITECTURES = ["clip", "siglip", "owlvit", "bert", "llama", "mbart", "deepseek_vl"]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_tensor_is_bit_for_bit_equal_to_the_saved_one(name: str) -> None:
    found = meta_loads.result_of(name)
    assert found is not None
    assert found[1] == "exact", found


class PreTrainedModel(nn.Module):
    """Like transformers' class: built from a config, and recognized by the name of the class."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.child = nn.Linear(4, 4)
        self.register_buffer("running", torch.zeros(4))
        self.register_buffer("table", torch.arange(config["size"]) * 0.5, persistent=False)
        self.register_buffer("scale", torch.tensor(3.0), persistent=False)


class Drawing(PreTrainedModel):
    """Has a buffer that differs each time the model is built."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.register_buffer("noise", torch.zeros(3).normal_(), persistent=False)


class Particular(PreTrainedModel):
    """Cannot be built from a config alone; computes its buffers and draws its parameters in `_init_weights`."""

    def __init__(self, config: dict[str, Any], more: int) -> None:
        super().__init__(config)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.more = more

    def _init_weights(self, module: nn.Module) -> None:
        for one in module.modules():
            if isinstance(one, nn.Linear):
                nn.init.normal_(one.weight)
            if isinstance(one, nn.BatchNorm1d):
                one.reset_running_stats()
        if module is self:
            nn.init.ones_(self.running)
            self.table.copy_(torch.arange(self.config["size"]) * 0.5)
            self.scale.fill_(3.0)


def built(cls: Any, *arguments: Any, meta: bool = False) -> Any:
    with torch.device("meta" if meta else "cpu"):
        return cls({"size": 5}, *arguments)


def test_buffers_that_are_not_in_the_checkpoint_are_computed_by_the_constructor(tmp_path: Path) -> None:
    model, target = built(PreTrainedModel), built(PreTrainedModel, meta=True).to(torch.bfloat16)
    model = model.to(torch.bfloat16)
    state = torch.get_rng_state()
    lw.load(target, lw.save(model, tmp_path / "a.safetensors"))
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in meta_loads.tensors(model).items():
        assert torch.equal(meta_loads.tensors(target)[name], tensor), name
    assert target.table.dtype == torch.bfloat16
    assert "table" not in target.state_dict()


def test_a_random_buffer_is_not_invented(tmp_path: Path) -> None:
    path = lw.save(built(Drawing), tmp_path / "a.safetensors")
    with pytest.raises(lw.LoadError, match=r"noise is a non-persistent buffer on meta: checkpoints do not store it"):
        lw.load(built(Drawing, meta=True), path)
    target = lw.load(built(Drawing, meta=True), path, allow={"missing"})
    assert target.noise.is_meta
    assert target.table.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_init_weights_does_not_overwrite_loaded_values(tmp_path: Path) -> None:
    model, target = built(Particular, 1), built(Particular, 1, meta=True)
    model.running.fill_(7)
    model.inner[1].running_mean.fill_(5)
    lw.load(target, lw.save(model, tmp_path / "a.safetensors"))
    for name, tensor in meta_loads.tensors(model).items():
        assert torch.equal(meta_loads.tensors(target)[name], tensor), name
