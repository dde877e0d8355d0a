"""Which ties survive which operation, in plain PyTorch and with leafwise: the table in docs/share.md.

python tools/tie_table.py            prints the table
python tools/tie_table.py --write    also writes it into docs/share.md
"""

import copy
import io
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import leafwise as lw

PAGE = Path(__file__).parent.parent / "docs" / "share.md"
START, END = "<!-- the table starts -->", "<!-- the table ends -->"


# -- the architectures -------------------------------------------------------------------------------------


class LanguageModel(nn.Module):
    """A tied embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.block = nn.Linear(4, 4)
        self.head = nn.Linear(4, 10, bias=False)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.head(self.block(self.embed(tokens)))


class EncoderDecoder(nn.Module):
    """One embedding table for the encoder, the decoder and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"embed": nn.Embedding(10, 4), "layer": nn.Linear(4, 4)})
        self.decoder = nn.ModuleDict({"embed": nn.Embedding(10, 4), "layer": nn.Linear(4, 4)})
        self.head = nn.Linear(4, 10, bias=False)

    def forward(self, tokens: torch.Tensor) -> Any:
        memory = self.encoder["layer"](self.encoder["embed"](tokens))
        return self.head(memory + self.decoder["layer"](self.decoder["embed"](tokens)))


class Siamese(nn.Module):
    """Tied weight and bias."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.left(x) - self.right(x.flip(0))


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(x + self.attn(x))


class SharedLayers(nn.Module):
    """The same attention in every layer, as in ALBERT, but separate norms."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Layer() for _ in range(3)])

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class Autoencoder(nn.Module):
    """A decoder whose weight is the transposed weight of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 3)
        self.decoder = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.decoder(torch.relu(self.encoder(x)))


class FusedAttention(nn.Module):
    """Query, key and value that are rows of one fused weight."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12, bias=False)
        self.q, self.k, self.v = (nn.Linear(4, 4, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> Any:
        return torch.softmax(self.q(x) @ self.k(x).T, -1) @ self.v(x) + self.qkv(x).sum()


class TwoPaths(nn.Module):
    """One module that is reached by two paths."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleDict({"body": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))})
        self.second = nn.ModuleDict({"body": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))})

    def forward(self, x: torch.Tensor) -> Any:
        return self.second["body"](self.first["body"](x))


class Heads(nn.Module):
    """A tie inside a ModuleDict."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 4)
        self.heads = nn.ModuleDict({"en": nn.Linear(4, 4), "de": nn.Linear(4, 4)})

    def forward(self, x: torch.Tensor) -> Any:
        return self.heads["en"](self.trunk(x)) + self.heads["de"](x)


class Architecture(NamedTuple):
    """How to build it untied, how to tie it by hand and with leafwise, its inputs, and the names that must be tied."""

    build: Callable[[], nn.Module]
    by_hand: Callable[[Any], None]
    by_leafwise: Callable[[Any], Any]
    inputs: torch.Tensor
    ties: tuple[tuple[str, ...], ...]


def _same_by_hand(source: str, *targets: str) -> Callable[[Any], None]:
    def tie(model: nn.Module) -> None:
        for target in targets:
            path, _, name = target.rpartition(".")
            setattr(model.get_submodule(path), name, model.get_parameter(source))

    return tie


def _shared_layers_by_hand(model: Any) -> None:
    for layer in model.layers[1:]:
        for mine, first in zip(layer.attn, model.layers[0].attn, strict=True):
            if isinstance(mine, nn.Linear):
                mine.weight, mine.bias = first.weight, first.bias


def _autoencoder_by_hand(model: Any) -> None:
    model.decoder.weight = nn.Parameter(model.encoder.weight.data.T)


def _fused_by_hand(model: Any) -> None:
    for name, rows in zip("qkv", model.qkv.weight.data.chunk(3), strict=True):
        getattr(model, name).weight = nn.Parameter(rows)


def _two_paths_by_hand(model: Any) -> None:
    model.second["body"] = model.first["body"]


def _two_paths(model: Any) -> Any:
    _two_paths_by_hand(model)
    return lw.keep_ties(model)


def _fused(model: Any) -> Any:
    for number, name in enumerate("qkv"):
        rows = slice(4 * number, 4 * number + 4)
        lw.tie(model, f"{name}.weight", to="qkv.weight", slice=rows, keep="source")
    return model


_TOKENS, _POINTS = torch.tensor([1, 2, 3]), torch.randn(3, 4)

ARCHITECTURES = {
    "tied embedding": Architecture(
        LanguageModel,
        _same_by_hand("embed.weight", "head.weight"),
        lambda model: lw.tie(model, "head.weight", to="embed.weight", keep="source"),
        _TOKENS,
        (("embed.weight", "head.weight"),),
    ),
    "encoder–decoder, three-way": Architecture(
        EncoderDecoder,
        _same_by_hand("encoder.embed.weight", "decoder.embed.weight", "head.weight"),
        lambda model: lw.tie(model, "{decoder.embed,head}.weight", to="encoder.embed.weight", keep="source"),
        _TOKENS,
        (("encoder.embed.weight", "decoder.embed.weight", "head.weight"),),
    ),
    "weight and bias": Architecture(
        Siamese,
        lambda model: [_same_by_hand(f"left.{name}", f"right.{name}")(model) for name in ("weight", "bias")],  # type: ignore[func-returns-value, return-value]
        lambda model: lw.tie(model, "right", to="left", keep="source"),
        _POINTS,
        (("left.weight", "right.weight"), ("left.bias", "right.bias")),
    ),
    "cross-layer": Architecture(
        SharedLayers,
        _shared_layers_by_hand,
        lambda model: lw.tie(model, "layers.*.attn", to="layers.0.attn", keep="source"),
        _POINTS,
        tuple(tuple(f"layers.{i}.attn.{j}.{n}" for i in range(3)) for j in (0, 2) for n in ("weight", "bias")),
    ),
    "transposed autoencoder": Architecture(
        Autoencoder,
        _autoencoder_by_hand,
        lambda model: lw.tie(model, "decoder.weight", to="encoder.weight", transpose=True, keep="source"),
        _POINTS,
        (("encoder.weight", "decoder.weight"),),
    ),
    "fused qkv": Architecture(
        FusedAttention, _fused_by_hand, _fused, _POINTS, (("qkv.weight", "q.weight", "k.weight", "v.weight"),)
    ),
    "one module, two paths": Architecture(
        TwoPaths,
        _two_paths_by_hand,
        _two_paths,
        _POINTS,
        tuple(
            (f"first.body.{name}", f"second.body.{name}")
            for name in ("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var")
        ),
    ),
    "inside a ModuleDict": Architecture(
        Heads,
        _same_by_hand("heads.en.weight", "heads.de.weight"),
        lambda model: lw.tie(model, "heads.de.weight", to="heads.en.weight", keep="source"),
        _POINTS,
        (("heads.en.weight", "heads.de.weight"),),
    ),
}


# -- the operations ----------------------------------------------------------------------------------------


def _owner(model: nn.Module, architecture: Architecture) -> nn.Module:
    """The module that owns the last name of the first tie, and none of the other names."""
    return model.get_submodule(architecture.ties[0][-1].rpartition(".")[0])


def _fresh(model: nn.Module) -> dict[str, torch.Tensor]:
    """A state dict as it comes from a file: every name has its own memory."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _saved_and_loaded(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    loaded: nn.Module = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    return loaded


def _from_meta(model: nn.Module) -> nn.Module:
    return model.to("meta").to_empty(device="cpu")


def _loaded(model: nn.Module, architecture: Architecture, **options: Any) -> nn.Module:
    model.load_state_dict(_fresh(model), **options)
    return model


def _subset(model: nn.Module, architecture: Architecture) -> nn.Module:
    dropped = {name for names in architecture.ties for name in names[1:]}
    model.load_state_dict({name: value for name, value in _fresh(model).items() if name not in dropped})
    return model


def _part(model: nn.Module, architecture: Architecture, act: Callable[[nn.Module], Any]) -> nn.Module:
    act(_owner(model, architecture))
    return model


def _compiled(model: nn.Module, architecture: Architecture) -> nn.Module:
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    compiled(architecture.inputs).sum().backward()
    return _from_meta(compiled)


def _distributed(model: nn.Module, architecture: Architecture) -> nn.Module:
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped(architecture.inputs).sum().backward()
    wrapped.load_state_dict(_fresh(wrapped), assign=True)
    return wrapped.module  # type: ignore[no-any-return]


Operation = Callable[[Any, Architecture], Any]

OPERATIONS: dict[str, Operation] = {
    "`copy.deepcopy`": lambda model, _: copy.deepcopy(model),
    "`pickle`": lambda model, _: pickle.loads(pickle.dumps(model)),
    "`torch.save`, `torch.load`": lambda model, _: _saved_and_loaded(model),
    "`.to(torch.bfloat16)`": lambda model, _: model.to(torch.bfloat16),
    "`.half()`": lambda model, _: model.half(),
    "on meta, then `to_empty()`": lambda model, _: _from_meta(model),
    "`load_state_dict`": _loaded,
    "— `strict=False`": lambda model, a: _loaded(model, a, strict=False),
    "— `assign=True`": lambda model, a: _loaded(model, a, assign=True),
    "— with one of the names": _subset,
    "`to_empty()` of one owner": lambda model, a: _part(
        model, a, lambda owner: owner.to("meta").to_empty(device="cpu")
    ),
    "`assign=True` into one owner": lambda model, a: _part(
        model, a, lambda owner: owner.load_state_dict(_fresh(owner), assign=True)
    ),
    "`torch.compile`, then as above": _compiled,
    "DDP, then `assign=True`": _distributed,
}

KEPT, LOST, ERROR = "✓", "✗", "!"


def tied_by_memory(model: nn.Module, architecture: Architecture) -> bool:
    """Whether the names still share memory, independent of what leafwise says."""
    for names in architecture.ties:
        tensors: list[Any] = []
        for name in names:
            path, _, last = name.rpartition(".")
            tensors.append(getattr(model.get_submodule(path), last))
        pointers = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        if len(pointers) > 1 and tensors[0].numel():
            return False
    return True


def outcome(architecture: Architecture, operation: Operation, with_leafwise: bool) -> str:
    """Whether the ties of a fresh model survive an operation."""
    torch.manual_seed(0)
    model = architecture.build()
    if with_leafwise:
        model = architecture.by_leafwise(model)
    else:
        architecture.by_hand(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            after = operation(model, architecture)
        except RuntimeError:
            return ERROR
    after = getattr(after, "_orig_mod", after)
    return KEPT if tied_by_memory(after, architecture) else LOST


def table() -> str:
    """The table in Markdown: each cell has the result in plain PyTorch and the result with leafwise."""
    lines = [
        "| | " + " | ".join(ARCHITECTURES) + " |",
        "|---|" + ":-:|" * len(ARCHITECTURES),
    ]
    for name, operation in OPERATIONS.items():
        cells = [
            f"{outcome(architecture, operation, False)} {outcome(architecture, operation, True)}"
            for architecture in ARCHITECTURES.values()
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    made = table()
    print(made)
    if "--write" in sys.argv:
        before, _, rest = PAGE.read_text("utf-8").partition(START)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{START}\n{made}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
