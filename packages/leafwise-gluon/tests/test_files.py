"""Files written by both MXNets are read bit-exactly, and those written here have the bytes that MXNet writes."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import file_nets
import numpy
import pytest
import torch
from zoo_facts import values

import leafwise as lw
from leafwise.cli import main
from leafwise_gluon import MXNetError, as_mxnet

FILES = Path(__file__).parent / "files"


@pytest.fixture
def mx(request: Any) -> Iterator[Any]:
    """The module mxnet of a version, and its version and mode."""
    version, mode = request.param
    with as_mxnet(version):
        import mxnet

        if version == 1 and mode == "np":
            mxnet.npx.set_np()
        mxnet.case = (version, mode)
        yield mxnet


EACH = pytest.mark.parametrize("mx", [(1, "nd"), (1, "np"), (2, "np")], indirect=True, ids=["1-nd", "1-np", "2-np"])
V1 = pytest.mark.parametrize("mx", [(1, "nd")], indirect=True)
V2 = pytest.mark.parametrize("mx", [(2, "np")], indirect=True)


def array_of(mx: Any) -> Any:
    return mx.nd.array if mx.case[1] == "nd" else mx.np.array


def check_values(net: Any) -> None:
    parameters = net._collect_params_with_prefix()
    for path, parameter in parameters.items():
        # A shared parameter got its values under its last path.
        last = [other for other, same in parameters.items() if same is parameter][-1]
        numpy.testing.assert_array_equal(parameter.data().asnumpy(), values(last, parameter.shape), path)


@EACH
@pytest.mark.parametrize("once", ["", "-once"])
def test_parameters_that_mxnet_saved_are_loaded_bit_exactly(mx: Any, once: str) -> None:
    version, mode = mx.case
    net = file_nets.net_of(mx.gluon.nn, version)
    net.load_parameters(str(FILES / f"{version}-{mode}{once}.params"))
    check_values(net)


@V2
@pytest.mark.parametrize("name", ["1-nd", "1-np", "2-np", "1-np-once", "2-exported-0000"])
def test_version_2_reads_the_files_of_both_versions(mx: Any, name: str) -> None:
    net = file_nets.net_of(mx.gluon.nn, 2)
    net.load_parameters(str(FILES / f"{name}.params"))
    check_values(net)


@EACH
def test_recurrent_layers_are_loaded_from_the_files_of_their_version(mx: Any) -> None:
    version, mode = mx.case
    lstm = mx.gluon.rnn.LSTM(3, input_size=2)
    lstm.load_parameters(str(FILES / f"{version}-{mode}-lstm.params"))
    check_values(lstm)


@EACH
@pytest.mark.parametrize("once", [False, True])
def test_saved_parameters_have_the_bytes_of_mxnets_file(mx: Any, once: bool, tmp_path: Path) -> None:
    version, mode = mx.case
    net = file_nets.net_of(mx.gluon.nn, version)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a shared parameter is initialized already
        net.initialize()
    net(array_of(mx)(numpy.zeros((1, 2, 4, 4), "float32")))
    file_nets.filled(net, array_of(mx))
    path = tmp_path / "x.params"
    net.save_parameters(str(path), deduplicate=once)
    recorded = FILES / f"{version}-{mode}{'-once' if once else ''}.params"
    if version == 1:
        assert path.read_bytes() == recorded.read_bytes()
    else:  # zip files differ in dates and the like
        with numpy.load(path) as mine, numpy.load(recorded) as theirs:
            assert sorted(mine.files) == sorted(theirs.files)
            for name in theirs.files:
                assert mine[name].dtype == theirs[name].dtype
                numpy.testing.assert_array_equal(mine[name], theirs[name])


@V1
def test_a_parameter_dict_is_saved_and_loaded_as_mxnet_does(mx: Any, tmp_path: Path) -> None:
    net = file_nets.net_of(mx.gluon.nn, 1)
    net.load_parameters(str(FILES / "1-nd.params"))
    for name, prefix in (("1-dict", ""), ("1-dict-bare", "net_")):
        path = tmp_path / f"{name}.params"
        net.collect_params().save(str(path), strip_prefix=prefix)
        assert path.read_bytes() == (FILES / f"{name}.params").read_bytes()
        other = file_nets.net_of(mx.gluon.nn, 1)
        other.collect_params().load(str(path), restore_prefix=prefix)
        check_values(other)
    other = file_nets.net_of(mx.gluon.nn, 1)
    other.load_parameters(str(FILES / "1-dict-bare.params"))
    check_values(other)


@V1
def test_lists_and_dicts_of_nd_have_the_bytes_of_mxnets_files(mx: Any, tmp_path: Path) -> None:
    loaded = mx.nd.load(str(FILES / "1-nd-list.params"))
    assert [(array.shape, array.dtype) for array in loaded] == [((2, 3), numpy.float32), ((1,), numpy.int8)]
    assert loaded[0].asnumpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    mx.nd.save(str(tmp_path / "list"), loaded)
    assert (tmp_path / "list").read_bytes() == (FILES / "1-nd-list.params").read_bytes()
    mx.nd.save(str(tmp_path / "dict"), {"one": loaded[0]})
    assert list(mx.nd.load(str(tmp_path / "dict"))) == ["one"]
    mx.nd.save(str(tmp_path / "none"), {})
    assert mx.nd.load(str(tmp_path / "none")) == []
    with pytest.raises(TypeError, match="save only accept dict str->NDArray or list of NDArray"):
        mx.nd.save(str(tmp_path / "bad"), [3])
    with pytest.raises(TypeError, match=r"cannot save mxnet\.numpy\.ndarray using mxnet\.ndarray\.save"):
        mx.nd.save(str(tmp_path / "bad"), mx.np.ones((2,)))
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize("mx", [(1, "np")], indirect=True)
def test_npx_save_of_version_1_writes_the_list_format(mx: Any, tmp_path: Path) -> None:
    loaded = mx.npx.load(str(FILES / "1-np-list.params"))
    assert [array.shape for array in loaded] == [(2, 3), ()]
    mx.npx.save(str(tmp_path / "list"), loaded)
    assert (tmp_path / "list").read_bytes() == (FILES / "1-np-list.params").read_bytes()
    mx.npx.save(str(tmp_path / "one"), loaded[1])
    assert [float(array) for array in mx.npx.load(str(tmp_path / "one"))] == [7.5]


@V2
def test_npx_save_of_version_2_writes_npy_and_npz(mx: Any, tmp_path: Path) -> None:
    one = mx.npx.load(str(FILES / "2-np-save.npy"))
    several = mx.npx.load(str(FILES / "2-np-savez.npz"))
    assert one.asnumpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert sorted(several) == ["arr_0", "x"]
    assert float(several["x"]) == 7.5
    mx.npx.save(str(tmp_path / "one.npy"), one)
    mx.npx.savez(str(tmp_path / "several.npz"), one, x=several["x"])
    assert numpy.load(tmp_path / "one.npy").tolist() == one.asnumpy().tolist()
    with numpy.load(tmp_path / "several.npz") as stored:
        assert stored["arr_0"].tolist() == one.asnumpy().tolist()
        assert stored["x"].shape == ()
    with pytest.raises(ValueError, match="data needs to either be a MXNet ndarray"):
        mx.npx.save(str(tmp_path / "bad"), [one])


# -- options ---------------------------------------------------------------------------------------------------


@V2
def test_missing_and_extra_names_are_errors_unless_allowed(mx: Any, tmp_path: Path) -> None:
    nn, np = mx.gluon.nn, mx.np
    path = str(tmp_path / "x.params")
    mx.npx.savez(path, weight=np.ones((2, 3)), other=np.ones(1))
    layer = nn.Dense(2, in_units=3)
    layer.initialize()
    before = layer.weight.data().asnumpy()
    with pytest.raises(AssertionError, match=r"Parameter 'bias' is missing in 'file: .*Set allow_missing=True"):
        layer.load_parameters(path)
    with pytest.raises(ValueError, match=r"Parameter 'other' loaded from 'file: .*Set ignore_extra=True"):
        layer.load_parameters(path, allow_missing=True)
    numpy.testing.assert_array_equal(layer.weight.data().asnumpy(), before)
    layer.load_parameters(path, allow_missing=True, ignore_extra=True)
    assert layer.weight.data().asnumpy().tolist() == [[1] * 3] * 2


@V2
def test_a_value_that_does_not_fit_leaves_every_parameter_as_it_was(mx: Any, tmp_path: Path) -> None:
    nn, np = mx.gluon.nn, mx.np
    path = str(tmp_path / "x.params")
    mx.npx.savez(path, weight=np.ones((2, 3)), bias=np.ones(5))
    layer = nn.Dense(2, in_units=3)
    layer.initialize()
    with pytest.raises(AssertionError, match=r"shape incompatible expected \(2,\) vs saved \(5,\)"):
        layer.load_parameters(path)
    assert not (layer.weight.data() == 1).any()


@V2
def test_cast_dtype_casts_to_the_dtype_of_the_parameter_or_of_the_file(mx: Any, tmp_path: Path) -> None:
    nn, np = mx.gluon.nn, mx.np
    path = str(tmp_path / "x.params")
    mx.npx.savez(path, weight=np.ones((2, 3), dtype="float16"), bias=np.ones(2, dtype="float16"))
    layer = nn.Dense(2, in_units=3)
    layer.initialize()
    with pytest.raises(AssertionError, match=r"dtype incompatible expected .*float32.* vs saved float16"):
        layer.load_parameters(path)
    layer.load_parameters(path, cast_dtype=True)
    assert layer.weight.data().dtype == numpy.float32
    layer.load_parameters(path, cast_dtype=True, dtype_source="saved")
    assert layer.weight.data().dtype == numpy.float16
    with pytest.raises(AssertionError):
        layer.load_parameters(path, cast_dtype=True, dtype_source="other")


@V2
def test_different_values_for_one_shared_parameter_are_refused(mx: Any, tmp_path: Path) -> None:
    nn, np = mx.gluon.nn, mx.np
    path = str(tmp_path / "x.params")
    mx.npx.savez(path, **{"0.weight": np.ones((2, 2)), "1.weight": np.zeros((2, 2))})
    net = nn.Sequential()
    net.add(nn.Dense(2, in_units=2, use_bias=False), nn.Dense(2, in_units=2, use_bias=False))
    net.load_parameters(path)
    net[1].share_parameters(net[0].collect_params())
    with pytest.raises(MXNetError, match=r"loading 0\.weight and 1\.weight .* are one shared parameter here"):
        net.load_parameters(path)


def test_a_file_that_is_not_one_is_an_error(tmp_path: Path) -> None:
    from leafwise_gluon import nn

    (tmp_path / "x.params").write_bytes(b"\x12\x01" + bytes(14) + b"\xff" * 20)
    with pytest.raises(ValueError, match=r"x\.params"):
        nn.Dense(2).load_parameters(str(tmp_path / "x.params"))


# -- leafwise's own verbs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", ["1-exported-0000", "2-exported-0000", "1-dict", "1-nd", "2-np"])
def test_lw_load_fills_a_block_from_a_file_of_either_version(version: Any, name: str) -> None:
    with as_mxnet(version):
        from mxnet import nd, np
        from mxnet.gluon import nn

        net = file_nets.net_of(nn, version)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a shared parameter is initialized already
            net.initialize("zeros")
        net((nd if version == 1 else np).zeros((1, 2, 4, 4)))
    plan = lw.plan(net, FILES / f"{name}.params")
    assert plan.holds, plan.text()
    lw.load(net, FILES / f"{name}.params")
    for path, tensor in net.state_dict(keep_vars=True).items():
        stored = path.replace("3.", "4.") if path.startswith("3.") else path
        assert torch.equal(tensor.detach(), torch.from_numpy(values(stored, tuple(tensor.shape)))), path


@V1
def test_load_params_gives_the_arrays_of_an_exported_model(mx: Any) -> None:
    arguments, states = mx.model.load_params(str(FILES / "1-exported"), 0)
    assert sorted(states) == ["net_batchnorm0_running_mean", "net_batchnorm0_running_var"]
    numpy.testing.assert_array_equal(arguments["net_conv0_bias"].asnumpy(), values("0.bias", (4,)))


def test_layers_of_an_exported_model_that_cannot_be_told_apart_are_not_guessed() -> None:
    from leafwise_gluon import nn

    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, in_channels=2), nn.BatchNorm(in_channels=4), nn.Dense(5, in_units=16))
    plan = lw.plan(net, FILES / "1-exported-0000.params")
    assert not plan.holds


def test_params_are_converted_to_safetensors_and_back(tmp_path: Path) -> None:
    source, middle, back = FILES / "1-nd-once.params", tmp_path / "x.safetensors", tmp_path / "x.params"
    assert main(["convert", str(source), str(middle)]) == 0
    assert main(["convert", str(middle), str(back)]) == 0
    first, last = lw.open(source), lw.open(back)
    assert {str(path) for path, _ in first.items()} == {str(path) for path, _ in last.items()}
    for path, leaf in first.items():
        numpy.testing.assert_array_equal(leaf.numpy(), last[str(path)].numpy())
