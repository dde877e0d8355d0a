"""`lw.no_decay()` agrees with the rules of timm and of transformers' Trainer wherever those are right."""

from typing import Any

import pytest
import torch
from tools import architectures
from torch import nn

import leafwise as lw

_SMALL = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50,
    "num_key_value_heads": 1, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_PICTURE = {**_SMALL, "image_size": 16, "patch_size": 8}
_MODELS: dict[str, dict[str, Any]] = {
    "bert": _SMALL,
    "roberta": _SMALL,
    "deberta-v2": _SMALL,
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "vocab_size": 50},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2},
    "gpt_neox": _SMALL,
    "opt": {**_SMALL, "ffn_dim": 32, "word_embed_proj_dim": 16},
    "llama": _SMALL,
    "gemma": _SMALL,
    "qwen3": _SMALL,
    "mixtral": {**_SMALL, "num_local_experts": 2},
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 50},
    "vit": _PICTURE,
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "convnext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "dinov2": _PICTURE,
    "swinv2": {"image_size": 32, "patch_size": 4, "window_size": 4, "embed_dim": 8, "depths": [1, 1],
               "num_heads": [1, 2]},
    "mamba": {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 50, "state_size": 4},
}  # fmt: skip


def built(kind: str) -> nn.Module:
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    model: nn.Module = AutoModel.from_config(AutoConfig.for_model(kind, **_MODELS[kind]))
    return model


def by_leafwise(model: nn.Module) -> set[str]:
    groups = lw.groups(model, [lw.no_decay()])
    return {name for group in groups if "weight_decay" not in group for name in group["param_names"]}


def by_trainer(model: nn.Module) -> set[str]:
    from transformers import Trainer

    return set(Trainer.get_decay_parameter_names(None, model))


def by_timm(model: nn.Module) -> set[str]:
    """The leaves that timm's `param_groups_weight_decay` decays. Reimplemented, because timm needs torchvision."""
    return {name for name, one in model.named_parameters() if not (one.ndim <= 1 or name.endswith(".bias"))}


_TRAINER_RIGHT = (
    "bert", "roberta", "deberta-v2", "distilbert", "gpt2", "gpt_neox", "opt", "llama", "gemma", "qwen3", "mixtral",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", _TRAINER_RIGHT)
def test_decay_is_that_of_the_trainer_where_the_trainer_is_right(kind: str) -> None:
    model = built(kind)
    assert by_leafwise(model) == by_trainer(model)


@pytest.mark.parametrize("kind", [*_TRAINER_RIGHT, "t5", "resnet", "convnext", "mamba"])
def test_decay_is_that_of_timm_where_timm_is_right(kind: str) -> None:
    model = built(kind)
    assert by_leafwise(model) == by_timm(model)


# Where the Trainer is wrong: leaves that it wrongly decays, and leaves that it wrongly leaves out, by suffix.
_TRAINER_WRONG: dict[str, tuple[set[str], set[str]]] = {
    # `bias` as a substring: a table of relative positions is an embedding. And tied names are counted three times.
    "t5": ({"embed_tokens.weight"}, {"relative_attention_bias.weight"}),
    # Batch norms, whose names have no "norm" between dots.
    "resnet": ({"normalization.weight"}, set()),
    # Scales, a token, and a temperature.
    "convnext": ({"layer_scale_parameter"}, set()),
    "dinov2": ({"lambda1", "cls_token", "mask_token"}, set()),
    "vit": ({"cls_token"}, set()),
    "swinv2": ({"logit_scale"}, {"continuous_position_bias_mlp.0.weight", "continuous_position_bias_mlp.2.weight"}),
    # A custom norm called norm_f, and a scale of the state space.
    "mamba": ({"mixer.D", "norm_f.weight"}, set()),
}


@pytest.mark.parametrize("kind", _TRAINER_WRONG)
def test_decay_differs_from_the_trainer_only_where_the_trainer_is_wrong(kind: str) -> None:
    model = built(kind)
    ours, theirs = by_leafwise(model), by_trainer(model)
    too_many, too_few = _TRAINER_WRONG[kind]
    assert ended(theirs - ours, too_many)
    assert ended(ours - theirs, too_few)


_TIMM_WRONG = {"vit": {"cls_token"}, "dinov2": {"cls_token", "mask_token"}, "swinv2": {"logit_scale"}}


@pytest.mark.parametrize("kind", _TIMM_WRONG)
def test_decay_differs_from_timm_only_where_timm_is_wrong(kind: str) -> None:
    model = built(kind)
    assert ended(by_timm(model) - by_leafwise(model), _TIMM_WRONG[kind])
    assert by_leafwise(model) <= by_timm(model)


def ended(names: set[str], ends: set[str]) -> bool:
    """Whether every name has one of the suffixes, and every suffix occurs."""
    return all(name.endswith(tuple(ends)) for name in names) and all(
        any(name.endswith(end) for name in names) for end in ends
    )


class RMSNorm(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))


class Awkward(nn.Module):
    """Leaves that rules by name or by number of axes get wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.image_norm = nn.LayerNorm([3, 4, 4])  # a norm with three axes
        self.ln = RMSNorm(2, 4)  # a custom norm with two axes and an uninformative name
        self.temperature = nn.Parameter(torch.ones(2, 1, 1))
        self.gate = nn.Parameter(torch.ones(()))
        self.bias_mlp = nn.Linear(4, 4)  # a weight with "bias" in its path
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight


def test_roles_decide_not_names_or_axes() -> None:
    model = Awkward()
    assert by_leafwise(model) == {"embed.weight", "bias_mlp.weight"}
    assert by_trainer(model) - by_leafwise(model) == {"ln.weight", "temperature", "gate", "head.weight"}
    assert by_leafwise(model) - by_trainer(model) == {"bias_mlp.weight"}
    assert by_timm(model) - by_leafwise(model) == {"image_norm.weight", "ln.weight", "temperature"}


def test_roles_that_somebody_added_count() -> None:
    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(3, 3))

    assert by_leafwise(nn.Sequential(Gain(), nn.Linear(2, 2))) == {"0.table", "1.weight"}
    lw.add_roles(Gain, {"table": ("norm.scale", ("*features",))})
    assert by_leafwise(nn.Sequential(Gain(), nn.Linear(2, 2))) == {"1.weight"}


BIASES = {
    "gpt_oss": "gate_up_proj_bias",
    "xlnet": "r_w_bias",
    "zamba": "dt_proj_bias",
    "wav2vec2-conformer": "pos_bias_u",
    "parakeet_encoder": "bias_v",
    "swin": "relative_position_bias_table",
}


@pytest.mark.parametrize(("kind", "name"), BIASES.items())
def test_biases_with_several_axes_are_not_decayed(kind: str, name: str) -> None:
    [model] = architectures.models(kind)
    biases = {path for path, _ in model.named_parameters() if "bias" in path.rpartition(".")[2]}
    assert any(path.endswith(name) for path in biases)
    assert by_leafwise(model) & biases == set()
    leaf = next(leaf for path, leaf in lw.tree(model).items() if str(path).endswith(name))
    assert (leaf.role, leaf.axes) == ("bias", None)


def test_only_parameters_with_several_axes_are_biases_by_name() -> None:
    module = nn.Module()
    module.bias_mask = nn.Buffer(torch.ones(2, 2))
    module.scale_bias, module.unbiased = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, 2))
    module.bias_scale = nn.Parameter(torch.ones(2, 2))
    roles = {str(path): leaf.role for path, leaf in lw.tree(module).items()}
    assert roles == {"bias_mask": None, "scale_bias": None, "unbiased": None, "bias_scale": "bias"}
