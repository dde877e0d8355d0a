"""Models whose values other libraries shard, offload or pack: every verb that reads or writes values raises an error
that names the library and says what to call instead. Tested with the real libraries."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.files.processes import in_processes
from torch import nn

import leafwise as lw

pytestmark = pytest.mark.filterwarnings("ignore")


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


def said(verb: Callable[[], Any]) -> str:
    """The text of a verb's error or result."""
    try:
        return str(verb())
    except lw.Error as error:
        return str(error)


def refused(model: nn.Module, other: nn.Module, plain: nn.Module, folder: Path, match: str) -> None:
    """Saving, loading into or from the model, and averaging raise; statistics and a diff raise or name what they leave
    out."""
    for verb in (
        lambda: lw.save(model, folder / "a.safetensors"),
        lambda: lw.load(model, plain),
        lambda: lw.load(plain, model),
        lambda: lw.Average(model, 0.9),
    ):
        with pytest.raises(lw.Error, match=match):
            verb()
    assert not list(folder.iterdir())
    kinds = {problem.kind for problem in lw.plan(model, plain, allow={"missing", "unexpected", "shape"}).problems}
    assert kinds == {"unsupported"}
    assert match in said(lambda: lw.stats(model))
    found = said(lambda: lw.diff(model, other))
    assert match in found
    assert "all the same" not in found
    assert match in str(lw.tree(model))


def test_dynamic_int8_layers_of_pytorch_are_refused(tmp_path: Path) -> None:
    one, other = (torch.ao.quantization.quantize_dynamic(net()) for _ in range(2))
    refused(one, other, net(), tmp_path, "keeps its weights packed")
    with pytest.raises(lw.WalkError, match="cannot check 0: Linear keeps its weights packed"):
        lw.check(one)


