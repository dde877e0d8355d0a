"""Trees of files can be copied and pickled: each copy opens its own file."""

import copy
import gc
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import leafwise as lw


def saved(folder: Path, seed: int = 0) -> tuple[str, nn.Module]:
    torch.manual_seed(seed)
    model = nn.Linear(300, 300)
    return str(lw.save(model, folder / f"{seed}.safetensors")), model


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))])
def test_a_copy_reads_its_own_file_and_closes_no_other(copied: object, tmp_path: Path) -> None:
    path, model = saved(tmp_path)
    tree = lw.open(path)
    again = copied(tree)  # type: ignore[operator]
    assert (again["weight"].numpy() == model.weight.detach().numpy()).all()
    again.close()
    del again
    gc.collect()
    # A file that is opened now may get the descriptor number that became free; the first tree still uses its own.
    other, _ = saved(tmp_path, 1)
    with open(other, "rb") as stranger:
        assert (tree["weight"].numpy() == model.weight.detach().numpy()).all()
        assert os.fstat(stranger.fileno()).st_size
    third = copied(tree)  # type: ignore[operator]
    tree.close()
    assert (third["weight"].numpy() == model.weight.detach().numpy()).all()


def test_a_copy_of_a_closed_tree_is_closed(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    tree = lw.open(path)
    tree.close()
    with pytest.raises(lw.FileError, match="is closed"):
        copy.deepcopy(tree)["weight"].numpy()


def test_a_file_that_has_changed_is_not_copied(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    tree = lw.open(path)
    data = pickle.dumps(tree)
    os.replace(saved(tmp_path, 2)[0], path)
    with pytest.raises(lw.FileError, match="has changed since it was opened"):
        pickle.loads(data)


def test_a_copy_uses_the_homes_of_its_process_without_their_caches(tmp_path: Path) -> None:
    class Local(dict[str, object]):  # cannot be pickled
        pass

    lw.tree(Local(a=torch.ones(2)))
    tree = lw.open(saved(tmp_path)[0])
    for again in (copy.deepcopy(tree), pickle.loads(pickle.dumps(tree))):
        assert set(again.columns._homes.values()) == set(tree.columns._homes.values())
        assert again["weight"].shape == (300, 300)
