"""Sections: which arrays of a training checkpoint are weights, optimizer state, and the rest."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leafwise as lw


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def trained() -> tuple[dict[str, Any], dict[str, Any]]:
    """The state dicts of a model and of its optimizer."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    return net.state_dict(), optimizer.state_dict()


STATE, OPTIMIZER = trained()
PARAMETERS, BUFFERS, STEPPED = 74, 17, 154
SCHEDULER = {"base_lrs": [0.1], "last_epoch": 3, "smoothed": torch.ones(3)}
CUDA_RNG = torch.zeros(16, dtype=torch.uint8)


def copied() -> dict[str, Any]:
    return {name: value.clone() for name, value in STATE.items()}


def rng() -> torch.Tensor:
    return torch.get_rng_state()


# The layouts of training loops: what each writes, and its numbers of parameters, of optimizer state and of the rest.
LAYOUTS: dict[str, tuple[Callable[[], dict[str, Any]], int, int, int]] = {
    "imagenet example": (
        lambda: {"epoch": 1, "arch": "r", "state_dict": STATE, "best_acc1": torch.tensor(0.5), "optimizer": OPTIMIZER},
        PARAMETERS, STEPPED, 1,
    ),
    "PyTorch's tutorial": (
        lambda: {
            "model_state_dict": STATE, "optimizer_state_dict": OPTIMIZER, "loss": torch.ones((), requires_grad=True)
        },
        PARAMETERS, STEPPED, 1,
    ),
    "torchvision": (
        lambda: {
            "model": STATE, "optimizer": OPTIMIZER, "lr_scheduler": SCHEDULER, "scaler": {"scale": 1.0},
            "model_ema": {"n_averaged": torch.tensor(3)} | {f"module.{name}": copy for name, copy in copied().items()},
        },
        2 * PARAMETERS, STEPPED, 3,
    ),
    "timm": (
        lambda: {
            "epoch": 1, "state_dict": STATE, "optimizer": OPTIMIZER, "amp_scaler": {"_scale": torch.tensor([2.0])},
            "state_dict_ema": copied(), "metric": 0.5,
        },
        2 * PARAMETERS, STEPPED, 1,
    ),
    "nanoGPT": (
        lambda: {"model": STATE, "optimizer": OPTIMIZER, "iter_num": 5, "best_val_loss": torch.tensor(3.2)},
        PARAMETERS, STEPPED, 1,
    ),
    "Lightning": (
        lambda: {
            "state_dict": STATE, "optimizer_states": [OPTIMIZER], "lr_schedulers": [SCHEDULER], "epoch": 1,
            "callbacks": {"ModelCheckpoint{'monitor': 'loss'}": {"kth_value": torch.tensor(float("inf"))}},
            "loops": {"fit_loop": {"seen": torch.ones(2)}}, "MixedPrecision": {"scale": torch.ones(1)},
        },
        PARAMETERS, STEPPED, 3 + 1 + 2 + 1,
    ),
    "MMEngine": (
        lambda: {
            "meta": {"epoch": 1}, "state_dict": STATE, "optimizer": OPTIMIZER, "param_schedulers": [SCHEDULER],
            "message_hub": {"log_scalars": {"loss": {"_log_history": np.ones(40)}}},
        },
        PARAMETERS, STEPPED, 43,
    ),
    "detectron2": (
        lambda: {"model": STATE, "optimizer": OPTIMIZER, "scheduler": SCHEDULER, "iteration": 9},
        PARAMETERS, STEPPED, 3,
    ),
    "fairseq": (
        lambda: {
            "model": STATE, "optimizer_history": [{"num_updates": 1}], "extra_state": {"x": torch.ones(2)},
            "last_optimizer_state": OPTIMIZER,
        },
        PARAMETERS, STEPPED, 2,
    ),
    "DeepSpeed, model": (
        lambda: {"module": STATE, "optimizer": None, "lr_scheduler": SCHEDULER, "global_steps": 3},
        PARAMETERS, 0, 3,
    ),
    "DeepSpeed, optimizer": (
        lambda: {
            "optimizer_state_dict": {
                "base_optimizer_state": [{"exp_avg": torch.ones(8)}],
                "single_partition_of_fp32_groups": [torch.ones(8, requires_grad=True)],
            },
            "ds_version": "1",
        },
        0, 16, 0,
    ),
    "Megatron": (
        lambda: {
            "iteration": 1, "model0": STATE, "opt_param_scheduler": {"max_lr": 1.0},
            "optimizer": {
                "optimizer": OPTIMIZER,
                "fp32_from_fp16_params": [[nn.Parameter(torch.ones(3))]],
            },
            "rng_state": [{
                "random_rng_state": random.getstate(), "np_rng_state": np.random.RandomState(0).get_state(),
                "torch_rng_state": rng(), "cuda_rng_state": CUDA_RNG, "rng_tracker_states": {"m": CUDA_RNG.clone()},
            }],
            "rerun_state_machine": {"x": torch.ones(2)},
        },
        PARAMETERS, STEPPED + 3, 624 + 5056 + 16 + 16 + 2,
    ),
    "Composer": (
        lambda: {
            "state": {"model": STATE, "optimizers": {"AdamW": OPTIMIZER}, "callbacks": {"X": {"v": torch.ones(3)}}},
            "rng": [{"torch": rng(), "cuda": CUDA_RNG}],
        },
        PARAMETERS, STEPPED, 3 + 5056 + 16,
    ),
    "Ultralytics": (
        lambda: {
            "epoch": 1, "best_fitness": np.float64(0.5), "model": STATE, "ema": copied(), "optimizer": OPTIMIZER,
            "train_metrics": {"map": torch.tensor(0.5)}, "updates": torch.tensor(100),
        },
        2 * PARAMETERS, STEPPED, 2,
    ),
    "a GAN": (
        lambda: {"G": STATE, "D": copied(), "optG": OPTIMIZER, "rng": rng()},
        2 * PARAMETERS, STEPPED, 5056,
    ),
    "Trainer, optimizer.pt": (lambda: OPTIMIZER, 0, STEPPED, 0),
    "Trainer, rng_state.pth": (
        lambda: {
            "python": random.getstate(), "numpy": np.random.RandomState(0).get_state(), "cpu": rng(), "cuda": CUDA_RNG
        },
        0, 0, 624 + 5056 + 16,
    ),
    "Accelerate, random_states_0.pkl": (
        lambda: {
            "step": 1, "numpy_random_seed": np.random.RandomState(0).get_state(), "torch_manual_seed": rng(),
            "torch_cuda_manual_seed": [CUDA_RNG],
        },
        0, 0, 624 + 5056 + 16,
    ),
    "JAX": (
        lambda: {
            "params": {"dense": {"kernel": np.ones((4, 4))}}, "batch_stats": {"bn": {"mean": np.ones(4)}},
            "opt_state": [{"count": np.array(1), "mu": {"dense": {"kernel": np.ones((4, 4))}}}],
            "step": np.array(3), "rng": np.zeros(2, np.uint32),
        },
        16, 17, 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("where", ["in memory", "in a file", "saved by leafwise"])
def test_the_parameters_of_a_training_checkpoint_are_its_weights(layout: str, where: str, tmp_path: Path) -> None:
    build, parameters, optimizer, rest = LAYOUTS[layout]
    checkpoint: Any = build()
    if where == "in a file":
        torch.save(checkpoint, tmp_path / "x.pt")
        checkpoint = tmp_path / "x.pt"
    elif where == "saved by leafwise":
        checkpoint = lw.save(checkpoint, tmp_path / "x.safetensors")
    counts = lw.tree(checkpoint).counts
    assert (counts.parameters, counts.optimizer, counts.rest) == (parameters, optimizer, rest)
    assert counts.state == optimizer + rest


def test_a_file_of_a_weight_and_a_random_state_has_the_parameters_of_the_weight(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2, 2), "rng_state": rng()}, tmp_path / "x.pt")
    with lw.open(tmp_path / "x.pt") as t:
        assert t.counts.parameters == 4
        assert t["rng_state"].section == "rest"
        assert "weights 16 B · other state 4.9 KiB" in t.text()


