"""Pipelines of diffusers: one tree, with a node for each component."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from safetensors.torch import load_file

import leafwise as lw
from leafwise.cli import main


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Stable Diffusion, as diffusers saves it, with a variant beside each plain file."""
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(0)
    top = tmp_path_factory.mktemp("pipeline")
    vocabulary = {"<|startoftext|>": 0, "<|endoftext|>": 1, "a": 2, "b</w>": 3, "ab</w>": 4}
    (top / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    (top / "merges.txt").write_text("#version: 0.2\na b</w>\n", "utf-8")
    pipeline = StableDiffusionPipeline(
        unet=UNet2DConditionModel(
            block_out_channels=(4, 8), layers_per_block=1, sample_size=8, norm_num_groups=2, cross_attention_dim=8,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), attention_head_dim=2,
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        ),
        vae=AutoencoderKL(
            block_out_channels=(4, 8), down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=2,
        ),
        text_encoder=CLIPTextModel(
            CLIPTextConfig(
                hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=5,
                bos_token_id=0, eos_token_id=1,
            )
        ),
        tokenizer=CLIPTokenizer(str(top / "vocab.json"), str(top / "merges.txt")),
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False), requires_safety_checker=False,
        safety_checker=None, feature_extractor=None,
    )  # fmt: skip
    pipeline.save_pretrained(top / "saved")
    pipeline.to(torch.float16).save_pretrained(top / "saved", variant="fp16")
    return top / "saved"


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "pipeline"))


@pytest.mark.slow
def test_a_pipeline_is_one_tree_with_a_node_for_each_component(folder: Path) -> None:
    (folder / "v1-5-pruned.safetensors").write_bytes(b"x")  # a repository has the same weights in one file, too
    with lw.open(folder) as tree:
        components = {"text_encoder", "unet", "vae"}  # neither the scheduler nor the tokenizer
        assert {str(path).partition(".")[0] for path, _ in tree.items()} == components
        stored = load_file(folder / "unet" / "diffusion_pytorch_model.safetensors")
        assert tree["unet.conv_in.weight"].dtype == "float32"
        assert torch.equal(torch.from_numpy(tree["unet.conv_in.weight"].numpy().copy()), stored["conv_in.weight"])
        assert len(tree["unet"]) == len(stored)
        text = tree.text(width=80, depth=1)
    assert text.splitlines()[0].startswith("dict in diffusers pipeline")
    assert "unet  UNet2DConditionModel, safetensors" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.slow
def test_the_components_of_a_pipeline_are_loaded_measured_and_converted(folder: Path, tmp_path: Path) -> None:
    from diffusers import AutoencoderKL, UNet2DConditionModel

    parts: dict[str, Any] = {
        "vae": AutoencoderKL.from_config(AutoencoderKL.load_config(folder / "vae")),
        "unet": UNet2DConditionModel.from_config(UNet2DConditionModel.load_config(folder / "unet")),
    }
    lw.load(parts, folder, allow={"unexpected"})
    stored = load_file(folder / "vae" / "diffusion_pytorch_model.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in parts["vae"].state_dict().items())
    assert len(lw.stats(folder)) == len(lw.open(folder))
    assert lw.verify(folder).without_checksums == ("safetensors",)
    assert "352 leaves, all the same" in str(lw.diff(folder, folder))
    assert main(["convert", str(folder), str(tmp_path / "one.safetensors")]) == 0
    assert torch.equal(load_file(tmp_path / "one.safetensors")["vae.quant_conv.bias"], stored["quant_conv.bias"])


def test_a_component_without_its_weights_is_an_error(folder: Path) -> None:
    for file in (folder / "vae").glob("*.safetensors"):
        file.unlink()
    with pytest.raises(
        lw.FileError, match=r"component 'vae', of the class 'AutoencoderKL', has no weights in '.*/vae'"
    ):
        lw.open(folder)
    shutil.rmtree(folder / "vae")
    with pytest.raises(lw.FileError, match=r"has no weights in '.*/vae'; is the download complete\?"):
        lw.open(folder)
    shutil.copytree(folder / "unet", folder / "vae")
    (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    assert lw.open(folder)["vae.conv_in.weight"].dtype == "float16"  # only the variant is there
    shutil.copy(folder / "vae" / "diffusion_pytorch_model.fp16.safetensors", folder / "vae" / "model_1.safetensors")
    (folder / "vae" / "diffusion_pytorch_model.fp16.safetensors").rename(folder / "vae" / "model_2.safetensors")
    with pytest.raises(lw.FileError, match=r"'vae' contains several checkpoints: '.*model_1.saf.*model_2.saf"):
        lw.open(folder)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("[]", "it is not a JSON object"),
        ("{", "it is not a JSON object"),
        ("[" * 100_000, "it is not a JSON object"),
        ("{}", "lists no component with weights"),
        ('{"unet": [null, null], "x": 1, "_class_name": ["a", "b"]}', "lists no component with weights"),
        ('{"../unet": ["diffusers", "UNet"]}', r"component '../unet' of .*: only folders directly in it are opened"),
        ('{"/etc": ["diffusers", "UNet"]}', "only folders directly in it are opened"),
        ('{"": ["diffusers", "UNet"]}', "only folders directly in it are opened"),
        ('{"model_index.json": ["diffusers", "UNet"]}', "has no weights in"),
        (" " * (1 << 21), "leafwise reads at most 1,048,576"),
    ],
    ids=range(10),
)  # fmt: skip
def test_a_bad_list_of_components_is_refused(content: str, cause: str, tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(content, "utf-8")
    with pytest.raises(lw.FileError, match=cause):
        lw.open(tmp_path)


def test_a_remote_pipeline_is_opened(saved: Path) -> None:
    files = fsspec.filesystem("memory")
    try:
        files.put(str(saved), "/pipelines/tiny", recursive=True)
        assert lw.open("memory://pipelines/tiny").json() == lw.open(saved).json()
    finally:
        files.rm("/pipelines", recursive=True)


def test_the_files_of_a_pipeline_are_closed(folder: Path) -> None:
    tree = lw.open(folder)
    tree.close()
    with pytest.raises(lw.FileError, match="is closed"):
        tree["vae.quant_conv.bias"].numpy()


def two_components(folder: Path, second: Any) -> Path:
    """A pipeline of two pickles, of which the second contains something."""
    for name, state in (("first", {"w": torch.ones(3)}), ("second", second)):
        (folder / name).mkdir(parents=True)
        torch.save(state, folder / name / "pytorch_model.bin")
    index = {name: ["diffusers", "Model"] for name in ("first", "second")}
    (folder / "model_index.json").write_text(json.dumps(index), "utf-8")
    return folder


def test_every_file_of_a_pipeline_counts(tmp_path: Path) -> None:
    plain = two_components(tmp_path / "plain", {"w": torch.zeros(3)})
    other = two_components(tmp_path / "other", {"w": torch.ones(3)})
    calls = two_components(tmp_path / "calls", {"w": torch.zeros(3), "run": Calls()})
    with lw.open(plain) as a, lw.open(other) as b, lw.open(calls) as c:
        first, second, third = (t.columns.node_objects[0] for t in (a, b, c))
        assert first.identity != second.identity
        assert [Path(name).parent.name for name in first.file_names()] == ["first", "second"]
        assert (os.getcwd.__module__, "getcwd") in third.pickle_names
        [finding] = lw.check(c).of("LW701")
        assert "getcwd" in finding.message
        (plain / "second" / "pytorch_model.bin").unlink()
        assert list(first.changes().values()) == ["gone"]


class Calls:
    def __reduce__(self) -> Any:
        return os.getcwd, ()
