"""A linear layer behind a flattened convolution: its inputs have another order where channels come last."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx
from torch import nn

import leafwise as lw
from leafwise.cli import main

X = np.random.default_rng(0).normal(size=(2, 3, 6, 5)).astype(np.float32)  # channels first


class TorchNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm1d(4 * 4 * 3)
        self.fc = nn.Linear(4 * 4 * 3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.norm(torch.relu(self.conv(x)).flatten(1)))


class NnxNet(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.conv = nnx.Conv(3, 4, (3, 3), padding="VALID", rngs=rngs)
        self.norm = nnx.BatchNorm(4 * 4 * 3, epsilon=1e-5, use_running_average=True, rngs=rngs)
        self.fc = nnx.Linear(4 * 4 * 3, 2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = jax.nn.relu(self.conv(x.transpose(0, 2, 3, 1)))
        return self.fc(self.norm(x.reshape(len(x), -1)))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = jax.nn.relu(linen.Conv(4, (3, 3), padding="VALID", name="conv")(x.transpose(0, 2, 3, 1)))
        return linen.Dense(2, name="fc")(x.reshape(len(x), -1))


def torch_net() -> TorchNet:
    torch.manual_seed(1)
    model = TorchNet()
    model(torch.from_numpy(X))  # so that the statistics of the norm differ
    with torch.no_grad():
        model.norm.weight.uniform_()
        model.norm.bias.uniform_()
    return model.eval()


OF_NORM = ("norm.scale", "norm.bias", "norm.mean", "norm.var")
ALL = {**dict.fromkeys(OF_NORM, 4), "fc.kernel": 4}


def outputs(model: Any) -> Any:
    if isinstance(model, nn.Module):
        return model.eval()(torch.from_numpy(X)).detach().numpy()
    return np.asarray(model(X))


@pytest.mark.parametrize("is_file", [False, True])
def test_the_inputs_are_reordered_in_both_directions(is_file: bool, tmp_path: Path) -> None:
    original = torch_net()
    source = lw.save(original, tmp_path / "torch.safetensors") if is_file else original
    loaded = lw.load(NnxNet(), source, flatten=ALL)
    np.testing.assert_allclose(outputs(loaded), outputs(original), atol=1e-5)
    source = lw.save(loaded, tmp_path / "nnx.safetensors") if is_file else loaded
    names = {"norm.weight": 4, "norm.bias": 4, "norm.running_mean": 4, "norm.running_var": 4, "fc.weight": 4}
    back = lw.load(TorchNet(), source, flatten=names)
    for name, value in original.state_dict().items():
        assert name.endswith("num_batches_tracked") or torch.equal(value, back.state_dict()[name]), name


def test_the_channels_are_those_of_the_convolution_in_front_of_it() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(48, 2))
    variables = LinenNet().init(jax.random.key(0), X)
    rename = {"0": "params.conv", "2": "params.fc"}
    plan = lw.plan(variables, model, rename=rename)
    (warning,) = plan.warnings
    assert "48 inputs are the flattened output of" in warning
    assert 'pass flatten="params.fc.kernel" to reorder them' in warning
    for flatten in ("params.fc.kernel", ["params.fc.kernel"], {"params.fc.kernel": None}):
        plan = lw.plan(variables, model, rename=rename, flatten=flatten)
        assert not plan.warnings
        assert "channels, positions → positions, channels" in str(plan)
    loaded = lw.load(variables, model, rename=rename, flatten="params.fc.kernel")
    expected = model(torch.from_numpy(X)).detach().numpy()
    x = jnp.asarray(X).transpose(0, 2, 3, 1)
    hidden = jax.lax.conv_general_dilated(
        x, loaded["params"]["conv"]["kernel"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    hidden = (hidden + loaded["params"]["conv"]["bias"]).reshape(2, -1)
    computed = hidden @ loaded["params"]["fc"]["kernel"] + loaded["params"]["fc"]["bias"]
    np.testing.assert_allclose(computed, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("flatten", "message"),
    [
        ("fc.weight", "names of the model"),
        ({"fc.kernel": 5}, "not a multiple of 5"),
        ({"fc.kernel": 0}, "flatten= takes"),
        ({"fc.kernel": True}, "flatten= takes"),
        (4, "flatten= takes"),
        ([("fc.kernel", 4)], "flatten= takes"),
        ("norm.scale", "sees no convolution in front"),
    ],
)
def test_what_flatten_cannot_do_is_refused(flatten: Any, message: str) -> None:
    model = NnxNet()
    before = np.asarray(model.fc.kernel[...])
    with pytest.raises(lw.Error, match=message):
        lw.load(model, torch_net(), flatten=flatten)
    np.testing.assert_array_equal(model.fc.kernel[...], before)


def test_flatten_is_refused_where_channels_come_first_on_both_sides() -> None:
    model = eqx.nn.Linear(4, 2, key=jax.random.key(0))
    with pytest.raises(lw.Error, match="same place"):
        lw.plan(model, nn.Linear(4, 2), flatten={"weight": 2})
    with pytest.raises(lw.Error, match="another framework"):
        lw.plan(nn.Linear(4, 2), nn.Linear(4, 2), flatten={"weight": 2})


def test_the_command_line_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(torch_net().state_dict(), tmp_path / "model.pt")
    lw.save(NnxNet(), tmp_path / "nnx.safetensors")
    arguments = ["plan", str(tmp_path / "model.pt"), f"{__name__}:NnxNet"]
    assert main([*arguments, "--flatten", "fc.kernel=4"]) == 0
    assert "channels, positions → positions, channels" in capsys.readouterr().out
    assert main([*arguments, "--flatten", "fc.kernel=four"]) != 0
