"""Weights that are carried between frameworks give equal outputs, and come back as they were."""

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
from safetensors.flax import save_file as save_flax
from safetensors.torch import save_model
from tests.jax.with_torch.models import MODELS, NnxGPT, NnxMLP, TorchGPT, TorchLSTM, TorchMLP
from torch import nn

import leafwise as lw

_PAIRS = [
    (model, framework)
    for model, (_, frameworks) in MODELS.items()
    for framework in frameworks
    if framework != "PyTorch"
]


def _as_model(model: nn.Module, _: Path) -> Any:
    return model


def _as_state_dict(model: nn.Module, _: Path) -> Any:
    return model.state_dict()


def _with_torch(model: nn.Module, folder: Path) -> Any:
    torch.save(model.state_dict(), folder / "model.pt")
    return folder / "model.pt"


def _with_safetensors(model: nn.Module, folder: Path) -> Any:
    save_model(model, str(folder / "model.safetensors"))
    return folder / "model.safetensors"


def _with_leafwise(model: nn.Module, folder: Path) -> Any:
    lw.save(model, folder / "own.safetensors")
    return folder / "own.safetensors"


SOURCES = (_as_model, _as_state_dict, _with_torch, _with_safetensors, _with_leafwise)


def close(first: Any, second: Any) -> None:
    np.testing.assert_allclose(first, second, rtol=2e-5, atol=2e-5)


@pytest.mark.filterwarnings("ignore:.* read as convolutions:UserWarning")
@pytest.mark.parametrize("stored", SOURCES, ids=lambda stored: stored.__name__.strip("_"))
@pytest.mark.parametrize(("name", "framework"), _PAIRS)
def test_pytorch_to_another_framework_and_back(
    name: str, framework: str, stored: Callable[[nn.Module, Path], Any], tmp_path: Path
) -> None:
    x, frameworks = MODELS[name]
    torch.manual_seed(4)
    original = frameworks["PyTorch"].make()
    expected = frameworks["PyTorch"].run(original, x)
    other = lw.load(frameworks[framework].make(), stored(original, tmp_path))
    close(frameworks[framework].run(other, x), expected)
    lw.save(other, tmp_path / "other.safetensors")
    for source in (other, tmp_path / "other.safetensors"):
        back = frameworks["PyTorch"].make()
        lw.load(back, source)
        close(frameworks["PyTorch"].run(back, x), expected)
        for path, value in back.state_dict().items():
            if name == "LSTM" and "bias" in path and "lstm" in path:
                continue  # the two biases become one sum
            if path.endswith("num_batches_tracked"):
                continue
            assert torch.equal(value, original.state_dict()[path]), path


@pytest.mark.parametrize("name", MODELS)
def test_from_flax_to_equinox_and_back(name: str) -> None:
    x, frameworks = MODELS[name]
    flax, equinox = frameworks["Flax NNX"], frameworks["Equinox"]
    source = lw.load(flax.make(), frameworks["PyTorch"].make())
    there = lw.load(equinox.make(), source)
    close(equinox.run(there, x), flax.run(source, x))
    back = lw.load(flax.make(), there)
    close(flax.run(back, x), flax.run(source, x))


@pytest.mark.parametrize("name", ["MLP", "CNN"])
def test_a_file_of_flax_that_has_no_roles(name: str, tmp_path: Path) -> None:
    x, frameworks = MODELS[name]
    variables = lw.load(frameworks["Flax Linen"].make(), frameworks["PyTorch"].make())
    flat = {str(path): leaf.value for path, leaf in lw.tree(variables).items()}
    save_flax(flat, str(tmp_path / "flax.safetensors"))
    model = frameworks["PyTorch"].make()
    lw.load(model, tmp_path / "flax.safetensors")
    close(frameworks["PyTorch"].run(model, x), frameworks["Flax Linen"].run(variables, x))


def test_the_two_biases_of_a_cell_are_added_and_come_back_as_one() -> None:
    _, frameworks = MODELS["LSTM"]
    original = TorchLSTM()
    flax = lw.load(frameworks["Flax NNX"].make(), original)
    total = original.lstm.bias_ih_l0 + original.lstm.bias_hh_l0
    np.testing.assert_array_equal(flax.lstm.cell.dense_h.bias[...], total.detach().numpy())
    plan = lw.plan(TorchLSTM(), flax)
    how = {feed.name: feed.how for feed in plan.feeds}
    assert how["lstm.bias_hh_l0"] == ("zeros",)
    assert any("has one, the second becomes zero: lstm.bias_hh_l0" in note for note in plan.notes)
    back = TorchLSTM()
    lw.load(back, flax)
    assert torch.equal(back.lstm.bias_ih_l0, total)
    assert not back.lstm.bias_hh_l0.any()


