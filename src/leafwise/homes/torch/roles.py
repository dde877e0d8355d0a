"""Roles and axes of the layers of PyTorch, for the table in `core.roles.role_table`."""

from leafwise.core.roles.role_table import Roles

_BIAS = ("bias", ("out",))
_LINEAR: Roles = {"weight": ("linear.weight", ("out", "in")), "bias": _BIAS}
_NORM: Roles = {
    "weight": ("norm.scale", ("*features",)),
    "scale": ("norm.scale", ("*features",)),
    "gamma": ("norm.scale", ("*features",)),
    "bias": ("norm.bias", ("*features",)),
    "beta": ("norm.bias", ("*features",)),
    "running_mean": ("norm.mean", ("*features",)),
    "running_var": ("norm.variance", ("*features",)),
    "num_batches_tracked": ("norm.count", ()),
}
# Norms that multiply by 1 + weight, so that a weight of 0 changes nothing.
_NORM_FROM_ONE: Roles = {**_NORM, "weight": ("norm.scale_minus_one", ("*features",))}
_FROM_ONE = """
    *Gemma*RMSNorm
    MiniMaxM3VLRMSNorm MuseGlimmerTextCenteredRMSNorm MuseSparkTextCenteredRMSNorm MuseSparkTextInputScaledRMSNorm
    NemotronLayerNorm1P Qwen3NextRMSNorm Qwen3_5RMSNorm Qwen3_5MoeRMSNorm Qwen4ExpTextRMSNorm Step3p7RMSNorm
    VideoPrismLayerNorm Krea2RMSNorm
"""
_RNN: Roles = {
    "weight_ih*": ("rnn.weight_ih", ("out", "in")),
    "weight_hh*": ("rnn.weight_hh", ("out", "in")),
    "weight_hr*": ("rnn.weight_hr", ("out", "in")),
    "bias_ih*": ("rnn.bias_ih", ("out",)),
    "bias_hh*": ("rnn.bias_hh", ("out",)),
}

ROWS: list[tuple[str, Roles]] = [
    ("torch.nn.Linear", _LINEAR),
    ("torch.nn.Bilinear", {"weight": ("bilinear.weight", ("out", "in1", "in2")), "bias": _BIAS}),
    ("torch.nn._ConvTransposeNd", {"weight": ("conv_transpose.weight", ("in", "out", "*space")), "bias": _BIAS}),
    ("torch.nn._ConvNd", {"weight": ("conv.weight", ("out", "in", "*space")), "bias": _BIAS}),
    ("torch.nn.Embedding", {"weight": ("embedding.table", ("vocab", "features"))}),
    ("torch.nn.EmbeddingBag", {"weight": ("embedding.table", ("vocab", "features"))}),
    ("torch.nn._NormBase", _NORM),
    ("torch.nn.LayerNorm", _NORM),
    ("torch.nn.GroupNorm", _NORM),
    ("torch.nn.RMSNorm", _NORM),
    ("torch.nn.RNNBase", _RNN),
    ("torch.nn.RNNCellBase", _RNN),
    (
        "torch.nn.MultiheadAttention",
        {
            "in_proj_weight": ("attention.qkv", ("out", "in")),
            "q_proj_weight": ("attention.q", ("out", "in")),
            "k_proj_weight": ("attention.k", ("out", "in")),
            "v_proj_weight": ("attention.v", ("out", "in")),
            "in_proj_bias": ("attention.bias", ("out",)),
            "bias_k": ("attention.bias", ("one", "batch", "out")),
            "bias_v": ("attention.bias", ("one", "batch", "out")),
        },
    ),
    ("torch.nn.PReLU", {"weight": ("activation.slope", ("features",))}),
    ("transformers.Conv1D", {"weight": ("linear.weight", ("in", "out")), "bias": _BIAS}),
    *((f"*{name}*RMSNorm", _NORM) for name in ("Gemma3n", "Gemma4", "DiffusionGemma", "EmbeddingGemma")),
    *((name, _NORM_FROM_ONE) for name in _FROM_ONE.split()),
    ("*RMSNorm", _NORM),
    ("*RMSNormGated", _NORM),
    ("*LayerNorm", _NORM),
    ("*LayerNorm?d", _NORM),
]
