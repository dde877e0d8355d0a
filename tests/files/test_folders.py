"""Folders as people have them: written by the real libraries, or laid out as these document it."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import leafwise as lw
from leafwise.cli import main


def filled(value: float) -> dict[str, torch.Tensor]:
    return {"layer.weight": torch.full((3, 2), float(value)), "layer.bias": torch.full((3,), float(value))}


def value_of(path: Any) -> float:
    with lw.open(path) as tree:
        return float(tree["layer.bias"].numpy()[0])


def sharded(folder: Path, value: float, variant: str = "") -> None:
    """Two shards and their index, with the names that transformers gives them."""
    weight_map = {}
    for number, (name, array) in enumerate(filled(value).items(), 1):
        shard = f"model{variant and '.' + variant}-{number:05}-of-00002.safetensors"
        save_file({name: array}, folder / shard)
        weight_map[name] = shard
    index = f"model.safetensors.index{variant and '.' + variant}.json"
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), "utf-8")


def beside(folder: Path) -> None:
    """What a model repository contains besides the weights."""
    for name, content in {
        "README.md": b"# A model", "config.json": b"{}", "tokenizer.json": b"{}", "modeling.py": b"raise SystemExit",
        ".gitattributes": b"*.bin lfs", "picture.png": b"\x89PNG\r\n\x1a\n", "training_args.bin": b"x",
        "optimizer.pt": b"x", "scheduler.pt": b"x", "rng_state.pth": b"x", "rng_state_0.pth": b"x",
        "trainer_state.json": b"{}", "._model.safetensors": b"x",
    }.items():  # fmt: skip
        (folder / name).write_bytes(content)
    (folder / "runs").mkdir()
    (folder / "runs" / "events.out.tfevents.1").write_bytes(b"x")


def gpt(**options: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=8, **options))


# -- variants ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_plain_file_is_opened_and_a_variant_by_its_own_name(tmp_path: Path) -> None:
    model = gpt()
    model.save_pretrained(tmp_path)
    model.half().save_pretrained(tmp_path, variant="fp16")
    beside(tmp_path)
    name = "transformer.wpe.weight"
    assert lw.open(tmp_path)[name].dtype == "float32"
    assert lw.open(tmp_path / "model.fp16.safetensors")[name].dtype == "float16"
    (tmp_path / "model.safetensors").unlink()
    assert lw.open(tmp_path)[name].dtype == "float16"
    model.save_pretrained(tmp_path, variant="ema")
    with pytest.raises(lw.FileError, match=r"2 checkpoints; open one of them: .*model\.ema\.saf.*model\.fp16\.saf"):
        lw.open(tmp_path)


def test_a_variant_in_shards_has_an_index_of_its_own(tmp_path: Path) -> None:
    gpt().half().save_pretrained(tmp_path, variant="fp16", max_shard_size="2KB")
    index = tmp_path / "model.safetensors.index.fp16.json"
    assert index.exists()
    by_folder, by_index = lw.open(tmp_path), lw.open(index)
    assert by_folder["transformer.wpe.weight"].dtype == "float16"
    assert by_folder.json() == by_index.json()
    sharded(tmp_path, 7)
    assert value_of(tmp_path) == 7
    assert lw.open(index)["transformer.wpe.weight"].dtype == "float16"
    index.unlink()
    (tmp_path / "model.safetensors.index.json").unlink()
    assert value_of(tmp_path) == 7  # without an index, the two series are not mixed


def test_a_variant_of_another_format_does_not_replace_the_plain_file(tmp_path: Path) -> None:
    torch.save(filled(1), tmp_path / "pytorch_model.bin")
    save_file(filled(2), tmp_path / "model.fp16.safetensors")
    assert value_of(tmp_path) == 1
    save_file(filled(3), tmp_path / "v1.safetensors")
    save_file(filled(4), tmp_path / "v1.fp16.safetensors")
    assert value_of(tmp_path) == 1
    (tmp_path / "pytorch_model.bin").unlink()
    (tmp_path / "model.fp16.safetensors").unlink()
    assert value_of(tmp_path) == 3
    save_file(filled(5), tmp_path / "v1.ema.safetensors")  # not a precision: only the user knows
    with pytest.raises(lw.FileError, match="2 checkpoints"):
        lw.open(tmp_path)


# -- an index and a single file -------------------------------------------------------------------------------


def test_an_index_without_shards_is_stale(tmp_path: Path) -> None:
    model = gpt()
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    nn.init.constant_(model.transformer.wpe.weight, 3)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").exists()  # which transformers leaves there
    assert (lw.open(tmp_path)["transformer.wpe.weight"].numpy() == 3).all()
    assert len(lw.verify(tmp_path)) > 0


def test_an_index_beside_a_single_file_is_not_guessed_at(tmp_path: Path) -> None:
    """transformers leaves the old single file there and loads it; other programs load the shards."""
    model = gpt()
    model.save_pretrained(tmp_path)
    nn.init.constant_(model.transformer.wpe.weight, 3)
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    single, index = tmp_path / "model.safetensors", tmp_path / "model.safetensors.index.json"
    with pytest.raises(
        lw.FileError, match=r"2 checkpoints; .*one file, which transformers loads\), '.*index\.json' \(shards"
    ):
        lw.open(tmp_path)
    assert (lw.open(index)["transformer.wpe.weight"].numpy() == 3).all()
    assert not (lw.open(single)["transformer.wpe.weight"].numpy() == 3).any()
    # A shard is missing: perhaps it is the newer checkpoint that is damaged.
    next(tmp_path.glob("model-00002-of-*")).unlink()
    with pytest.raises(lw.FileError, match="2 checkpoints"):
        lw.open(tmp_path)
    with pytest.raises(lw.FileError, match=r"1 of \d shards is missing"):
        lw.open(index)
    index.write_text("{", "utf-8")
    with pytest.raises(lw.FileError, match="2 checkpoints"):
        lw.open(tmp_path)


def test_an_index_that_lists_the_single_file_is_no_second_checkpoint(tmp_path: Path) -> None:
    save_file(filled(1), tmp_path / "model.safetensors")
    index = {"weight_map": dict.fromkeys(filled(1), "model.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    assert value_of(tmp_path) == 1


def test_shards_with_any_names_belong_to_the_index_that_lists_them(tmp_path: Path) -> None:
    weight_map = {}
    for name, array in filled(6).items():
        save_file({name: array}, tmp_path / f"{name}.safetensors")
        weight_map[name] = f"{name}.safetensors"
    (tmp_path / "all.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), "utf-8")
    assert value_of(tmp_path) == 6
    save_file(filled(7), tmp_path / "last.safetensors")
    with pytest.raises(lw.FileError, match=r"2 checkpoints; .*all\.safetensors\.index\.json', '.*last\.safetensors'$"):
        lw.open(tmp_path)


def test_a_save_that_was_killed_before_it_removed_the_old_layout_is_opened(tmp_path: Path) -> None:
    lw.save(filled(1), tmp_path)
    kept = (tmp_path / "model.safetensors").read_bytes()
    lw.save(filled(2), tmp_path, shard_size="8B")
    (tmp_path / "model.safetensors").write_bytes(kept)
    assert value_of(tmp_path) == 2
    save_file(filled(3), tmp_path / "model.safetensors")  # by another program
    with pytest.raises(lw.FileError, match="2 checkpoints"):
        lw.open(tmp_path)


def test_shards_that_a_killed_save_left_behind_are_opened_only_if_there_is_nothing_else(tmp_path: Path) -> None:
    for name in ("killed", "file", "shards"):
        (tmp_path / name).mkdir()
    lw.save(filled(1), tmp_path / "killed" / "run.safetensors", shard_size="8B")
    (tmp_path / "killed" / "run.safetensors.index.json").unlink()  # it is written last
    assert value_of(tmp_path / "killed") == 1
    lw.save(filled(2), tmp_path / "file" / "run.safetensors")
    lw.save(filled(3), tmp_path / "shards" / "run.safetensors", shard_size="8B")
    for folder, value in (("file", 2), ("shards", 3)):
        shutil.copytree(tmp_path / "killed", tmp_path / folder, dirs_exist_ok=True)
        assert value_of(tmp_path / folder) == value


def test_shards_of_other_programs_beside_a_file_are_not_ignored(tmp_path: Path) -> None:
    save_file(filled(1), tmp_path / "run.safetensors")
    for number, (name, array) in enumerate(filled(2).items(), 1):
        save_file({name: array}, tmp_path / f"other-{number:05}-of-00002.safetensors")
    with pytest.raises(lw.FileError, match="2 checkpoints"):
        lw.open(tmp_path)


def test_safetensors_are_opened_rather_than_the_same_weights_as_bin(tmp_path: Path) -> None:
    save_file(filled(1), tmp_path / "run.safetensors")
    torch.save(filled(2), tmp_path / "run.bin")
    assert value_of(tmp_path) == 1


# -- several checkpoints ---------------------------------------------------------------------------------------


def test_several_checkpoints_are_each_named_with_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    for number, name in enumerate(("epoch=1-step=10.ckpt", "last.ckpt"), 1):
        torch.save(filled(number), f"run/{name}")
    assert main(["show", "run"]) == 1
    said = capsys.readouterr().err
    assert said == (
        "leafwise: cannot open 'run': it contains 2 checkpoints; open one of them: 'run/epoch=1-step=10.ckpt', "
        "'run/last.ckpt'\n"
    )
    assert value_of("run/last.ckpt") == 2
    Path("run/last.ckpt").unlink()
    Path("run/last.ckpt").symlink_to("epoch=1-step=10.ckpt")
    assert value_of("run") == 1  # a link to the only checkpoint is not another one


def test_files_are_merged_only_if_their_names_are_a_numbered_series(tmp_path: Path) -> None:
    for suffix in ("safetensors", "pt", "bin"):
        folder = tmp_path / suffix
        folder.mkdir()
        for number, (name, array) in enumerate(filled(1).items(), 1):
            torch.save({name: array}, folder / f"part-{number}.{suffix}")
        with pytest.raises(lw.FileError, match="2 checkpoints"):
            lw.open(folder)
        for number in (1, 2):
            (folder / f"part-{number}.{suffix}").rename(folder / f"part-{number}-of-2.{suffix}")
        assert value_of(folder) == 1
        torch.save(filled(2), folder / f"other.{suffix}")
        with pytest.raises(lw.FileError, match=r"part-1-of-2\.\w+' and 1 more \(shards without an index"):
            lw.open(folder)


def test_adapters_and_further_files_do_not_hide_the_model(tmp_path: Path) -> None:
    save_file(filled(1), tmp_path / "model.safetensors")
    save_file(filled(2), tmp_path / "pytorch_lora_weights.safetensors")
    torch.save(filled(3), tmp_path / "consolidated.00.pth")
    assert value_of(tmp_path) == 1
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(lw.FileError, match=r"2 checkpoints; .*'.*consolidated.00.pth', '.*lora_weights.safetensors'"):
        lw.open(tmp_path)
    (tmp_path / "consolidated.00.pth").unlink()
    assert value_of(tmp_path) == 2


def test_a_long_list_of_checkpoints_shows_the_last_ones(tmp_path: Path) -> None:
    for step in range(500, 10_500, 500):
        (tmp_path / f"checkpoint-{step}").mkdir()
        save_file(filled(step), tmp_path / f"checkpoint-{step}" / "model.safetensors")
    with pytest.raises(lw.FileError) as caught:
        lw.open(tmp_path)
    said = str(caught.value)
    assert "it contains 20 checkpoints" in said
    assert said.endswith("checkpoint-9500', '" + str(tmp_path / "checkpoint-10000") + "' (and 12 before these)")
    assert value_of(tmp_path / "checkpoint-9500") == 9500


# -- the folders of training programs --------------------------------------------------------------------------


@pytest.mark.slow
def test_the_output_folder_of_a_trainer(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": torch.arange(4), "labels": torch.arange(4)}] * 2
    options = TrainingArguments(str(tmp_path), max_steps=2, save_steps=1, report_to=[], use_cpu=True, disable_tqdm=True)
    trainer = Trainer(gpt(), options, train_dataset=rows)  # type: ignore[arg-type]
    trainer.train()
    assert (tmp_path / "checkpoint-1" / "optimizer.pt").exists()
    with pytest.raises(lw.FileError, match=r"2 checkpoints; open one of them: '.*/checkpoint-1', '.*/checkpoint-2'$"):
        lw.open(tmp_path)
    assert "transformer" in lw.open(tmp_path / "checkpoint-2").text()
    shutil.rmtree(tmp_path / "checkpoint-1")
    assert "transformer" in lw.open(tmp_path).text()
    trainer.save_model()
    assert lw.open(tmp_path).columns.node_objects[0].path == str(tmp_path / "model.safetensors")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_folders_of_lightning(tmp_path: Path) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def training_step(self, batch: Any) -> Any:
            return self.layer(batch[0]).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def run() -> None:
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2, 2)))
        lightning.Trainer(
            default_root_dir=tmp_path, max_epochs=1, accelerator="cpu", logger=True, enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(Module(), data)  # fmt: skip

    run()
    checkpoints = tmp_path / "lightning_logs" / "version_0" / "checkpoints"
    for folder in (checkpoints, checkpoints.parent, checkpoints.parent.parent, tmp_path):
        assert lw.open(folder)["state_dict.layer.weight"].shape == (1, 2), folder
    run()
    with pytest.raises(lw.FileError, match=r"2 checkpoints; open one of them: '.*/version_0', '.*/version_1'$"):
        lw.open(tmp_path)


def test_the_state_that_accelerate_saves(tmp_path: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = nn.Linear(2, 3)
    accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.save_state(str(tmp_path / "one"))
    assert {"model.safetensors", "optimizer.bin", "random_states_0.pkl"} <= set(os.listdir(tmp_path / "one"))
    assert lw.open(tmp_path / "one")["weight"].shape == (3, 2)
    accelerator.prepare(nn.Linear(4, 5))
    accelerator.save_state(str(tmp_path / "two"))
    with pytest.raises(lw.FileError, match=r"2 checkpoints; .*'.*/model\.safetensors', '.*/model_1\.safetensors'$"):
        lw.open(tmp_path / "two")


@pytest.mark.filterwarnings("ignore:torch.distributed")
def test_a_distributed_checkpoint_below_a_folder(tmp_path: Path) -> None:
    """accelerate's FSDP layout."""
    from torch.distributed import checkpoint as dcp

    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        dcp.save(filled(4), checkpoint_id=str(tmp_path / name), no_dist=True)
    (tmp_path / "random_states_0.pkl").write_bytes(b"x")
    assert value_of(tmp_path) == 4


