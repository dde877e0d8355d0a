"""Where `lw.layer_decay` finds blocks: inside of stages, across stages, and not inside of blocks."""

from typing import Any

import pytest
import torch
from torch import nn

import leafwise as lw


def below_top(model: nn.Module, *rules: lw.Rule) -> dict[str, int]:
    groups = lw.groups(model, rules or [lw.layer_decay(0.5)], lr=1.0)
    return {name: -int(torch.tensor(group["lr"]).log2()) for group in groups for name in group["param_names"]}


def note(model: nn.Module) -> str:
    return lw.groups(model, [lw.layer_decay(0.5)], lr=1.0).rules[0].note


def built(kind: str, **options: Any) -> nn.Module:
    from transformers import AutoConfig, AutoModel

    with torch.device("meta"):
        model: nn.Module = AutoModel.from_config(AutoConfig.for_model(kind, **options))
    return model


# The blocks of each stage, and how many levels there are: the stem, the blocks, and the rest.
HIERARCHICAL = {
    "convnext": ({"depths": [1, 2, 3], "hidden_sizes": [8, 16, 32], "num_stages": 3}, "encoder.stages.*.layers.*", 8),
    "swin": ({"depths": [2, 1, 2], "num_heads": [1, 2, 4], "embed_dim": 8}, "encoder.layers.*.blocks.*", 7),
    "segformer": ({}, "stages.*.blocks.*", 9),
    "pvt": ({"depths": [2, 1, 2, 1]}, "encoder.block.*.*", 8),
    "resnet": ({"depths": [2, 1, 2], "hidden_sizes": [8, 16, 32]}, "encoder.stages.*.layers.*", 6),
    "regnet": ({"depths": [1, 2, 2], "hidden_sizes": [8, 16, 32], "groups_width": 8}, "encoder.stages.*.layers.*", 6),
    "focalnet": ({"depths": [1, 2], "hidden_sizes": [8, 16], "embed_dim": 8, "focal_levels": [1, 1],
                  "focal_windows": [3, 3]}, "encoder.stages.*.layers.*", 5),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", HIERARCHICAL)
def test_blocks_are_counted_across_stages(kind: str) -> None:
    options, blocks, levels = HIERARCHICAL[kind]
    assert note(built(kind, **options)) == f"{levels} levels by {blocks}"


@pytest.mark.slow
def test_downsampling_layers_go_with_their_stage() -> None:
    found = below_top(built("convnext", depths=[1, 2, 3], hidden_sizes=[8, 16, 32], num_stages=3))
    stages = [
        [found[f"encoder.stages.{n}.layers.{m}.dwconv.weight"] for m in range(depth)]
        for n, depth in enumerate((1, 2, 3))
    ]
    assert stages == [[6], [5, 4], [3, 2, 1]]
    assert found["embeddings.patch_embeddings.weight"] == 7
    assert [found[f"encoder.stages.{n}.downsampling_layer.1.weight"] for n in (1, 2)] == [5, 3]
    assert found["layernorm.weight"] == 0
    # In Swin, it comes last in a stage.
    swin = below_top(built("swin", depths=[2, 1, 2], num_heads=[1, 2, 4], embed_dim=8))
    assert [swin[f"encoder.layers.{n}.downsample.reduction.weight"] for n in (0, 1)] == [4, 3]


class Pyramid(nn.Module):
    """Lists beside the stages, with an item for each stage."""

    def __init__(self) -> None:
        super().__init__()
        widths = (4, 8, 16)
        self.embeds = nn.ModuleList(nn.Linear(width // 2, width) for width in widths)
        self.stages = nn.ModuleList(
            nn.ModuleList(nn.TransformerEncoderLayer(width, 2, width, batch_first=True) for _ in range(2))
            for width in widths
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths)
        self.head = nn.Linear(16, 2)


def test_lists_beside_the_stages_go_with_their_stages() -> None:
    found = below_top(Pyramid())
    assert [found[f"stages.{n}.{m}.linear1.weight"] for n in range(3) for m in range(2)] == [6, 5, 4, 3, 2, 1]
    assert [found[f"embeds.{n}.weight"] for n in range(3)] == [7, 4, 2]  # the first is the stem
    assert [found[f"norms.{n}.weight"] for n in range(3)] == [5, 3, 1]
    assert found["head.weight"] == 0


SMALL = {
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50,
    "num_key_value_heads": 1, "head_dim": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bert", SMALL),
        ("mixtral", {**SMALL, "num_local_experts": 4}),
        ("mobilebert", {"num_hidden_layers": 3, "hidden_size": 16, "vocab_size": 50}),
        ("jamba", {**SMALL, "num_hidden_layers": 3, "attn_layer_period": 3, "attn_layer_offset": 1}),
    ],
)
def test_a_block_with_lists_inside_is_still_a_block(kind: str, options: dict[str, Any]) -> None:
    """Experts, stacked feed-forward layers, or layers of two types."""
    assert note(built(kind, **options)).startswith("5 levels by ")


class Mixture(nn.Module):
    """Experts make up most of each block, except for the first block, which has none."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for number in range(4):
            experts = [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(4 if number else 1)]
            self.layers.append(nn.ModuleDict({"mix": nn.Linear(8, 8), "experts": nn.ModuleList(experts)}))


def test_experts_are_not_blocks() -> None:
    assert note(Mixture()) == "4 levels by layers.*"


def test_the_layers_of_a_block_are_not_blocks() -> None:
    class Residual(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(width, width, 3), nn.Conv2d(width, width, 3)

    stages = nn.Module()
    for number, width in enumerate((4, 8, 16), 1):
        stages.add_module(f"layer{number}", nn.Sequential(Residual(width), Residual(width)))
    assert note(stages) == "6 levels by layer*.*"


def test_a_large_head_is_not_mistaken_for_the_blocks() -> None:
    blocks = nn.Sequential(*[nn.TransformerEncoderLayer(8, 2, 8, batch_first=True) for _ in range(3)])
    model = nn.ModuleDict({"blocks": blocks, "head": nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))})
    assert note(model) == "4 levels by blocks.*"
    assert below_top(model)["head.0.weight"] == 0


def test_two_stacks_of_single_layers_need_a_choice() -> None:
    """As in VGG: many small convolutions, and a few large linear layers."""
    features = nn.Sequential(*[nn.Conv2d(4, 4, 3) for _ in range(5)])
    vgg = nn.ModuleDict({"features": features, "classifier": nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])})
    with pytest.raises(lw.RuleError, match=r"several stacks of blocks: features, classifier"):
        below_top(vgg)
    assert below_top(vgg, lw.layer_decay(0.5, blocks="{features,classifier}.*"))["features.0.weight"] == 8
