"""Checkpoints that torch.save did not write: bare pickles, joblib, TorchScript, torch.export; and saved arguments."""

import io
import pickle
from pathlib import Path
from struct import pack
from typing import Any, ClassVar

import numpy as np
import torch
from tools.checkpoint_kinds.kind import Written, kind, pretended, recorded
from tools.checkpoint_kinds.models import ResNet, adamw, trained
from tools.checkpoint_kinds.truth import Truth
from torch import nn


def _arrays(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


@kind("detectron2 `.pkl` (model zoo)", layout="detectron2")
def detectron2_zoo(folder: Path) -> Written:
    content = {"model": _arrays(ResNet()), "__author__": "Detectron2 Model Zoo", "matching_heuristics": True}
    path = folder / "model_final_f10217.pkl"
    path.write_bytes(pickle.dumps(content))
    return Written(path, Truth.of(content))


class _Python2Pickler(pickle._Pickler):
    """Writes what Python 2 wrote with protocol 2: text and bytes are both strings of bytes."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)

    def save_text(self, text: Any) -> None:
        data = text.encode("ascii") if isinstance(text, str) else text
        short = len(data) < 256
        self.write((pickle.SHORT_BINSTRING + pack("<B", len(data)) if short else b"T" + pack("<i", len(data))) + data)
        self.memoize(text)

    dispatch[str] = dispatch[bytes] = save_text

    def save_global(self, obj: Any, name: str | None = None) -> None:
        module = obj.__module__.replace("numpy._core", "numpy.core")
        self.write(pickle.GLOBAL + f"{module}\n{name or obj.__name__}\n".encode())
        self.memoize(obj)

    dispatch[type] = dispatch[type(save_text)] = save_global


@kind("detectron(1) `.pkl`, protocol 2", layout="Detectron")
def detectron1(folder: Path) -> Written:
    arrays = {name.replace(".", "_"): value for name, value in _arrays(ResNet()).items()}
    momentum = {f"{name}_momentum": np.ones_like(value) for name, value in arrays.items()}
    content = {"blobs": {**arrays, **momentum}, "cfg": "MODEL:\n  TYPE: generalized_rcnn\n" * 12}
    stream = io.BytesIO()
    _Python2Pickler(stream, 2).dump(content)
    path = folder / "model_final.pkl"
    path.write_bytes(stream.getvalue())
    return Written(path, Truth.of(content))


@kind("joblib", tool="joblib")
def with_joblib(folder: Path) -> Written:
    import joblib

    class StandardScaler:
        def __init__(self) -> None:
            self.mean_, self.scale_ = np.arange(3.0), np.ones(3, np.float32)
            self.n_features_in_, self.copy = 3, True

    content = {
        "weights": _arrays(ResNet()),
        "scaler": StandardScaler(),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "classes": ["cat", "dog"],
    }
    path = folder / "model.joblib"
    with pretended({"sklearn.preprocessing._data": [StandardScaler]}):
        joblib.dump(content, path)
    return Written(path, Truth.of(content))


@kind("plain `pickle.dump` of tensors", tool="torch")
def plain_pickle(folder: Path) -> Written:
    model = ResNet()
    optimizer = trained(model, adamw)
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    path = folder / "model.pkl"
    path.write_bytes(pickle.dumps(content))
    return Written(path, Truth.of(content, keeps_ties=False), "optimizer")


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 4, 4, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(16))
        self.ln_pre = nn.LayerNorm(16)
        self.proj = nn.Parameter(torch.randn(16, 8))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.conv1(image).flatten(2).transpose(1, 2) + self.class_embedding
        return self.ln_pre(x).mean(1) @ self.proj


class CLIP(nn.Module):
    """An image encoder and a text encoder, with the names of OpenAI's CLIP."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = VisionTransformer()
        self.token_embedding = nn.Embedding(50, 8)
        self.ln_final = nn.LayerNorm(8)
        self.logit_scale = nn.Parameter(torch.ones([]))
        self.register_buffer("input_resolution", torch.tensor(8))
        self.context_length = 77

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        words = self.ln_final(self.token_embedding(text)).mean(1)
        return self.logit_scale.exp() * self.visual(image) @ words.t()


def _clip_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 3, 8, 8), torch.randint(0, 50, (2, 5))


@kind("TorchScript archive (OpenAI CLIP `.pt`)", tool="torch")
def torchscript(folder: Path) -> Written:
    image, text = _clip_inputs()
    path = folder / "ViT-B-32.pt"
    with pretended({"clip.model": [CLIP, VisionTransformer]}):
        script = torch.jit.trace(CLIP().half().eval(), (image.half(), text))
        torch.jit.save(script, path)
    return Written(path, Truth.of(dict(script.state_dict())))


@kind("torch.export `.pt2`", tool="torch")
def exported(folder: Path) -> Written:
    program = torch.export.export(CLIP().eval(), _clip_inputs())
    path = folder / "model.pt2"
    torch.export.save(program, path)
    return Written(path, Truth.of({**program.state_dict, **program.constants}))


@kind("Hugging Face `training_args.bin`", tool="transformers")
def training_args(folder: Path) -> Written:
    from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    args = TrainingArguments(output_dir=str(folder), report_to=[], use_cpu=True, lr_scheduler_type="cosine")
    trainer = Trainer(model=BertForMaskedLM(config), args=args)
    with recorded() as truths:
        trainer.save_model(str(folder / "model"))
    path = folder / "model" / "training_args.bin"
    return Written(path, truths[-1], opaque=("transformers.training_args.TrainingArguments",))