def test_a_tied_embedding_needs_no_second_leaf_in_the_model_without_a_head() -> None:
    plan = lw.plan(NnxGPT(nnx.Rngs(0)), TorchGPT())
    assert plan.holds
    assert plan.unexpected == []


def test_a_head_of_its_own_must_equal_the_tied_embedding() -> None:
    class Net(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.embed = nnx.Embed(4, 3, rngs=rngs)
            self.head = nnx.Linear(3, 4, use_bias=False, rngs=rngs)

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(4, 3)
            self.head = nn.Linear(3, 4, bias=False)
            self.head.weight = self.embed.weight

    tied, net = Tied(), Net()
    lw.load(net, tied)
    np.testing.assert_array_equal(net.head.kernel[...].T, net.embed.embedding[...])
    lw.load(Tied(), net)
    net.head.kernel[...] = net.head.kernel[...] + 1
    with pytest.raises(lw.LoadError, match=r"head\.weight"):
        lw.load(tied, net)


def test_the_plan_says_what_becomes_of_each_leaf() -> None:
    text = str(lw.plan(NnxMLP(nnx.Rngs(0)), TorchMLP()))
    assert "net.0.weight → net.layers.0.kernel" in text
    assert "transposed (out, in → in, out)" in text
    assert "2 leaves keep their values: counts of batches and random streams are not carried between frameworks" in text
    back = str(lw.plan(TorchMLP(), NnxMLP(nnx.Rngs(0))))
    assert "2 leaves of the source not used" in back


def test_rename_comes_first() -> None:
    source = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    model = NnxMLP(nnx.Rngs(0))
    lw.load(model.net, source)
    np.testing.assert_array_equal(model.net.layers[0].kernel[...].T, source[0].weight.detach().numpy())
    head = nn.ModuleDict({"old": nn.Linear(4, 3)})
    lw.load(model, head, rename={"old": "head"}, allow={"missing"})
    np.testing.assert_array_equal(model.head.kernel[...].T, head["old"].weight.detach().numpy())


class SquareNet(nnx.Module):
    """One layer, whose kernel looks the same transposed."""

    def __init__(self) -> None:
        self.dense = nnx.Linear(4, 4, use_bias=False, rngs=nnx.Rngs(0))


def test_a_new_name_does_not_change_the_layout_of_a_file(tmp_path: Path) -> None:
    source, net = nn.ModuleDict({"fc": nn.Linear(4, 4, bias=False)}), SquareNet()
    for stored in SOURCES:
        lw.load(net, stored(source, tmp_path), rename={"fc.weight": "dense.kernel"})
        np.testing.assert_array_equal(net.dense.kernel[...].T, source["fc"].weight.detach().numpy())
        net = SquareNet()


@pytest.mark.parametrize("stored", SOURCES, ids=lambda stored: stored.__name__.strip("_"))
def test_no_rename_is_found_by_shapes(stored: Callable[[nn.Module, Path], Any], tmp_path: Path) -> None:
    source = nn.ModuleDict({"fc": nn.Linear(4, 4, bias=False)})
    with pytest.raises(lw.LoadError, match=r"dense\.kernel \(4×4 float32\) is in the model but not in"):
        lw.load(SquareNet(), stored(source, tmp_path), rename="auto")


def test_a_state_of_nnx_has_names_like_a_variable_dict() -> None:
    model, source = SquareNet(), nn.ModuleDict({"dense": nn.Linear(4, 4, bias=False)})
    back = nn.ModuleDict({"dense": nn.Linear(4, 4, bias=False)})
    lw.load(back, nnx.state(model))
    np.testing.assert_array_equal(model.dense.kernel[...].T, back["dense"].weight.detach().numpy())
    state = lw.load(nnx.state(model), source)
    nnx.update(model, state)
    np.testing.assert_array_equal(model.dense.kernel[...].T, source["dense"].weight.detach().numpy())


def test_attention_with_other_sizes_of_keys_and_values() -> None:
    torch.manual_seed(0)
    source = nn.MultiheadAttention(8, 2, kdim=5, vdim=6, batch_first=True)
    biases = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}
    model = eqx.nn.MultiheadAttention(
        2, 8, key_size=5, value_size=6, vo_size=4, output_size=8, **biases, key=jax.random.key(0)
    )
    model = lw.load(model, source)
    random = np.random.default_rng(0)
    query, key, value = (random.standard_normal((4, size)).astype(np.float32) for size in (8, 5, 6))
    with torch.no_grad():
        expected = source(*(torch.from_numpy(array)[None] for array in (query, key, value)))[0][0].numpy()
    close(model(query, key, value), expected)
    back = nn.MultiheadAttention(8, 2, kdim=5, vdim=6, batch_first=True)
    lw.load(back, model)
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in back.state_dict().items())


