"""Totals of models and checkpoints of transformers, against sums by plain loops over PyTorch and safetensors."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tests.lazy import Lazy

import leafwise as lw

transformers = Lazy("transformers")
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 120,
}
MODELS = {
    "LlamaForCausalLM": SMALL | {"tie_word_embeddings": True},
    "BertForMaskedLM": SMALL,
    "MixtralForCausalLM": SMALL | {"num_key_value_heads": 2, "num_local_experts": 4},
    "T5ForConditionalGeneration": {"d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 120},
    "GPT2LMHeadModel": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 120, "n_positions": 64},
}  # fmt: skip


def built(name: str) -> Any:
    cls = getattr(transformers, name)
    return cls(cls.config_class(**MODELS[name]))


def by_bytes(totals: Any) -> dict[str, int]:
    return {row.name: row.bytes for row in totals if row.leaves}


@pytest.mark.parametrize("name", MODELS)
def test_totals_of_a_model_are_the_sums_of_a_loop_over_its_parameters(name: str) -> None:
    model = built(name)
    t = lw.tree(model)
    sums: dict[str, Counter[str]] = {what: Counter() for what in ("dtype", "kind", "type", "module")}
    tensors = [*model.named_parameters(), *model.named_buffers()]  # each of them once, however many names it has
    for path, value in tensors:
        nbytes, (owner, _, _) = value.numel() * value.element_size(), path.rpartition(".")
        sums["dtype"][str(value.dtype).removeprefix("torch.")] += nbytes
        sums["kind"]["parameter" if isinstance(value, torch.nn.Parameter) else "buffer"] += nbytes
        sums["type"][type(model.get_submodule(owner)).__name__] += nbytes
        sums["module"][".".join(owner.split(".")[:2]) or "(root)"] += nbytes
    for what, expected in sums.items():
        assert by_bytes(t.by(what, depth=2 if what == "module" else None)) == expected
    assert [row.bytes for row in t.top(10_000)] == sorted(
        (v.numel() * v.element_size() for _, v in tensors), reverse=True
    )
    assert t.by("dtype").parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_totals_of_a_checkpoint_are_the_sums_of_a_loop_over_its_files(name: str, tmp_path: Path) -> None:
    built(name).to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="20KB")
    files, depths, leaves = Counter[str](), Counter[str](), 0
    for path in tmp_path.glob("*.safetensors"):
        with safe_open(path, "pt") as opened:
            for key in opened.keys():  # noqa: SIM118, it is not a mapping
                value = opened.get_tensor(key)
                files[path.name] += value.numel() * value.element_size()
                depths[str(len(key.split(".")))] += value.numel() * value.element_size()
                leaves += 1
    with lw.open(tmp_path) as t:
        assert len(files) > 2
        assert by_bytes(t.by("file")) == files
        assert by_bytes(t.by("depth")) == depths
        assert t.by("file").leaves == leaves
        assert t.by("file").bytes == t.counts.bytes == sum(files.values())