def test_a_state_dict_has_as_many_parameters_and_buffers_as_its_model() -> None:
    live, saved = lw.tree(model()).counts, lw.tree(STATE).counts
    assert (saved.parameters, saved.buffers) == (live.parameters, live.buffers) == (PARAMETERS, BUFFERS)


@pytest.mark.parametrize(
    "names",
    [
        ["optimizer.weight", "scheduler.weight", "rng.weight", "callbacks.weight", "state", "model.weight"],
        ["optimizer.state.weight", "optimizer.param_group.weight"],
        ["loss", "epoch", "step", "rng"],
    ],
)
def test_a_plain_state_dict_is_all_weights_whatever_its_names(names: list[str]) -> None:
    t = lw.tree({name: torch.ones(3) for name in names})
    assert {leaf.section for leaf in t} == {"weights"}
    assert t.counts.parameters == 3 * len(names)


def test_nested_weights_without_a_key_of_a_model_are_weights_whatever_their_names() -> None:
    t = lw.tree({"encoder": {"w": torch.ones(2)}, "optimizer": {"w": torch.ones(2)}, "callbacks": {"w": torch.ones(2)}})
    assert t.counts.parameters == 6


def test_the_picture_says_what_is_not_counted_as_parameters() -> None:
    text = lw.tree({"model": {"w": torch.ones(2, 2)}, "callbacks": {"w": torch.ones(8)}}).text()
    (line,) = [line for line in text.splitlines() if "callbacks" in line]
    assert line.endswith("32 B  other state")
    assert text.endswith("4 parameters · 2 leaves · 48 B\nweights 16 B · other state 32 B")


def test_modules_and_optimizers_in_memory_say_what_their_arrays_are() -> None:
    net = nn.ModuleDict({"optimizer": nn.Linear(2, 2), "callbacks": nn.Linear(2, 2)})
    optimizer = torch.optim.Adam(net.parameters())
    t = lw.tree({"model": net, "scheduler": nn.Linear(3, 3), "optimizer": optimizer})
    assert t.counts.parameters == 2 * 6 + 12
    assert t.select(lw.where(section="weights")).counts.leaves == 6