def deepspeed_step(folder: Path, value: float, parts: int = 2) -> None:
    folder.mkdir(parents=True)
    torch.save(
        {"module": filled(value), "global_steps": 7, "ds_version": "0.17"}, folder / "mp_rank_00_model_states.pt"
    )
    for rank in range(parts):
        state = {"optimizer_state_dict": {"fp32_flat_groups": [torch.ones(4)]}}
        torch.save(state, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


def test_the_folders_of_deepspeed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deepspeed_step(tmp_path / "run" / "global_step5", 5)
    deepspeed_step(tmp_path / "run" / "global_step10", 10)
    (tmp_path / "run" / "latest").write_text("global_step10", "utf-8")
    (tmp_path / "run" / "zero_to_fp32.py").write_text("raise SystemExit", "utf-8")
    for folder, value in (("run", 10), ("run/global_step5", 5), ("", 10)):
        with lw.open(tmp_path / folder) as tree:
            assert (tree["module.layer.weight"].numpy() == value).all()
            assert "DeepSpeed; the optimizer's 2 files are not opened" in tree.text()
    (tmp_path / "run" / "latest").write_text("global_step20", "utf-8")
    with pytest.raises(lw.FileError, match=r"'latest' refers to the folder 'global_step20', which is not in it; open"):
        lw.open(tmp_path / "run")
    for hostile in ("../outside", "/", "", "\0", "."):
        (tmp_path / "run" / "latest").write_text(hostile, "utf-8")
        with pytest.raises(lw.FileError, match="which is not in it"):
            lw.open(tmp_path / "run")
    lightning = tmp_path / "epoch=0.ckpt"
    deepspeed_step(lightning / "checkpoint", 3)
    (lightning / "latest").write_text("checkpoint\n", "utf-8")
    assert (lw.open(lightning)["module.layer.weight"].numpy() == 3).all()


def test_split_weights_of_deepspeed_are_refused(tmp_path: Path) -> None:
    (tmp_path / "global_step1").mkdir()
    for rank in range(2):
        torch.save({"module": {}}, tmp_path / "global_step1" / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
    (tmp_path / "latest").write_text("global_step1", "utf-8")
    with pytest.raises(lw.FileError, match=r"its weights are split into 2 files, .*; run DeepSpeed's zero_to_fp32.py"):
        lw.open(tmp_path)


# -- the cache of Hugging Face ---------------------------------------------------------------------------------


def cached(top: Path, revision: str, value: float) -> Path:
    """A revision as huggingface_hub stores it: links to blobs."""
    snapshot = top / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (top / "blobs").mkdir(exist_ok=True)
    for name, content in (("model.safetensors", None), ("config.json", b"{}"), ("README.md", b"# x")):
        blob = top / "blobs" / f"{revision}-{name}"
        if content is None:
            save_file(filled(value), blob)
        else:
            blob.write_bytes(content)
        (snapshot / name).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


def test_a_folder_of_the_cache_opens_the_revision_of_main(tmp_path: Path) -> None:
    model = tmp_path / "hub" / "models--org--name"
    cached(model, "aaaa", 1)
    assert value_of(model) == 1
    cached(model, "bbbb", 2)
    with pytest.raises(
        lw.FileError, match=r"2 checkpoints; open one of them: '.*/snapshots/aaaa', '.*/snapshots/bbbb'"
    ):
        lw.open(model)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("aaaa", "utf-8")
    (model / ".no_exist").mkdir()
    assert value_of(model) == value_of(tmp_path / "hub") == 1
    for missing in ("cccc", "../../outside", "/", ""):
        (model / "refs" / "main").write_text(missing, "utf-8")
        with pytest.raises(
            lw.FileError, match=r"refs/main refers to the revision .*, which is not in the cache; .*aaaa"
        ):
            lw.open(model)


def test_an_incomplete_download_in_the_cache_is_an_error(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, "aaaa", 1)
    (tmp_path / "blobs" / "aaaa-model.safetensors").rename(tmp_path / "blobs" / "aaaa-model.safetensors.incomplete")
    with pytest.raises(lw.FileError, match=r"it is a link to '.*', which does not exist; is the download complete\?"):
        lw.open(tmp_path)
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(
        lw.FileError, match=r"has no weights in the cache, only 'README.md', 'config.json'; is the down"
    ):
        lw.open(tmp_path)


# -- folders with nothing, and limits ----------------------------------------------------------------------------


def test_a_folder_with_nothing_to_open_lists_what_is_there_and_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(lw.FileError, match=r"it is empty; expected a file that ends in .safetensors, .bin, .pt, .pth"):
        lw.open(tmp_path)
    for name in ("README.md", "config.json", "bad\x1b.txt"):
        (tmp_path / name).write_text("x", "utf-8")
    with pytest.raises(lw.FileError, match=r"no checkpoint, only 'README.md', 'bad\\x1b.txt', 'config.json'; expected"):
        lw.open(tmp_path)
    for number in range(20):
        (tmp_path / f"{number:02}").mkdir()
    with pytest.raises(lw.FileError, match=r"it and its subfolders contain no checkpoint, only '00/', .* and 15 more"):
        lw.open(tmp_path)
    (tmp_path / "optimizer.pt").touch()
    with pytest.raises(lw.FileError, match=r"no weights, only what is stored .*; to open that, .*/optimizer\.pt'$"):
        lw.open(tmp_path)


def test_a_folder_with_very_many_subfolders_is_not_searched(tmp_path: Path) -> None:
    for number in range(1_001):
        (tmp_path / str(number)).mkdir()
    with pytest.raises(lw.FileError, match=r"more than 1,000 subfolders, .*; give the path of the checkpoint itself"):
        lw.open(tmp_path)


def test_a_folder_with_very_many_files_is_listed_quickly(tmp_path: Path) -> None:
    for number in range(5_000):
        (tmp_path / f"{number}.pt").touch()
    started = time.process_time()
    with pytest.raises(lw.FileError, match=r"5,000 checkpoints; open one of them: .* .and 4,992 before these.$"):
        lw.open(tmp_path)
    assert time.process_time() - started < 10


def test_links_that_lead_in_circles_end(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    save_file(filled(1), tmp_path / "a" / "x.safetensors")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path / "a")
    assert value_of(tmp_path) == 1


def test_remote_folders_are_opened_in_the_same_way(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    deepspeed_step(tmp_path / "deepspeed" / "global_step10", 10)
    (tmp_path / "deepspeed" / "latest").write_text("global_step10", "utf-8")
    for step in (1, 2):
        (tmp_path / "trainer" / f"checkpoint-{step}").mkdir(parents=True)
        save_file(filled(step), tmp_path / "trainer" / f"checkpoint-{step}" / "model.safetensors")
    (tmp_path / "both").mkdir()
    save_file(filled(1), tmp_path / "both" / "model.safetensors")
    sharded(tmp_path / "both", 2)
    try:
        files.put(str(tmp_path), "/folders", recursive=True)
        assert (lw.open("memory://folders/deepspeed")["module.layer.bias"].numpy() == 10).all()
        assert value_of("memory://folders/trainer/checkpoint-2") == 2
        named = "'memory://folders/trainer/checkpoint-1', 'memory://folders/trainer/checkpoint-2'"
        with pytest.raises(lw.FileError, match=f"2 checkpoints; open one of them: {named}$"):
            lw.open("memory://folders/trainer")
        with pytest.raises(lw.FileError, match=r"'memory://folders/both/model.safetensors' .one file"):
            lw.open("memory://folders/both")
        files.pipe("/folders/deepspeed/latest", b"../trainer")
        with pytest.raises(lw.FileError, match="which is not in it"):
            lw.open("memory://folders/deepspeed")
    finally:
        files.rm("/folders", recursive=True)


def test_shards_of_an_index_are_loaded_as_others_load_them(tmp_path: Path) -> None:
    sharded(tmp_path, 5, "bf16")
    model = nn.Module()
    model.layer = nn.Linear(2, 3)
    lw.load(model, tmp_path)
    shard = load_file(tmp_path / "model.bf16-00001-of-00002.safetensors")
    assert torch.equal(model.layer.weight, shard["layer.weight"])  # type: ignore[union-attr]


def test_shards_may_have_keys_that_cannot_be_compared(tmp_path: Path) -> None:
    """A pickled dict may have any keys; numbers without an order are listed like others."""
    torch.save(
        {"a": torch.ones(2), 1j: torch.zeros(3), 2j: torch.ones(1)}, tmp_path / "pytorch_model-00001-of-00002.bin"
    )
    torch.save({"b": torch.ones(2)}, tmp_path / "pytorch_model-00002-of-00002.bin")
    with lw.open(tmp_path) as t:
        assert sorted(leaf.size for leaf in t) == [1, 2, 2, 3]


def test_only_what_an_index_lists_is_opened(tmp_path: Path) -> None:
    sharded(tmp_path, 1)
    save_file({**load_file(tmp_path / "model-00001-of-00002.safetensors"), "stale": torch.zeros(2)},
              tmp_path / "model-00001-of-00002.safetensors")  # fmt: skip
    with lw.open(tmp_path) as tree:
        assert [str(path) for path, _ in tree.items()] == ["layer.bias", "layer.weight"]
