"""Layouts that names and shapes do not show: they are lined up, refused by name, or warned about, never guessed."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from safetensors.torch import save_file
from tests.jax.with_torch.sources import as_dict, as_pt, as_safetensors
from torch import nn
from torch.nn.utils import prune

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


NAMES_ONLY = (as_dict, as_pt, as_safetensors)


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


class Cell(nnx.Module):
    """One cell, whose bias is the sum of two biases of PyTorch."""

    def __init__(self, dtype: Any) -> None:
        zeros, rngs = nnx.initializers.zeros, nnx.Rngs(0)
        cell = nnx.OptimizedLSTMCell(3, 4, param_dtype=dtype, recurrent_kernel_init=zeros, rngs=rngs)
        self.lstm = nnx.RNN(cell, rngs=rngs)

    @property
    def bias(self) -> np.ndarray[Any, Any]:
        return np.asarray(self.lstm.cell.dense_h.bias[...], np.float64)


def _biases(first: float, second: float, dtype: torch.dtype) -> nn.ModuleDict:
    model = nn.ModuleDict({"lstm": nn.LSTM(3, 4, dtype=dtype)})
    with torch.no_grad():
        model["lstm"].bias_ih_l0.fill_(first)
        model["lstm"].bias_hh_l0.fill_(second)
    return model


@pytest.mark.parametrize("cast", [False, True])
def test_the_sum_of_two_biases_must_fit(cast: bool) -> None:
    model, source = Cell(jnp.float16), _biases(40000, 40000, torch.float16)
    before = model.bias
    with pytest.raises(lw.LoadError, match=r"cannot load .* do not fit into float16.*: 80000.*nothing was changed"):
        lw.load(model, source, cast=cast)
    equinox = eqx.nn.LSTMCell(3, 4, dtype=jnp.float16, key=jax.random.key(0))
    with pytest.raises(lw.LoadError, match=r"cannot load .* do not fit into float16.*: 80000.*nothing was changed"):
        lw.load(equinox, source["lstm"], cast=cast)
    _same(model.bias, before)
    lw.load(model, source, cast="saturate")
    assert set(model.bias.tolist()) == {65504.0}


def test_the_sum_of_two_biases_is_rounded_once() -> None:
    small = 1 + 2**-7, 2**-9  # the sum needs more bits than bfloat16 has
    wide = Cell(jnp.float32)
    lw.load(wide, _biases(*small, torch.bfloat16), cast=True)
    assert set(wide.bias.tolist()) == {sum(small)}
    narrow = Cell(jnp.bfloat16)
    lw.load(narrow, _biases(*small, torch.float32), cast=True)
    assert set(narrow.bias.tolist()) == {float(torch.tensor(sum(small)).to(torch.bfloat16))}
    same = Cell(jnp.bfloat16)
    lw.load(same, _biases(*small, torch.bfloat16))
    assert set(same.bias.tolist()) == set(narrow.bias.tolist())
    infinite = Cell(jnp.float16)
    lw.load(infinite, _biases(float("inf"), 1, torch.float16))
    assert set(infinite.bias.tolist()) == {float("inf")}


class Square(nnx.Module):
    """One layer, whose kernel looks the same transposed."""

    def __init__(self) -> None:
        self.fc = nnx.Linear(4, 4, rngs=nnx.Rngs(0))


def _pruned(layer: nn.Linear) -> nn.Module:
    return prune.random_unstructured(layer, "weight", 0.5)


def _with_weight_norm(layer: nn.Linear) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch has a newer one
        return nn.utils.weight_norm(layer)


def _with_spectral_norm(layer: nn.Linear) -> nn.Module:
    return nn.utils.spectral_norm(layer)


@pytest.mark.parametrize("changed", [_pruned, _with_weight_norm, _with_spectral_norm])
def test_what_a_weight_is_computed_from_is_not_the_weight(
    changed: Callable[[nn.Linear], nn.Module], tmp_path: Path
) -> None:
    model, source = Square(), nn.ModuleDict({"fc": changed(nn.Linear(4, 4))})
    before = np.array(model.fc.kernel[...])
    lw.save(source, tmp_path / "own.safetensors")
    for stored in (source, tmp_path / "own.safetensors"):
        with pytest.raises(lw.LoadError, match=r"fc\.weight_(orig|v) is not the weight: .*prune\.remove"):
            lw.load(model, stored, allow={"unexpected"})
        _same(model.fc.kernel[...], before)
    with pytest.raises(lw.LoadError, match=r"fc\.weight_(orig|v) is not the weight: .*prune\.remove"):
        lw.load(source, model, allow={"missing"})


def test_a_weight_that_is_no_longer_pruned_is_carried() -> None:
    model, layer = Square(), nn.Linear(4, 4)
    prune.remove(_pruned(layer), "weight")
    lw.load(model, nn.ModuleDict({"fc": layer}))
    _same(model.fc.kernel[...].T, layer.weight.detach())


def test_arrays_of_jax_whose_layout_is_not_known_are_refused() -> None:
    source = {"fc": {"w": jnp.arange(16.0).reshape(4, 4), "b": jnp.zeros(4)}}
    rename = [(r"\.w$", ".weight"), (r"\.b$", ".bias")]
    model = nn.ModuleDict({"fc": nn.Linear(4, 4)})
    with pytest.raises(lw.LoadError, match=r"fc\.w.* cannot become fc\.weight: the order of its axes is not known"):
        lw.load(model, source, rename=rename)
    named = {"fc": {"weight": jnp.arange(16.0).reshape(4, 4), "bias": jnp.zeros(4)}}  # as in Equinox
    lw.load(model, named)
    _same(model["fc"].weight.detach(), named["fc"]["weight"])
    lw.load(model, {name: np.asarray(value) for name, value in model.state_dict().items()})


# -- layers whose leaves have names of their own ---------------------------------------------------------------


class OwnLayer(eqx.Module):
    w: jax.Array
    b: jax.Array


class OwnNet(eqx.Module):
    fc: OwnLayer


def own_dict(size: int) -> Any:
    return {"fc": {"w": jnp.zeros((size, 4)), "b": jnp.zeros(size)}}


def own_net(size: int) -> Any:
    return OwnNet(OwnLayer(jnp.zeros((size, 4)), jnp.zeros(size)))


TO_OWN = {"fc.weight": "fc.w", "fc.bias": "fc.b"}


@pytest.mark.parametrize("kind", ["live", "lw.save", "safetensors", "torch.save", "npz", "arrays", "state dict"])
@pytest.mark.parametrize("build", [own_dict, own_net])
@pytest.mark.parametrize("size", [4, 5])
def test_a_weight_of_pytorch_is_not_copied_to_a_leaf_with_unknown_axes(
    kind: str, build: Any, size: int, tmp_path: Path
) -> None:
    source = torch.nn.ModuleDict({"fc": torch.nn.Linear(4, size)})
    state = source.state_dict()
    arrays = {name: value.numpy() for name, value in state.items()}
    path = tmp_path / kind
    if kind == "safetensors":
        save_file(state, path)
    elif kind == "torch.save":
        torch.save(state, path)
    elif kind == "npz":
        np.savez(path := tmp_path / "a.npz", **arrays)
    elif kind == "lw.save":
        path = Path(lw.save(source, tmp_path / "a.safetensors"))
    given = {"live": source, "arrays": arrays, "state dict": state}.get(kind, path)
    with pytest.raises(lw.LoadError, match=r"fc\.weight .* cannot become fc\.w: the order of its axes is not known"):
        lw.load(build(size), given, rename=TO_OWN)


@pytest.mark.parametrize("kind", ["live", "lw.save", "npz", "arrays"])
def test_a_weight_with_unknown_axes_is_not_copied_to_pytorch_silently(kind: str, tmp_path: Path) -> None:
    source = own_dict(4)
    arrays = {"fc.w": np.ones((4, 4), np.float32), "fc.b": np.ones(4, np.float32)}
    path = tmp_path / "a.npz"
    if kind == "npz":
        np.savez(path, **arrays)
    elif kind == "lw.save":
        path = Path(lw.save(source, tmp_path / "a.safetensors"))
    given = {"live": source, "arrays": arrays}.get(kind, path)
    model = torch.nn.ModuleDict({"fc": torch.nn.Linear(4, 4)})
    back = {new: old for old, new in TO_OWN.items()}
    if kind == "live":
        with pytest.raises(lw.LoadError, match="the order of its axes is not known"):
            lw.load(model, given, rename=back)
    else:
        with pytest.warns(UserWarning, match=r"fc\.weight: the source calls it otherwise, and neither names"):
            lw.load(model, given, rename=back)
