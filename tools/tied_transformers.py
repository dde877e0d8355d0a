"""Runs the operations that lose ties on every architecture of transformers that ties weights, built small.

    python tools/tied_transformers.py              every architecture, with a summary (minutes)
    python tools/tied_transformers.py bert t5      some of them

Nothing is downloaded: weights are random. Architectures that cannot be built small from their config are left out.
"""

import copy
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import leafwise as lw

# A small value for every size that configs have, wherever it occurs in them.
SMALL = {
    "vocab_size": 96, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embedding_size": 32, "emb_dim": 32,
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_encoder_layers": 2, "num_attention_heads": 4, "num_heads": 4, "n_head": 4,
    "n_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "d_kv": 8, "intermediate_size": 48, "d_ff": 48, "ffn_dim": 48, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "n_inner": 48, "max_position_embeddings": 64, "n_positions": 64, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "q_lora_rank": 8, "kv_lora_rank": 8,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "image_size": 32, "patch_size": 8,
    "shared_expert_intermediate_size": 16, "projection_dim": 16, "num_mel_bins": 8, "max_source_positions": 32,
    "max_target_positions": 32, "state_size": 8, "expert_ffn_dim": 16, "mlp_dim": 48, "attention_head_size": 8,
    "hidden_dim": 48, "embed_dim": 32, "ffn_hidden_size": 48,
}  # fmt: skip
MAX_PARAMETERS = 30_000_000


def small(config: Any, depth: int = 0) -> Any:
    """The config with every size made small, including those in nested configs."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and depth < 3:
            small(value, depth + 1)
        elif name in SMALL and isinstance(value, int) and not isinstance(value, bool) and value > SMALL[name]:
            setattr(config, name, SMALL[name])
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value >= SMALL["vocab_size"]:
            setattr(config, name, 1)
    if isinstance(getattr(config, "layer_types", None), list):
        config.layer_types = config.layer_types[: getattr(config, "num_hidden_layers", 2)]
    return config


def architectures() -> Iterator[tuple[str, type, type]]:
    """The name, config class and model class of every architecture with a head that may be tied."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    seen = set()
    for mapping in (
        "CAUSAL_LM",
        "SEQ_TO_SEQ_CAUSAL_LM",
        "MASKED_LM",
        "IMAGE_TEXT_TO_TEXT",
        "PRETRAINING",
        "SPEECH_SEQ_2_SEQ",
    ):
        models = getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING", None)
        names = getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES", {})
        for name in names:
            if name in seen or models is None:
                continue
            try:
                config = CONFIG_MAPPING[name]
                model = models[config]
            except Exception:
                continue  # needs a package that is not installed
            seen.add(name)
            yield name, config, model[0] if isinstance(model, tuple) else model


def build(config_class: type, model_class: type) -> nn.Module | None:
    """The model at a small size; None if it cannot be built from the config alone."""
    try:
        config = small(config_class())
        with torch.device("meta"):
            probe = model_class(copy.deepcopy(config))
        if sum(p.numel() for p in probe.parameters()) > MAX_PARAMETERS:
            return None
        model: nn.Module = model_class(config)
    except Exception:
        return None
    return model.eval()


def signature(model: Any) -> list[tuple[str, ...]]:
    """The names that are tied, without what wrappers add."""
    return sorted(tuple(sorted(str(path) for path in tie.leaf.paths)) for tie in lw.ties(model))


def fresh(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _assigned(model: nn.Module) -> nn.Module:
    model.load_state_dict(fresh(model), assign=True)
    return model


def _from_meta(model: nn.Module) -> nn.Module:
    return model.to("meta").to_empty(device="cpu")


def _subset(model: nn.Module) -> nn.Module:
    dropped = {str(path) for tie in lw.ties(model) for path in tie.leaf.paths[1:]}
    model.load_state_dict({name: value for name, value in fresh(model).items() if name not in dropped})
    return model


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "to(bfloat16)": lambda model: model.to(torch.bfloat16),
    "assign=True": _assigned,
    "meta, to_empty": _from_meta,
    "one name of each tie": _subset,
}


def outcome(model: nn.Module, operation: Callable[[Any], Any], with_leafwise: bool) -> str:
    """Whether the ties of a copy of the model survive, judged by memory, not by declared ties: kept, lost or error."""
    model = copy.deepcopy(model)
    before = signature(model)
    if with_leafwise:
        model = lw.keep_ties(model)
    try:
        after = operation(model)
    except Exception as error:
        return f"error: {type(error).__name__}: {str(error)[:200]}" if with_leafwise else "error"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.TieWarning)
        return "kept" if signature(after) == before else "lost"


def main() -> int:
    warnings.simplefilter("ignore")
    import transformers

    transformers.logging.set_verbosity_error()
    wanted = sys.argv[1:]
    built = tied = 0
    counts = {name: {"plain": 0, "leafwise": 0} for name in OPERATIONS}
    failures = []
    for name, config_class, model_class in architectures():
        if wanted and name not in wanted:
            continue
        model = build(config_class, model_class)
        if model is None:
            continue
        built += 1
        if not signature(model):
            continue
        tied += 1
        for label, operation in OPERATIONS.items():
            plain, ours = outcome(model, operation, False), outcome(model, operation, True)
            counts[label]["plain"] += plain == "kept"
            counts[label]["leafwise"] += ours == "kept"
            if ours != "kept" and not (plain == "error" and label == "pickle"):
                failures.append(f"{name}: {label}: {ours}")
        print(f"\r{built} built, {tied} tied", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(
        f"transformers {transformers.__version__}, torch {torch.__version__}: {built} built small, {tied} of them tied"
    )
    print("(parametrized modules, which PyTorch cannot pickle, count as not kept in both columns)")
    print("| tie kept | plain PyTorch | with `lw.keep_ties` |\n|---|---|---|")
    for label, count in counts.items():
        print(f"| {label} | {count['plain']} of {tied} | {count['leafwise']} of {tied} |")
    for failure in failures:
        print("FAILED", failure)
    return bool(failures)


if __name__ == "__main__":
    raise SystemExit(main())
