"""Layouts that names and shapes do not show: they are lined up, refused by name, or warned about, never guessed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from safetensors.torch import save_file
from torch import nn

import leafwise as lw


def _same(first: Any, second: Any) -> None:
    np.testing.assert_array_equal(np.asarray(first), np.asarray(second))


def _up(transpose_kernel: bool, seed: int = 0) -> nnx.ConvTranspose:
    return nnx.ConvTranspose(4, 4, (2, 2), transpose_kernel=transpose_kernel, rngs=nnx.Rngs(seed))


@pytest.mark.parametrize("first", [True, False])
def test_both_layouts_of_a_transposed_convolution_of_nnx_are_told_apart(first: bool, tmp_path: Path) -> None:
    source, model = _up(first), _up(not first, seed=1)
    before = np.array(model.kernel[...])
    lw.save(source, tmp_path / "up.safetensors")
    for stored in (source, tmp_path / "up.safetensors"):
        with pytest.raises(lw.LoadError, match=r"kernel has the axes \(.*\) in the model but \(.*in reverse"):
            lw.load(model, stored)
        _same(model.kernel[...], before)
        _same(lw.load(_up(first, seed=1), stored).kernel[...], source.kernel[...])


def _as_dict(model: nn.Module, _: Path) -> Any:
    return model.state_dict()


def _as_pt(model: nn.Module, folder: Path) -> Any:
    torch.save(model.state_dict(), folder / "model.pt")
    return folder / "model.pt"


def _as_safetensors(model: nn.Module, folder: Path) -> Any:
    save_file(model.state_dict(), str(folder / "model.safetensors"))
    return folder / "model.safetensors"


def _as_saved_dict(model: nn.Module, folder: Path) -> Any:
    return lw.save(model.state_dict(), folder / "own.safetensors")


NAMES_ONLY = (_as_dict, _as_pt, _as_safetensors)


def _linen(*shape: int) -> dict[str, Any]:
    return {"params": {"up": {"kernel": jnp.zeros(shape), "bias": jnp.zeros(shape[-1])}}}


@pytest.mark.parametrize("stored", NAMES_ONLY)
def test_a_kernel_that_may_be_transposed_is_warned_about(
    stored: Callable[[nn.Module, Path], Any], tmp_path: Path
) -> None:
    conv = nn.ModuleDict({"up": nn.Conv2d(4, 4, 3)})
    with pytest.warns(UserWarning, match=r"up\.weight: read as convolutions; names and shapes do not show"):
        filled = lw.load(_linen(3, 3, 4, 4), stored(conv, tmp_path))
    _same(filled["params"]["up"]["kernel"], conv["up"].weight.detach().permute(2, 3, 1, 0))
    wider = nn.ModuleDict({"up": nn.Conv2d(4, 5, 3)})
    lw.load(_linen(3, 3, 4, 5), stored(wider, tmp_path))  # without a warning, which would be an error here
    with pytest.raises(lw.LoadError, match=r"params\.up\.kernel is 3×3×4×5 in the model but 3×3×5×4"):
        lw.load(_linen(3, 3, 4, 5), stored(nn.ModuleDict({"up": nn.ConvTranspose2d(4, 5, 3)}), tmp_path))
    with pytest.raises(lw.LoadError, match=r"its role is conv_transpose\.weight there and conv\.weight in the model"):
        lw.load(_linen(3, 3, 4, 4), nn.ModuleDict({"up": nn.ConvTranspose2d(4, 4, 3)}))
