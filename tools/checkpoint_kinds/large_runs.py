"""Checkpoints of libraries for large runs: DeepSpeed and Megatron-LM."""

import argparse
import enum
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tools.checkpoint_kinds.kind import Written, kind, pretended, recorded, saved
from tools.checkpoint_kinds.models import GPT, adamw, trained
from tools.checkpoint_kinds.truth import Truth

_SCALER = "deepspeed.runtime.fp16.loss_scaler.LossScaler"
_STAGE = "deepspeed.runtime.zero.config.ZeroStageEnum"


def _deepspeed(folder: Path, ending: str) -> tuple[Path, Truth]:
    """Trains with ZeRO-2 in one process on the CPU, and saves."""
    one_process = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ.update(one_process, DS_ACCELERATOR="cpu")
    import deepspeed

    model = GPT()
    config = {
        "train_batch_size": 2,
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=adamw(model.parameters()), config=config)
    for _ in range(2):
        engine.backward(engine(GPT.batch()).float().pow(2).mean())
        engine.step()
    with recorded() as truths:
        engine.save_checkpoint(str(folder))
    torch.distributed.destroy_process_group()
    files = [next(folder.rglob(f"*{name}")) for name in ("model_states.pt", "optim_states.pt")]
    return next((file, truth) for file, truth in zip(files, truths, strict=True) if file.name.endswith(ending))


@kind("DeepSpeed `mp_rank_00_model_states.pt`", tool="deepspeed", extra=("deepspeed",))
def deepspeed_model(folder: Path) -> Written:
    return Written(*_deepspeed(folder, "model_states.pt"))


@kind("DeepSpeed `zero_pp_rank_0_mp_rank_00_optim_states.pt`", tool="deepspeed", extra=("deepspeed",))
def deepspeed_optimizer(folder: Path) -> Written:
    path, truth = _deepspeed(folder, "optim_states.pt")
    return Written(path, truth, "optimizer_state_dict.base_optimizer_state", (_SCALER, _STAGE))


# -- Megatron-LM -------------------------------------------------------------------------------------------------


def _random_states() -> list[dict[str, Any]]:
    return [
        {
            "random_rng_state": random.Random(0).getstate(),
            "np_rng_state": np.random.RandomState(0).get_state(),
            "torch_rng_state": torch.get_rng_state(),
            "cuda_rng_state": torch.arange(16, dtype=torch.uint8),
            "rng_tracker_states": {"model-parallel-rng": torch.arange(16, dtype=torch.uint8)},
        }
    ]


def _megatron(args: argparse.Namespace) -> dict[str, Any]:
    model = GPT().bfloat16()
    full = [parameter.detach().float() for parameter in model.parameters()]
    optimizer = trained(model, adamw)
    embedding = {"word_embeddings.weight": model.transformer["wte"].weight.detach()}
    scheduler = {"max_lr": 6e-4, "lr_warmup_steps": 2000, "num_steps": 128_000, "lr_decay_style": "cosine"}
    return {
        "args": args,
        "checkpoint_version": 3.0,
        "iteration": 500,
        "model": {"embedding": embedding, "decoder": model.transformer["h"].state_dict()},
        "optimizer": {"optimizer": optimizer.state_dict(), "fp32_from_fp16_params": [full]},
        "opt_param_scheduler": scheduler,
        "rng_state": _random_states(),
    }


@kind("Megatron-LM `model_optim_rng.pt` (args with enum)", layout="Megatron-LM core 0.16")
def megatron(folder: Path) -> Written:
    class ModelType(enum.Enum):
        encoder_or_decoder = 1

    class AttnBackend(enum.Enum):
        auto = 5

    modules = {"megatron.core.enums": [ModelType], "megatron.core.transformer.enums": [AttnBackend]}
    with pretended(modules):
        args = argparse.Namespace(
            num_layers=2,
            hidden_size=16,
            model_type=ModelType.encoder_or_decoder,
            attention_backend=AttnBackend.auto,
            params_dtype=torch.bfloat16,
            rank=0,
        )
        path = folder / "iter_0000500" / "mp_rank_00" / "model_optim_rng.pt"
        opaque = ("megatron.core.enums.ModelType", "megatron.core.transformer.enums.AttnBackend")
        return Written(path, saved(_megatron(args), path), "optimizer", opaque)


@kind("Megatron-LM older (args plain)", layout="Megatron-LM 2")
def older_megatron(folder: Path) -> Written:
    args = argparse.Namespace(num_layers=2, hidden_size=16, params_dtype=torch.float16, rank=0, lr=6e-4, fp16=True)
    path = folder / "iter_0000500" / "mp_rank_00" / "model_optim_rng.pt"
    return Written(path, saved(_megatron(args), path), "optimizer")
