"""Which checkpoints match a pattern: folders stand for what is in them, and shards for their checkpoint."""

import glob
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
import torch
from tests.files.writers import WRITERS, arrays

import leafwise as lw
from leafwise.files.sources.patterns import checkpoints, paths_of


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with checkpoints in many layouts, and with what training programs store beside them."""
    for step in (500, 1000):
        folder = tmp_path / f"a/checkpoint-{step}"
        folder.mkdir(parents=True)
        WRITERS["safetensors"](folder / "model.safetensors", arrays())
        torch.save({"lr": 1.0}, folder / "optimizer.pt")
        (folder / "config.json").write_text("{}")
    WRITERS["sharded safetensors"](tmp_path / "b", arrays())
    WRITERS["bin shards"](tmp_path / "c", arrays())
    WRITERS["DCP"](tmp_path / "d", arrays())
    (tmp_path / "e").mkdir()
    torch.save(arrays(), tmp_path / "e/one.pt")
    torch.save(arrays(), tmp_path / "e/two.pt")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    return tmp_path


ALL = ["a/checkpoint-500", "a/checkpoint-1000", "b", "c", "d", "e/one.pt", "e/two.pt"]


def matches(runs: Path, pattern: str) -> list[str]:
    return [str(Path(name).relative_to(runs)) for name in checkpoints(f"{runs}/{pattern}")]


@pytest.mark.parametrize("pattern", ["**", "*"])
def test_a_folder_stands_for_the_checkpoints_in_it(runs: Path, pattern: str) -> None:
    assert matches(runs, pattern) == ALL
    for name in checkpoints(f"{runs}/{pattern}"):
        assert len(lw.open(name)) == 4


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a/*", ["a/checkpoint-500", "a/checkpoint-1000"]),
        ("a/*/model.safetensors", ["a/checkpoint-500/model.safetensors", "a/checkpoint-1000/model.safetensors"]),
        ("a/*/optimizer.pt", ["a/checkpoint-500/optimizer.pt", "a/checkpoint-1000/optimizer.pt"]),
        ("a/*/*.pt", []),
        ("b/*.safetensors", ["b/model.safetensors.index.json"]),
        ("b/*", ["b/model.safetensors.index.json"]),
        ("c/*.bin", ["c"]),
        ("?", ALL),
        ("e/[ot]*.pt", ["e/one.pt", "e/two.pt"]),
        ("e/t*", ["e/two.pt"]),
        ("**/*.pt", ["e/one.pt", "e/two.pt"]),
    ],
)
def test_files_stand_for_their_checkpoint(runs: Path, pattern: str, expected: list[str]) -> None:
    if expected:
        assert matches(runs, pattern) == expected
    else:
        with pytest.raises(lw.FileError, match=r"no checkpoint matches .* it matches 2 other files and folders"):
            matches(runs, pattern)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**", ["run"]),
        ("*", ["run"]),
        ("run/*", ["run"]),
        ("**/*.pt", ["run"]),
        ("*/rank1*", ["run"]),
        ("*/rank1.pt", ["run/rank1.pt"]),
    ],
)
def test_the_files_of_several_processes_are_one_checkpoint(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    (tmp_path / "run").mkdir()
    for rank in range(2):
        torch.save({"w": torch.ones(3), "rank": rank}, tmp_path / f"run/rank{rank}.pt")
    assert matches(tmp_path, pattern) == expected
    assert len(lw.open(checkpoints(f"{tmp_path}/{pattern}")[0])) == 1


@pytest.mark.parametrize("pattern", ["**", "*"])
def test_a_distributed_checkpoint_that_is_not_complete_is_an_error_among_the_results(runs: Path, pattern: str) -> None:
    (runs / "d/.metadata").unlink()
    assert matches(runs, pattern) == ALL
    with ThreadPoolExecutor(1) as executor:
        fleet = lw.stats(f"{runs}/{pattern}", executor=executor)
    assert [Path(name).name for name in fleet.errors] == ["d"]
    assert "a distributed checkpoint in it is not complete" in str(fleet.errors[f"{runs}/d"])
    assert len(fleet) == len(ALL) - 1


def test_a_checkpoint_with_others_below_it_is_one_of_them(runs: Path) -> None:
    shutil.copy(runs / "e/one.pt", runs / "a/last.pt")
    assert matches(runs, "a/**") == ["a", "a/checkpoint-500", "a/checkpoint-1000"]


def test_a_less_common_format_counts_if_the_pattern_names_it(runs: Path) -> None:
    torch.save(arrays(), runs / "a/checkpoint-500/pytorch_model.bin")
    assert matches(runs, "a/checkpoint-500/*") == ["a/checkpoint-500/model.safetensors"]
    assert matches(runs, "a/checkpoint-500/*.bin") == ["a/checkpoint-500/pytorch_model.bin"]


def test_a_folder_that_cannot_be_listed_does_not_hide_the_others(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runs / "b/latest").mkdir()
    (runs / "f/refs").mkdir(parents=True)
    (runs / "f/snapshots").mkdir()
    (runs / "f/refs/main").write_text("gone")  # a cache of which the revision is missing
    names = matches(runs, "*")
    assert names == [*ALL, "f"]
    with pytest.raises(lw.FileError, match="refers to the revision 'gone'"):
        lw.open(runs / "f")


def test_links_are_not_followed_in_circles(runs: Path) -> None:
    (runs / "a/circle").symlink_to(runs)
    (runs / "b/up").symlink_to("..")
    (runs / "empty/again").symlink_to(runs / "e")
    (runs / "empty/self").symlink_to(".")
    assert matches(runs, "**") == ALL
    assert matches(runs, "**/*.pt") == ["e/one.pt", "e/two.pt"]
    assert matches(runs, "empty/again/*") == ["empty/again/one.pt", "empty/again/two.pt"]


def test_a_link_that_leads_elsewhere_is_followed(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    torch.save(arrays(), elsewhere / "three.pt")
    (runs / "link").symlink_to(elsewhere)
    assert matches(runs, "**") == [*ALL, "link"]


@pytest.mark.parametrize(
    "pattern", ["**", "**/", "a/**", "./**", "**/*.json", "*/**", "**/checkpoint-*/**/*", "**/**", "b//**", "e[1]/**"]
)
def test_without_links_the_same_files_match_as_for_python(
    runs: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (runs / "a/.hidden").mkdir()
    (runs / "e[1]").mkdir()
    monkeypatch.chdir(runs)
    expected = {os.path.normpath(path) for path in glob.iglob(pattern, recursive=True) if path}
    assert {os.path.normpath(path) for path in paths_of(pattern)} == expected


def test_nothing_that_matches_is_an_error(runs: Path) -> None:
    with pytest.raises(lw.FileError, match=r"no checkpoint matches '.*/\*\.gguf'$"):
        matches(runs, "*.gguf")
    with pytest.raises(lw.FileError, match="web servers do not list their files"):
        checkpoints("https://host/runs/*")


@pytest.mark.parametrize("pattern", ["**", "*"])
def test_remote_folders_are_searched_in_the_same_way(runs: Path, pattern: str) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(runs) + "/", "/patterns/", recursive=True)
    try:
        names = checkpoints(f"memory://patterns/{pattern}")
        assert [name.removeprefix("memory://patterns/") for name in names] == ALL
        assert all(len(lw.open(name)) == 4 for name in names)
    finally:
        memory.rm("/patterns", recursive=True)