def test_models_that_accelerate_offloaded_are_refused(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = net()
    accelerate.cpu_offload(model, execution_device="cpu")
    refused(model, net(), net(), tmp_path, "accelerate has offloaded its values")
    (tmp_path / "run").mkdir()
    mapped = net()
    accelerate.dispatch_model(
        mapped, {"0": "cpu", "2": "disk"}, main_device="cpu", offload_dir=tmp_path / "disk", force_hooks=True
    )
    with pytest.raises(lw.LoadError, match=r"unsupported: 2: accelerate has offloaded its values"):
        lw.load(mapped, net())
    # A part that is not offloaded, and the model without its hooks, work as usual.
    assert lw.stats(lw.tree(mapped)["0"]).total.count == 64 * 65
    accelerate.hooks.remove_hook_from_module(mapped, recurse=True)
    source = net()
    assert lw.diff(lw.load(mapped, source), source).same


def test_weights_that_bitsandbytes_packed_are_refused(tmp_path: Path) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    four = nn.Sequential(bitsandbytes.nn.Linear4bit(64, 64))
    assert torch.equal(lw.load(four, nn.Sequential(nn.Linear(64, 64)))[0].weight, four[0].weight)  # not packed yet
    four[0].weight = four[0].weight._quantize("cpu")
    refused(four, four, nn.Sequential(nn.Linear(64, 64)), tmp_path, "bitsandbytes keeps it packed")
    leaf = lw.tree(four)["0.weight"]
    assert (leaf.shape, leaf.size, leaf.nbytes) == ((64, 64), 64 * 64, 64 * 64 // 2)
    eight = nn.Sequential(bitsandbytes.nn.Linear8bitLt(64, 64, has_fp16_weights=False))
    eight[0].weight = eight[0].weight._quantize("cpu")
    for _ in range(2):  # the first forward pass removes the scales from the weight
        refused(eight, eight, nn.Sequential(nn.Linear(64, 64)), tmp_path, "bitsandbytes keeps it packed")
        eight(torch.ones(2, 64))


def test_tensors_that_torchao_quantized_are_refused(tmp_path: Path) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    model = net()
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    refused(model, model, net(), tmp_path, "is a tensor made of other tensors")
    leaf = lw.tree(model)["0.weight"]
    assert leaf.dtype == type(model[0].weight).__name__
    assert leaf.size == 64 * 64
    assert 64 * 64 < leaf.nbytes < 2 * 64 * 64  # one byte per value, and the scales
    assert not lw.check(model, select=["LW511"])


def test_models_that_diffusers_offloaded_to_disk_are_refused(tmp_path: Path) -> None:
    hooks = pytest.importorskip("diffusers.hooks")
    model, cpu = net(), torch.device("cpu")
    hooks.apply_group_offloading(
        model, cpu, cpu, offload_type="leaf_level", offload_to_disk_path=str(tmp_path / "disk")
    )
    (tmp_path / "out").mkdir()
    refused(model, net(), net(), tmp_path / "out", "diffusers has offloaded its values to disk")


def test_tensors_inside_a_function_transform_are_refused(tmp_path: Path) -> None:
    model, seen = net(), []

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        inside = nn.ParameterDict()
        inside._parameters.update(parameters)  # type: ignore[arg-type]
        with pytest.raises(lw.WalkError, match="inside a function transform"):
            lw.save(inside, tmp_path / "a.safetensors")
        with pytest.raises(lw.WalkError, match="inside a function transform"):
            lw.stats(inside)
        seen.append(True)
        return torch.func.functional_call(model, parameters, torch.ones(1, 64)).sum()

    torch.func.grad(loss)({name: value.detach() for name, value in model.named_parameters()})
    assert seen


def test_fake_tensors_are_refused(tmp_path: Path) -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        model = net()
    refused(model, model, net(), tmp_path, "a FakeTensor has a shape but no values")


FSDP = """
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
import leafwise as lw

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 4)))

def refused(model, match, part=None, but=()):
    verbs = {
        "save": lambda: lw.save(model, f"{out}/rank{rank}.safetensors"),
        "load": lambda: lw.load(model, net(), allow={"missing", "unexpected", "shape"}),
        "load from": lambda: lw.load(net(), model, allow={"missing", "unexpected", "shape"}),
        "stats": lambda: lw.stats(model),
        "diff": lambda: lw.diff(model, model),
        "average": lambda: lw.Average(model, 0.9),
    }
    for name, verb in verbs.items():
        if name in but:
            continue
        try:
            verb()
        except lw.Error as error:
            assert match in str(error), (name, error)
        else:
            raise AssertionError(f"{name} did not refuse")
    if "sharded over" not in match:  # a tree can be shown
        assert match in str(lw.tree(model))

# A part of the model, without the FSDP module, which knows where its elements are.
PART = "pass the FSDP model that contains it"
refused(FSDP(net(), use_orig_params=True, device_id=torch.device("cpu")).module[1], PART)
PART = "FSDP1 has joined its parameters with others"
refused(FSDP(net(), use_orig_params=False, device_id=torch.device("cpu")).module[1], PART)

mesh = init_device_mesh("cpu", (2,))
model = net()
fully_shard(model, mesh=mesh)
WORK = ("stats", "diff", "average", "load")
refused(model, "sharded over", but=WORK)
assert lw.diff(lw.load(model, net()), net()).same
assert lw.stats(model).total.count == lw.stats(net()).total.count
assert lw.diff(model, model).same
with torch.no_grad():
    model(torch.ones(2, 8))  # after this, the parameters of the root are unsharded and plain for a while
assert any(type(parameter) is nn.Parameter for parameter in model.parameters())
refused(model, "FSDP2 has gathered its parameters")
with torch.device("meta"):
    model = net()
fully_shard(model, mesh=mesh)
kinds = [type(parameter) for parameter in model.parameters()]
refused(model, "sharded over", but=WORK)
for verb in (lambda: lw.stats(model), lambda: lw.diff(model, model)):
    try:
        verb()
    except lw.Error as error:
        assert "meta tensor" in str(error), error
    else:
        raise AssertionError("it was not refused")
assert [type(parameter) for parameter in model.parameters()] == kinds
assert all(parameter.is_meta for parameter in model.parameters())
"""


def test_models_under_fsdp1_and_fsdp2_are_refused_even_on_meta(tmp_path: Path) -> None:
    in_processes(2, FSDP, tmp_path)


def test_parameters_that_deepspeed_zero_3_marked_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the attributes that DeepSpeed sets on parameters, so that it need not be installed."""
    import sys
    from types import ModuleType, SimpleNamespace

    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))
    model = net()
    for number, parameter in enumerate(model.parameters()):
        parameter.ds_id, parameter.ds_shape = number, parameter.shape  # type: ignore[attr-defined]
        parameter.ds_status = SimpleNamespace(name="NOT_AVAILABLE")  # type: ignore[attr-defined]
        parameter.data = torch.empty(0)
    assert lw.tree(model).counts.parameters == 2 * 64 * 65
    refused(model, model, net(), tmp_path, "a parameter of DeepSpeed ZeRO-3")