def test_both_sides_with_only_names_say_how_kernels_are_read(tmp_path: Path) -> None:
    _, frameworks = MODELS["CNN"]
    file = _with_safetensors(frameworks["PyTorch"].make(), tmp_path)
    plan = lw.plan(frameworks["Flax Linen"].make(), file)
    assert plan.holds
    assert "read as convolutions, not as transposed ones: conv1.weight, conv2.weight" in plan.notes
    up = {"params": {"ConvTranspose_0": {"kernel": jnp.zeros((3, 3, 4, 4)), "bias": jnp.zeros(4)}}}
    with pytest.raises(lw.LoadError, match="the order of its axes is not known"):
        lw.load(up, _with_safetensors(nn.ModuleDict({"ConvTranspose_0": nn.ConvTranspose2d(4, 4, 3)}), tmp_path))


def test_the_layers_of_one_lstm_are_cells_of_their_own() -> None:
    class Cells(eqx.Module):
        lstm: list[eqx.nn.LSTMCell]

        def __init__(self) -> None:
            first, second = jax.random.split(jax.random.key(0))
            self.lstm = [eqx.nn.LSTMCell(3, 4, key=first), eqx.nn.LSTMCell(4, 4, key=second)]

    source = nn.ModuleDict({"lstm": nn.LSTM(3, 4, num_layers=2)})
    cells = lw.load(Cells(), source)
    np.testing.assert_array_equal(cells.lstm[1].weight_hh, source["lstm"].weight_hh_l1.detach().numpy())
    np.testing.assert_array_equal(cells.lstm[0].weight_ih, source["lstm"].weight_ih_l0.detach().numpy())


