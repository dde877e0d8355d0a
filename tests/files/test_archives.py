"""TorchScript archives and the archives of torch.export: their weights and constants, by the names of the module."""

import io
import json
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import leafwise as lw


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("offset", torch.arange(3.0))
        self.sizes = [1, 2, 3]
        self.table = {"a": 1}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x)).mean((2, 3))
        for layer in self.layers:
            x = layer(x)
        return x * self.scale + self.offset.sum() + torch.tensor([1.0, 2.0, 3.0, 4.0])


def scripted(path: Path, model: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(model).save(path)


def traced(path: Path, model: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(model, torch.randn(1, 3, 8, 8)).save(path)


def exported(path: Path, model: nn.Module) -> None:
    torch.export.save(torch.export.export(model, (torch.randn(1, 3, 8, 8),)), path)


def exported_before_2_8(path: Path, model: nn.Module) -> None:
    """The layout that PyTorch 2.1 to 2.7 wrote."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (("state_dict", model.state_dict()), ("constants", {"lifted": torch.ones(4)})):
            file = io.BytesIO()
            torch.save(content, file)
            archive.writestr(f"serialized_{name}.pt", file.getvalue())
        archive.writestr("serialized_exported_program.json", "{}")
        archive.writestr("version", "5.1")


WRITERS = {"script": scripted, "trace": traced, "export": exported, "export before 2.8": exported_before_2_8}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_an_archive_has_the_names_and_values_of_the_state_dict(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net().eval()
    WRITERS[name](tmp_path / "model", model)
    with lw.open(tmp_path / "model") as t:
        saved = {str(leaf.path): leaf for leaf in t if leaf.persistent}
        assert saved.keys() == model.state_dict().keys()
        for path, value in model.state_dict().items():
            assert np.array_equal(saved[path].numpy(), value.numpy()), path
        if name != "export before 2.8":
            parameters = {path for path, leaf in saved.items() if leaf.kind == "parameter"}
            assert parameters == dict(model.named_parameters()).keys()
            assert t.counts.parameters == lw.tree(model).counts.parameters
        constants = [leaf for leaf in t if not leaf.persistent]
        assert [leaf.size for leaf in constants] == ([] if name == "script" else [4])
    other = Net()
    lw.load(other, tmp_path / "model")
    assert all(torch.equal(a, b) for a, b in zip(other.state_dict().values(), model.state_dict().values(), strict=True))


@pytest.mark.parametrize("name", ["script", "trace", "export"])
def test_a_flipped_bit_in_an_archive_is_reported(name: str, tmp_path: Path) -> None:
    model = Net().eval()
    with torch.no_grad():
        model.conv.weight.fill_(1.25)
    WRITERS[name](tmp_path / "model", model)
    data = bytearray((tmp_path / "model").read_bytes())
    data[data.index(np.float32(1.25).tobytes() * 8) + 5] ^= 1
    (tmp_path / "model").write_bytes(data)
    with pytest.raises(lw.ChecksumError, match=r"conv\.weight"):
        lw.verify(tmp_path / "model")


def test_ties_in_an_exported_program_are_found(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    torch.export.save(torch.export.export(Tied(), (torch.randn(1, 4),)), tmp_path / "a.pt2")
    with lw.open(tmp_path / "a.pt2") as t:
        assert [tuple(map(str, tie.leaf.paths)) for tie in t.ties] == [("a.weight", "b.weight")]


@pytest.mark.parametrize("damage", ["no file", "a shape of words", "a long shape", "not JSON"])
def test_wrong_lists_in_an_exported_program_are_refused(damage: str, tmp_path: Path) -> None:
    exported(tmp_path / "good.pt2", Net().eval())
    with (
        zipfile.ZipFile(tmp_path / "good.pt2") as good,
        zipfile.ZipFile(tmp_path / "bad.pt2", "w") as bad,
    ):
        for name in good.namelist():
            data = good.read(name)
            if name.endswith("_weights_config.json"):
                config = json.loads(data)
                row = config["config"]["conv.weight"]
                if damage == "no file":
                    row["path_name"] = "../../weight_0"
                elif damage == "a shape of words":
                    row["tensor_meta"]["sizes"] = [{"as_expr": "s0"}]
                elif damage == "a long shape":
                    row["tensor_meta"]["sizes"][0]["as_int"] = 1 << 40
                data = b"hello" if damage == "not JSON" else json.dumps(config).encode()
            bad.writestr(name, data)
    with pytest.raises(lw.FileError, match=r"bad\.pt2"):
        lw.open(tmp_path / "bad.pt2")
