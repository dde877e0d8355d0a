"""Models and optimizers under DeepSpeed ZeRO, on several ranks, with the truth as DeepSpeed itself gathers it.

`make test` runs these in an environment of their own, which has DeepSpeed: other libraries behave differently where it
is installed.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed import ranks
from tests.distributed.ranks import run_ranks
from torch import distributed, nn

import leafwise as lw

pytest.importorskip("deepspeed")
os.environ["DS_ACCELERATOR"] = "cpu"
ranks.import_first("deepspeed", "deepspeed.runtime.zero.stage3", "deepspeed.runtime.zero.muon.muon_optimizer")


class Net(nn.Module):
    """With a tie, a frozen parameter, a buffer, and a bias with fewer elements than ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 6)
        self.up = nn.Linear(6, 10)
        self.norm = nn.LayerNorm(10)
        self.down = nn.Linear(10, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.norm.bias.requires_grad_(False)
        self.gain = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.arange(1.0, 12.0) / 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.down(torch.relu(self.norm(self.up(self.embed(tokens)))))
        return self.head(x) * self.scale.to(x.dtype) * self.gain.sum()  # type: ignore[no-any-return,operator]


def decayed_and_not(model: nn.Module) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [
        {"params": [parameter for parameter in parameters if getattr(parameter, "ds_shape", parameter.shape)[1:]]},
        {
            "params": [
                parameter for parameter in parameters if not getattr(parameter, "ds_shape", parameter.shape)[1:]
            ],
            "weight_decay": 0.0,
        },
    ]


def engine_of(model: nn.Module, stage: int, dtype: str = "float32", **options: Any) -> Any:
    """An engine that steps AdamW. Parameters of up to 10 elements are persistent, and there are several flat tensors."""
    import deepspeed

    rank, count = distributed.get_rank(), distributed.get_world_size()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
    deepspeed.utils.logger.setLevel("ERROR")
    zero = {"stage": stage, "stage3_param_persistence_threshold": 10, "sub_group_size": 30, **options}
    config = {
        "train_micro_batch_size_per_gpu": 8 // count,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,
    }
    if dtype != "float32":
        config[{"bfloat16": "bf16", "float16": "fp16"}[dtype]] = {"enabled": True}
    optimizer = torch.optim.AdamW(decayed_and_not(model), lr=0.01)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def train(engine: Any, steps: range) -> list[float]:
    """The losses of some steps, over the whole batch."""
    losses = []
    count, rank = distributed.get_world_size(), distributed.get_rank()
    for step in steps:
        tokens = torch.randint(0, 11, (8, 5), generator=torch.Generator().manual_seed(step))
        own = tokens.chunk(count)[rank]
        loss = nn.functional.cross_entropy(engine(own).float().flatten(0, 1), own.flatten())
        engine.backward(loss)
        engine.step()
        total = loss.detach() / count
        distributed.all_reduce(total)
        losses.append(float(total))
    return losses


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    """The values of a model as DeepSpeed gathers them."""
    import deepspeed

    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return {name: value.detach().clone() for name, value in model.state_dict().items()}


def whole_state(engine: Any) -> dict[str, torch.Tensor]:
    """The copies in full precision and the optimizer state, as DeepSpeed gathers them."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    states = {}
    if hasattr(engine.optimizer, "_hp_optimizer_states_linked"):
        # DeepSpeed looks for the state of all groups when it has stepped the first, and later not again.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    for name, parameter in engine.module.named_parameters():
        if parameter.requires_grad:
            states[f"{name}.master_param"] = safe_get_full_fp32_param(parameter).clone()
            for key in ("exp_avg", "exp_avg_sq"):
                states[f"{name}.{key}"] = safe_get_full_optimizer_state(parameter, key).clone()
    return states


KINDS = [(3, "float32"), (3, "bfloat16"), (2, "bfloat16"), (1, "float32")]


def trained_and_saved(folder: str) -> dict[str, list[float]]:
    """Trains, saves in the middle, and continues. The truth is saved by torch."""
    losses = {}
    for stage, dtype in KINDS:
        t = __import__("time").time()
        engine = engine_of(Net(), stage, dtype)
        print("engine", __import__("time").time() - t, flush=True)
        name = f"{stage} {dtype}"
        losses[name] = train(engine, range(2))
        lw.save({"model": engine, "optimizer": engine.optimizer}, f"{folder}/{name}", format="dcp")
        truth = whole(engine.module), whole_state(engine)
        if distributed.get_rank() == 0:
            torch.save(truth, f"{folder}/{name}.pt")
        losses[name] += train(engine, range(2, 5))
    return losses


def resumed(folder: str) -> dict[str, list[float]]:
    losses = {}
    for stage, dtype in KINDS:
        name = f"{stage} {dtype}"
        model = Net()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3)
        engine = engine_of(model, stage, dtype)
        train(engine, range(7, 8))
        lw.load({"model": engine, "optimizer": engine.optimizer}, f"{folder}/{name}")
        values, states = torch.load(f"{folder}/{name}.pt")
        now = whole(engine.module)
        for key, value in values.items():
            assert torch.equal(now[key], value), (name, key)
        now = whole_state(engine)
        for key, value in states.items():
            assert torch.equal(now[key], value), (name, key)
        losses[name] = train(engine, range(2, 5))
    return losses


def test_a_run_continues_on_another_number_of_ranks(tmp_path: Path) -> None:
    (losses, *others) = run_ranks(4, trained_and_saved, str(tmp_path))
    for count in (2, 1):
        continued = run_ranks(count, resumed, str(tmp_path))[0]
        for name, values in continued.items():
            print(name, losses[name], values)
            tolerance = 0.02 if "bfloat16" in name else 1e-5
            assert values == pytest.approx(losses[name][2:], rel=tolerance)