def test_both_directions_of_a_recurrent_layer() -> None:
    class Both(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            cells = [nnx.RNN(nnx.OptimizedLSTMCell(3, 4, rngs=rngs), rngs=rngs) for _ in range(2)]
            self.lstm = nnx.Bidirectional(*cells, rngs=rngs)

    x = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    source, model = nn.ModuleDict({"lstm": nn.LSTM(3, 4, bidirectional=True, batch_first=True)}), Both()
    lw.load(model, source)
    with torch.no_grad():
        close(model.lstm(jnp.asarray(x)), source["lstm"](torch.from_numpy(x))[0].numpy())


def test_a_dict_of_a_model_and_its_state() -> None:
    x, frameworks = MODELS["CNN"]
    source = frameworks["PyTorch"].make()
    model, state = frameworks["Equinox"].make()
    both = lw.load({"model": model, "state": state}, source)
    found = frameworks["Equinox"].run((both["model"], both["state"]), x)
    close(found, frameworks["PyTorch"].run(source, x))


def test_a_parameter_of_pytorch_may_be_called_kernel(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = nn.Parameter(torch.randn(3, 3))

    source = Own()
    torch.save(source.state_dict(), tmp_path / "own.pt")
    model = nn.ModuleDict({"own": Own(), "fc": nn.Linear(2, 2)})
    plan = lw.plan(model, tmp_path / "own.pt", rename={"kernel": "own.kernel"})
    assert plan.library == "Flax"  # as long as nothing else is known
    lw.load(model, tmp_path / "own.pt", rename={"kernel": "own.kernel"}, allow={"missing"})
    assert torch.equal(model["own"].kernel, source.kernel)
    assert lw.plan(Own(), tmp_path / "own.pt").library == ""


# -- what is refused --------------------------------------------------------------------------------------------------


def test_another_size_names_both_sides() -> None:
    class Net(nnx.Module):
        def __init__(self) -> None:
            self.fc = nnx.Linear(4, 5, rngs=nnx.Rngs(0))

    with pytest.raises(lw.LoadError, match=r"fc\.kernel is 4×5 in the model but 4×6 in the source \(fc\.weight"):
        lw.load(Net(), nn.ModuleDict({"fc": nn.Linear(4, 6)}))


def test_a_leaf_that_is_missing_is_an_error() -> None:
    class Net(nnx.Module):
        def __init__(self) -> None:
            self.fc = nnx.Linear(4, 5, rngs=nnx.Rngs(0))

    with pytest.raises(lw.LoadError, match=r"fc\.bias \(5 float32\) is in the model but not in the source"):
        lw.load(Net(), nn.ModuleDict({"fc": nn.Linear(4, 5, bias=False)}))
    with pytest.raises(lw.LoadError, match=r"fc\.bias \(5 float32\) is in the source but not in the model"):
        lw.load(nn.ModuleDict({"fc": nn.Linear(4, 5, bias=False)}), Net())


def test_a_transposed_convolution_in_a_file_without_roles_is_ambiguous(tmp_path: Path) -> None:
    class Net(nnx.Module):
        def __init__(self) -> None:
            self.up = nnx.ConvTranspose(4, 4, (3, 3), use_bias=False, rngs=nnx.Rngs(0))

    source = nn.ModuleDict({"up": nn.ConvTranspose2d(4, 4, 3, bias=False)})
    file = _with_safetensors(source, tmp_path)
    with pytest.raises(lw.LoadError, match="frameworks store transposed convolutions in different ways"):
        lw.load(Net(), file)
    lw.load(Net(), _with_torch(source, tmp_path))  # a file of PyTorch has the layout of PyTorch


def test_layers_of_different_kinds_are_refused() -> None:
    class Net(nnx.Module):
        def __init__(self) -> None:
            self.fc = nnx.Embed(4, 4, rngs=nnx.Rngs(0))

    with pytest.raises(lw.LoadError, match=r"its role is linear\.weight there and embedding\.table in the model"):
        lw.load(Net(), nn.ModuleDict({"fc": nn.Linear(4, 4, bias=False)}))


def test_a_layer_without_roles_is_refused_unless_it_is_declared() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

    class Net(nnx.Module):
        def __init__(self) -> None:
            self.fc = nnx.Linear(4, 4, use_bias=False, rngs=nnx.Rngs(0))

    source, net = nn.ModuleDict({"fc": Own()}), Net()
    with pytest.raises(lw.LoadError, match="the order of its axes is not known; declare the role"):
        lw.load(net, source)
    lw.add_roles(Own, {"weight": ("linear.weight", ("in", "out"))})
    lw.load(net, source)
    np.testing.assert_array_equal(net.fc.kernel[...], source["fc"].weight.detach().numpy())


def test_a_bias_that_a_cell_cannot_have_is_refused() -> None:
    class Net(nnx.Module):
        def __init__(self) -> None:
            self.gru = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))

    with pytest.raises(lw.LoadError, match=r"a part of gru\.bias_hh_l0 in the source has no place in the model"):
        lw.load(Net(), nn.ModuleDict({"gru": nn.GRU(3, 4)}))
    back = nn.ModuleDict({"gru": nn.GRU(3, 4)})
    lw.load(back, Net())
    assert not back["gru"].bias_hh_l0.any()


def test_statistics_that_equinox_stores_divided_are_refused() -> None:
    both = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="batch")
    with pytest.raises(lw.LoadError, match='create the BatchNorm with mode="ema"'):
        lw.load(both, nn.BatchNorm1d(3))


def test_dtypes_are_cast_only_if_asked() -> None:
    class Net(nnx.Module):
        def __init__(self) -> None:
            self.fc = nnx.Linear(2, 2, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))

    with pytest.raises(lw.LoadError, match="pass cast=True"):
        lw.load(Net(), nn.ModuleDict({"fc": nn.Linear(2, 2)}))
    net, source = Net(), nn.ModuleDict({"fc": nn.Linear(2, 2)})
    lw.load(net, source, cast=True)
    expected = source["fc"].weight.detach().to(torch.bfloat16).float().numpy().T
    np.testing.assert_array_equal(np.asarray(net.fc.kernel[...], np.float32), expected)


def test_a_dict_of_jax_arrays_with_the_names_of_torch_is_read_as_it_is() -> None:
    arrays = {"h": {"weight": jnp.arange(9.0).reshape(3, 3), "bias": jnp.arange(3.0)}}
    model = lw.load(nn.ModuleDict({"h": nn.Linear(3, 3)}), arrays)
    np.testing.assert_array_equal(model["h"].weight.detach().numpy(), arrays["h"]["weight"])
    np.testing.assert_array_equal(model["h"].bias.detach().numpy(), arrays["h"]["bias"])
