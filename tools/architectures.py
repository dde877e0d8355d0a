"""The architectures of transformers, built small from their configs, with random weights. Nothing is downloaded.

Most architectures have several model classes: a base model, and one for each kind of head. Without a seed, an
architecture is built with its first class, so that tests are the same in every run. With a seed, the class is drawn at
random, so that each sweep tries others.
"""

import copy
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

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
# Mappings from architectures to model classes with a head that may be tied, in the order in which they are tried.
HEADS = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "IMAGE_TEXT_TO_TEXT", "PRETRAINING", "SPEECH_SEQ_2_SEQ")
_HEAD_MAPPINGS = [f"MODEL_FOR_{head}_MAPPING" for head in HEADS]
_BASE_MAPPING = "MODEL_MAPPING"


def names_with_heads() -> list[str]:
    """The architectures with a head that may be tied."""
    return list(dict.fromkeys(name for mapping in _HEAD_MAPPINGS for name in _names(mapping)))


def names() -> list[str]:
    """Every architecture that has a model class."""
    return list(dict.fromkeys([*names_with_heads(), *_names(_BASE_MAPPING)]))


def models(name: str, count: int = 1, seed: int | None = None, *, with_head: bool = False) -> list[Any]:
    """Several models of one architecture and class, at a small size; empty if it cannot be built from its config.
    `with_head` asks for a class with a head that may be tied."""
    torch.manual_seed(2 if seed is None else seed)
    for config_class, model_class in _classes(name, seed, with_head):
        built = [build(config_class, model_class) for _ in range(count)]
        if all(model is not None for model in built):
            return built
        if seed is None:
            return []
    return []


def build(config_class: type, model_class: type) -> nn.Module | None:
    """The model at a small size; None if it cannot be built from the config alone."""
    for with_stages in (True, False):  # not every model can be built with narrow stages
        try:
            config = small(config_class(), with_stages)
            with torch.device("meta"):
                probe = model_class(copy.deepcopy(config))
            if sum(p.numel() for p in probe.parameters()) > MAX_PARAMETERS:
                continue
            model: nn.Module = model_class(config)
            return model.eval()
        except Exception:
            continue
    return None


def small(config: Any, with_stages: bool = False, depth: int = 0) -> Any:
    """The config with every size made small, including those in nested configs and, if wanted, those of each stage."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and depth < 3:
            small(value, with_stages, depth + 1)
        elif with_stages and name == "hidden_sizes" and isinstance(value, list | tuple):
            setattr(config, name, type(value)(16 * 2 ** min(stage, 2) for stage in range(len(value))))
        elif with_stages and name == "depths" and isinstance(value, list | tuple):
            setattr(config, name, type(value)(min(count, 2) for count in value))
        elif name in SMALL and isinstance(value, int) and not isinstance(value, bool) and value > SMALL[name]:
            setattr(config, name, SMALL[name])
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value >= SMALL["vocab_size"]:
            setattr(config, name, 1)
    computed = isinstance(getattr(type(config), "layer_types", None), property)
    if not computed and isinstance(getattr(config, "layer_types", None), list):
        config.layer_types = config.layer_types[: getattr(config, "num_hidden_layers", 2)]
    return config


def _names(mapping: str) -> list[str]:
    from transformers.models.auto import modeling_auto

    return list(getattr(modeling_auto, f"{mapping}_NAMES", {}))


def _classes(name: str, seed: int | None, with_head: bool) -> Iterator[tuple[type, type]]:
    """The config class of an architecture with each of its model classes. Only modules that are asked for are
    imported: importing all of them takes a minute."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    mappings = _HEAD_MAPPINGS if with_head else [*_HEAD_MAPPINGS, _BASE_MAPPING]
    if seed is not None:
        every = [one for one in vars(modeling_auto) if one.startswith("MODEL_") and one.endswith("_MAPPING")]
        mappings = sorted(mappings if with_head else every)
        random.Random(f"{seed} {name}").shuffle(mappings)
    tried = set()
    for mapping in mappings:
        if name not in _names(mapping):
            continue
        try:
            config = CONFIG_MAPPING[name]
            found = getattr(modeling_auto, mapping)[config]
        except Exception:
            continue  # needs a package that is not installed
        model_class = found[0] if isinstance(found, tuple) else found
        if model_class not in tried:
            tried.add(model_class)
            yield config, model_class
