"""Every leaf of every layer has the role and the axes that it should have."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import leafwise as lw

OUT_IN = ("out", "in")

# Every layer of torch.nn that owns leaves, and what is right about them.
LAYERS: dict[str, tuple[Callable[[], nn.Module], dict[str, tuple[str, tuple[str, ...] | None]]]] = {
    "Linear": (lambda: nn.Linear(2, 3), {"weight": ("linear.weight", OUT_IN), "bias": ("bias", ("out",))}),
    "LazyLinear": (lambda: nn.LazyLinear(3), {"weight": ("linear.weight", OUT_IN), "bias": ("bias", ("out",))}),
    "Bilinear": (
        lambda: nn.Bilinear(2, 3, 4),
        {"weight": ("bilinear.weight", ("out", "in1", "in2")), "bias": ("bias", ("out",))},
    ),
    "Embedding": (lambda: nn.Embedding(3, 4), {"weight": ("embedding.table", ("vocab", "features"))}),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(3, 4), {"weight": ("embedding.table", ("vocab", "features"))}),
    "LayerNorm": (
        lambda: nn.LayerNorm(4),
        {"weight": ("norm.scale", ("features",)), "bias": ("norm.bias", ("features",))},
    ),
    "GroupNorm": (
        lambda: nn.GroupNorm(2, 4),
        {"weight": ("norm.scale", ("features",)), "bias": ("norm.bias", ("features",))},
    ),
    "RMSNorm": (lambda: nn.RMSNorm(4), {"weight": ("norm.scale", ("features",))}),
    "PReLU": (lambda: nn.PReLU(3), {"weight": ("activation.slope", ("features",))}),
    "MultiheadAttention": (
        lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True),
        {
            "in_proj_weight": ("attention.qkv", OUT_IN),
            "in_proj_bias": ("attention.bias", ("out",)),
            "bias_k": ("attention.bias", ("one", "batch", "out")),
            "bias_v": ("attention.bias", ("one", "batch", "out")),
            "out_proj.weight": ("linear.weight", OUT_IN),
            "out_proj.bias": ("bias", ("out",)),
        },
    ),
}
for space, axes in ((1, ("w",)), (2, ("h", "w")), (3, ("d", "h", "w"))):
    LAYERS[f"Conv{space}d"] = (
        lambda space=space: getattr(nn, f"Conv{space}d")(2, 3, 3),
        {"weight": ("conv.weight", (*OUT_IN, *axes)), "bias": ("bias", ("out",))},
    )
    LAYERS[f"ConvTranspose{space}d"] = (
        lambda space=space: getattr(nn, f"ConvTranspose{space}d")(2, 3, 3),
        {"weight": ("conv_transpose.weight", ("in", "out", *axes)), "bias": ("bias", ("out",))},
    )
    LAYERS[f"LazyConv{space}d"] = (
        lambda space=space: getattr(nn, f"LazyConv{space}d")(3, 3),
        {"weight": ("conv.weight", None), "bias": ("bias", ("out",))},
    )
    LAYERS[f"LazyConvTranspose{space}d"] = (
        lambda space=space: getattr(nn, f"LazyConvTranspose{space}d")(3, 3),
        {"weight": ("conv_transpose.weight", None), "bias": ("bias", ("out",))},
    )
    for norm in ("BatchNorm", "InstanceNorm"):
        for lazy in ("", "Lazy"):
            known = None if lazy else ("features",)
            LAYERS[f"{lazy}{norm}{space}d"] = (
                lambda name=f"{lazy}{norm}{space}d", lazy=lazy: getattr(nn, name)(
                    **({} if lazy else {"num_features": 3}), affine=True, track_running_stats=True
                ),
                {
                    "weight": ("norm.scale", known),
                    "bias": ("norm.bias", known),
                    "running_mean": ("norm.mean", known),
                    "running_var": ("norm.variance", known),
                    "num_batches_tracked": ("norm.count", ()),
                },
            )
LAYERS["SyncBatchNorm"] = (lambda: nn.SyncBatchNorm(3), LAYERS["BatchNorm1d"][1])
for cell in ("RNN", "LSTM", "GRU"):
    ends = ("_l0", "_l0_reverse")
    roles: dict[str, tuple[str, tuple[str, ...] | None]] = {
        f"{name}{end}": (f"rnn.{name}", OUT_IN if name.startswith("weight") else ("out",))
        for end in ends
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }
    LAYERS[cell] = (lambda cell=cell: getattr(nn, cell)(2, 3, bidirectional=True), roles)
    LAYERS[f"{cell}Cell"] = (
        lambda cell=cell: getattr(nn, f"{cell}Cell")(2, 3),
        {name.removesuffix("_l0"): role for name, role in roles.items() if name.endswith("_l0")},
    )

# Hold only layers that are listed above, and are not built from numbers alone.
HOLD_OTHERS = {"AdaptiveLogSoftmaxWithLoss", "DataParallel", "TransformerDecoder", "TransformerEncoder"}
CONTAINERS = {"Container", "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"}
BASES = {"RNNBase", "RNNCellBase"}


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_of_torch_tells_its_roles_and_axes(name: str) -> None:
    build, expected = LAYERS[name]
    found = {str(path): (leaf.role, leaf.axes) for path, leaf in lw.tree(build()).items()}
    assert found == expected


def test_no_layer_of_torch_that_owns_leaves_is_forgotten() -> None:
    forgotten = []
    for name, cls in vars(nn).items():
        if not (inspect.isclass(cls) and issubclass(cls, nn.Module)) or name in LAYERS:
            continue
        if name in HOLD_OTHERS | CONTAINERS | BASES:
            continue
        layer = build_anyhow(cls)
        if layer is None or len(lw.tree(layer).select(lw.where(kind="parameter", role=None))):
            forgotten.append(name)
    assert forgotten == []


def build_anyhow(cls: type) -> Any:
    for arguments in ((), (2,), (2, 2), ((2, 2),), (2, 2, 2), (1, (2, 2)), (torch.relu,)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return cls(*arguments)
        except (TypeError, ValueError):
            continue
    return None


def test_projections_of_other_widths_have_their_own_roles() -> None:
    tree = lw.tree(nn.MultiheadAttention(4, 2, kdim=3, vdim=5))
    assert [tree[f"{name}_proj_weight"].role for name in "qkv"] == ["attention.q", "attention.k", "attention.v"]
    assert lw.tree(nn.LSTM(2, 4, proj_size=2))["weight_hr_l0"].role == "rnn.weight_hr"


def test_a_norm_over_several_axes_numbers_them() -> None:
    assert lw.tree(nn.LayerNorm((3, 4)))["weight"].axes == ("features0", "features1")


def test_subclasses_are_what_their_bases_are() -> None:
    class Mine(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.adapter = nn.Parameter(torch.zeros(2))

    tree = lw.tree(Mine())
    assert tree["weight"].role == "linear.weight"
    assert tree["weight"].owner == "Mine"
    assert tree["adapter"].role is None
    assert tree["adapter"].axes is None


def test_a_layer_that_only_shares_a_name_with_torch_has_no_role() -> None:
    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 2))

    assert lw.tree(Linear())["weight"].role is None


def test_a_class_whose_name_only_contains_layernorm_is_not_a_norm() -> None:
    class PreLayerNormHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(3))

    assert lw.tree(PreLayerNormHead())["bias"].role is None


def test_hooks_keep_the_role_of_what_they_compute() -> None:
    import warnings

    from torch.nn.utils import prune

    pruned = prune.l1_unstructured(nn.Linear(3, 4), "weight", amount=1)
    assert lw.tree(pruned)["weight_orig"].role == "linear.weight"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        normed = lw.tree(nn.utils.weight_norm(nn.Linear(3, 4)))
        spectral = lw.tree(nn.utils.spectral_norm(nn.Linear(3, 4)))
    assert (normed["weight_v"].role, normed["weight_g"].role) == ("linear.weight", None)
    assert (spectral["weight_orig"].role, spectral["weight_v"].role) == ("linear.weight", None)


@pytest.mark.slow
def test_the_layers_of_transformers_have_roles() -> None:
    from transformers.models.gpt2.modeling_gpt2 import GPT2Config, GPT2Model
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaModel
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    gpt = lw.tree(GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=11, n_positions=4)))
    assert gpt["h.0.attn.c_attn.weight"].role == "linear.weight"
    assert gpt["h.0.attn.c_attn.weight"].axes == ("in", "out")
    assert gpt["h.0.attn.c_attn.weight"].shape == (8, 24)
    assert gpt["h.0.ln_1.weight"].role == "norm.scale"
    assert gpt["wte.weight"].role == "embedding.table"
    assert len(gpt.select(lw.where(role=None, kind="parameter"))) == 0
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    llama = lw.tree(LlamaModel(LlamaConfig(vocab_size=11, **sizes)))
    assert llama["norm.weight"].role == "norm.scale"
    assert len(llama.select(lw.where(role=None, kind="parameter"))) == 0
    assert lw.tree(T5LayerNorm(4))["weight"].role == "norm.scale"


def test_a_tied_embedding_has_two_roles_one_a_name() -> None:
    embed, head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    head.weight = embed.weight
    leaf = lw.tree({"embed": embed, "head": head})["embed.weight"]
    assert [name.role for name in leaf.names] == ["embedding.table", "linear.weight"]
    assert [name.axes for name in leaf.names] == [("vocab", "features"), OUT_IN]


def test_anybody_can_add_to_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.core.roles import role_table as roles

    monkeypatch.setattr(roles, "_TABLE", list(roles._TABLE))

    class Gate(nn.Linear):
        pass

    gate = Gate(2, 2)
    assert lw.tree(gate)["weight"].role == "linear.weight"
    lw.add_roles("Ga*", {"weight": ("gate.weight", ("in", "out"))})
    assert lw.tree(gate)["weight"].role == "gate.weight"
    lw.add_roles(Gate, {"weight": ("mine", ("a", "b"))})
    assert (lw.tree(gate)["weight"].role, lw.tree(gate)["weight"].axes) == ("mine", ("a", "b"))
    lw.add_roles(f"{__name__}.Gate", {"weight": ("named", ("a", "b", "c"))})
    assert (lw.tree(gate)["weight"].role, lw.tree(gate)["weight"].axes) == ("named", None)
    with pytest.raises(TypeError, match="need a role and a tuple of axes"):
        lw.add_roles(Gate, {"weight": "norm.scale"})  # type: ignore[dict-item]
    roles._answers_by_class.clear()


def test_add_roles_refuses_what_is_not_a_layer() -> None:
    with pytest.raises(TypeError, match="layer= takes a class or the name of a class, not 5"):
        lw.add_roles(5, {"w": ("norm.scale", ("features",))})  # type: ignore[arg-type]


def test_add_roles_refuses_a_class_that_is_not_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    import leafwise.core.roles.role_table as roles

    monkeypatch.setattr(roles, "_TABLE", list(roles._TABLE))
    before = list(roles._TABLE)

    class Plain:
        pass

    message = r"cannot add roles to .*Plain: it is not a class of modules, .*; give the class of the module that owns"
    with pytest.raises(lw.RuleError, match=message):
        lw.add_roles(Plain, {"w": ("norm.scale", ("features",))})
    with pytest.raises(lw.RuleError, match=r"cannot add roles to torch\.Tensor"):
        lw.add_roles(torch.Tensor, {"w": ("norm.scale", ("features",))})
    assert before == roles._TABLE


def test_the_roles_of_a_mixin_are_those_of_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    import leafwise.core.roles.role_table as roles

    monkeypatch.setattr(roles, "_TABLE", list(roles._TABLE))

    class Gated:
        pass

    class Gate(Gated, nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(2))

    lw.add_roles(Gated, {"gain": ("norm.scale", ("features",))})
    assert lw.tree(Gate())["gain"].role == "norm.scale"
    roles._answers_by_class.clear()