def test_the_state_of_an_object_that_is_not_an_optimizer_is_the_rest() -> None:
    net = nn.Linear(2, 2)
    t = lw.tree({"model": net, "average": lw.Average(net)})
    assert {leaf.section for leaf in t["average"]} == {"rest"}
    assert {leaf.kind for leaf in t["average"]} == {"state"}


def test_kinds_that_a_file_of_leafwise_records_are_kept(tmp_path: Path) -> None:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inv_freq = nn.Parameter(torch.ones(4))
            self.register_buffer("scale", torch.ones(2))

    t = lw.open(lw.save(Rotary(), tmp_path / "x.safetensors"))
    assert (t["inv_freq"].kind, t["scale"].kind) == ("parameter", "buffer")
    assert lw.tree({"inv_freq": torch.ones(4), "weight": torch.ones(2)})["inv_freq"].kind == "buffer"


def test_sections_can_be_selected() -> None:
    t = lw.tree({"model": STATE, "optimizer": OPTIMIZER, "rng": rng()})
    assert t.select(lw.where(section="optimizer")).counts.state == STEPPED
    assert [str(leaf.path) for leaf in t.select(lw.where(section=("rest",)))] == ["rng"]
    assert t.select(lw.where(section="weights", kind="buffer")).counts.buffers == BUFFERS


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("embeddings.position_ids", torch.arange(8)[None], "buffer"),
        ("attn.relative_position_index", torch.zeros(4, 4, dtype=torch.int64), "buffer"),
        ("attn.mask", torch.ones(4, 4, dtype=torch.bool), "buffer"),
        ("attn.bias", torch.ones(1, 1, 8, 8, dtype=torch.uint8), "buffer"),
        ("q.g_idx", torch.zeros(8, dtype=torch.int32), "buffer"),
        ("n_averaged", torch.tensor(3, dtype=torch.int32), "buffer"),
        ("rotary.inv_freq", torch.ones(8), "buffer"),
        ("te._extra_state", torch.zeros(64, dtype=torch.uint8), "buffer"),
        ("q.qweight", torch.zeros(4, 8, dtype=torch.int32), "parameter"),  # GPTQ, AWQ
        ("q.qzeros", torch.zeros(4, 1, dtype=torch.int32), "parameter"),
        ("q.weight", torch.zeros(32, 1, dtype=torch.uint8), "parameter"),  # bitsandbytes
        ("q.weight_packed", torch.zeros(4, 8, dtype=torch.int32), "parameter"),  # compressed-tensors
        ("mlp.experts.down_proj_blocks", torch.zeros(2, 4, 16, dtype=torch.uint8), "parameter"),  # MXFP4
        ("q.Qidxs", torch.zeros(4, 4, dtype=torch.int64), "parameter"),  # QuIP#
        ("a.running_mean", torch.zeros(4), "parameter"),  # without a running_var
        ("rng.table", torch.zeros(16), "parameter"),
    ],
)
def test_whole_numbers_are_buffers_unless_they_are_packed_weights(name: str, value: torch.Tensor, kind: str) -> None:
    assert lw.tree({name: value, "weight": torch.ones(2)})[name].kind == kind


def test_a_weight_that_also_has_a_name_in_another_section_is_a_weight() -> None:
    weight = torch.ones(2, 2)
    t = lw.tree({"callbacks": {"best": weight}, "model": {"w": weight}, "optimizer": OPTIMIZER})
    assert t.counts.parameters == 4
    assert t["callbacks.best"].section == "weights"


def test_an_array_whose_shape_cannot_be_read_does_not_prevent_the_others() -> None:
    class Broken(torch.Tensor):
        @property
        def shape(self) -> Any:
            raise RuntimeError("no shape")

    broken = torch.zeros(2).as_subclass(Broken)
    t = lw.tree({"model": {"w": torch.ones(2, 2), "broken": broken}, "rng": rng()})
    assert t["rng"].section == "rest"


def test_json_has_the_section_of_each_leaf_and_the_size_of_each_section() -> None:
    data = lw.tree({"model": STATE, "optimizer": OPTIMIZER, "rng": rng()}).json()
    assert {leaf["path"]: leaf["section"] for leaf in data["leaves"]}["rng"] == "rest"
    assert data["sections"]["weights"]["size"] == PARAMETERS + BUFFERS
    assert data["sections"]["rest"] == {"leaves": 1, "size": 5056, "bytes": 5056}
    assert data["counts"]["rest"] == 5056


def test_random_states_are_found_far_below_the_name_that_says_so() -> None:
    inner: dict[str, Any] = {f"x{number}": np.zeros(16, np.uint8) for number in range(10)}
    for _ in range(2_000):
        inner = {"a": inner, "b": np.zeros(16, np.uint8)}
    assert lw.tree({"rng": inner, "c": inner["b"].copy()}).counts.rest == 16 * 2_010
