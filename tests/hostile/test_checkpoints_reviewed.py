"""What reviews of saving and loading found, each as a test."""

import enum
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leafwise as lw
from leafwise.files.checksums import CHUNK
from leafwise.files.record import TENSORS, sealed


def parameters(**tensors: torch.Tensor) -> nn.Module:
    module = nn.Module()
    for name, tensor in tensors.items():
        setattr(module, name, nn.Parameter(tensor, requires_grad=tensor.is_floating_point()))
    return module


def buffers(**tensors: torch.Tensor) -> nn.Module:
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


# -- matching ----------------------------------------------------------------------------------------------


def test_another_order_of_leaves_takes_the_facts_of_the_right_ones(tmp_path: Path) -> None:
    path = lw.save(parameters(x=torch.randn(4).half(), y=torch.randn(4).bfloat16()), tmp_path / "a.safetensors")
    other = parameters(y=torch.zeros(4).half(), x=torch.zeros(4).bfloat16())
    with pytest.raises(lw.LoadError, match=r"2 dtype"):
        lw.load(other, path)
    net = nn.Sequential(nn.Linear(2, 3))
    state = {name: net.state_dict()[name] for name in reversed(net.state_dict())}
    loaded = lw.load(nn.Sequential(nn.Linear(2, 3)), state)
    assert torch.equal(loaded[0].weight, net[0].weight)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Inner()
        self.lin = nn.Linear(2, 2)


def test_a_prefix_of_all_names_is_seen_before_any_is_matched() -> None:
    outer = Outer()
    plan = lw.plan(Outer(), {f"model.{name}": value for name, value in outer.state_dict().items()})
    assert plan.holds
    assert [prefix.describe() for prefix in plan.prefixes] == ['prefix "model." left off 4 names']
    loaded = lw.load(Outer(), {f"model.{name}": value for name, value in outer.state_dict().items()})
    assert torch.equal(loaded.lin.weight, outer.lin.weight)
    assert torch.equal(loaded.model.lin.weight, outer.model.lin.weight)


def test_letters_stand_for_words_in_what_is_proposed() -> None:
    def model(*names: str) -> nn.Module:
        return nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in names})

    plan = lw.plan(model("q_proj", "k_proj", "v_proj"), model("attn_v", "attn_k", "attn_q"), rename="auto")
    renamed = dict(pair for proposal in plan.applied for pair in proposal.pairs)
    assert renamed == {f"attn_{letter}.weight": f"{letter}_proj.weight" for letter in "qkv"}


def test_axes_are_those_of_the_name_that_matched() -> None:
    target = nn.Module()
    target.c = nn.Conv2d(4, 4, 3, bias=False)
    target.d = nn.ConvTranspose2d(4, 4, 3, bias=False)
    target.d.weight = target.c.weight
    source = nn.Module()
    source.d = nn.ConvTranspose2d(4, 4, 3, bias=False)
    lw.load(target, source)
    assert torch.equal(target.d.weight, source.d.weight)


def test_lists_in_place_of_arrays_are_named() -> None:
    with pytest.raises(lw.LoadError, match=r"needs an array, and in the source it is a list"):
        lw.load(nn.Linear(2, 2), {"weight": [1, 2], "bias": torch.zeros(2)})


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"allow": 5}, "allow= takes a set"),
        ({"allow": {"everything"}}, "allow= takes"),
        ({"rename": lambda name: 1 / 0}, "rename= raised ZeroDivisionError: division by zero for 'weight'"),
        ({"rename": lambda name: 5}, "rename= gave 5 for 'weight'"),
        ({"rename": 5}, "rename= takes"),
        ({"rename": [("(", "")]}, "rename= takes pairs"),
        ({"rename": [("w", r"\9")]}, "cannot take the place"),
        ({"rename": {"weight": 5}}, "maps names to names"),
        ({"rename": lambda name: "one"}, "would both be 'one'"),
        ({"ties": "maybe"}, "ties= takes"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], cause: str) -> None:
    with pytest.raises(lw.QueryError) as caught:
        lw.load(nn.Linear(2, 2), nn.Linear(2, 2), **options)
    assert cause in str(caught.value)


# -- values ------------------------------------------------------------------------------------------------


def test_a_source_in_the_memory_that_is_written() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    first, second = net[0].weight.detach().clone(), net[1].weight.detach().clone()
    lw.load(net, net, rename={"0": "1", "1": "0"})
    assert torch.equal(net[0].weight, second)
    assert torch.equal(net[1].weight, first)


def test_overlapping_targets_need_values_that_agree() -> None:
    source = buffers(a=torch.ones(6), b=torch.full((6,), 2.0))
    memory = torch.zeros(10)
    with pytest.raises(lw.LoadError, match=r"a, b lie over one memory"):
        lw.load(buffers(a=memory[:6], b=memory[4:]), source)
    assert not memory.any()
    lw.load(buffers(a=memory[:6], b=memory[4:]), buffers(a=torch.ones(6), b=torch.ones(6)))
    assert memory.all()


def test_several_transposed_names_must_agree() -> None:
    model: Any = nn.Module()
    model.enc, model.d1, model.d2 = (nn.Linear(*size, bias=False) for size in ((3, 4), (4, 3), (4, 3)))
    for name in ("d1.weight", "d2.weight"):
        lw.tie(model, name, to="enc.weight", transpose=True, keep="source")
    with pytest.raises(lw.LoadError, match=r"d2.weight is tied in the target, and the source holds two different"):
        lw.load(model, {"d1.weight": torch.ones(3, 4), "d2.weight": torch.zeros(3, 4)})
    lw.load(model, {"d1.weight": torch.ones(3, 4), "d2.weight": torch.ones(3, 4)})
    assert (model.enc.weight == 1).all()


def test_casts_that_would_make_other_numbers() -> None:
    for target, source in (
        (torch.zeros(2, dtype=torch.uint8), torch.tensor([300, -1])),
        (torch.zeros(2, dtype=torch.float16), torch.tensor([1e6, 1.0])),
    ):
        with pytest.raises(lw.LoadError, match=r"do not fit into"):
            lw.load({"a": target}, {"a": source}, cast=True)
        assert not target.any()
    assert lw.load({"a": torch.zeros(2).half()}, {"a": torch.tensor([0.1, float("inf")])}, cast=True)["a"][0] == 0.1


def sliced(fused: bool) -> nn.Module:
    model: Any = nn.Module()
    if fused:
        model.qkv = nn.Linear(4, 12, bias=False)
    model.q = nn.Linear(4, 4, bias=False)
    model.o = nn.Linear(1, 1, bias=False)
    if fused:
        lw.tie(model, "q.weight", to="qkv.weight", slice=slice(0, 4), keep="source")
    return model


def test_what_is_only_partly_taken_or_given_is_told(tmp_path: Path) -> None:
    path = lw.save(sliced(True), tmp_path / "a.safetensors")
    assert lw.plan(sliced(False), path).unexpected == ["qkv.weight"]
    loaded = lw.load(sliced(False), path, allow={"unexpected"})
    assert np.array_equal(loaded.q.weight.detach().numpy(), lw.open(path)["qkv.weight"].numpy()[:4])
    plan = lw.plan(sliced(True), {"q.weight": torch.ones(4, 4), "o.weight": torch.ones(1, 1)})
    assert plan.missing == ["qkv.weight"]
    assert plan.unexpected == ["q.weight"]
    assert "only for parts of it: q.weight" in str(plan)


class Extra(nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.value = value

    def get_extra_state(self) -> Any:
        value = self.value
        return value.clone() if isinstance(value, torch.Tensor) else {"value": value, "array": torch.full((2,), value)}

    def set_extra_state(self, state: Any) -> None:
        if isinstance(state, dict):
            assert (state["array"] == state["value"]).all()
            state = state["value"]
        self.value = state


def test_extra_state_is_saved_and_handed_back(tmp_path: Path) -> None:
    path = lw.save(nn.Sequential(Extra(7), Extra(torch.tensor([1.0, 2.0]))), tmp_path / "a.safetensors")
    loaded = lw.load(nn.Sequential(Extra(0), Extra(torch.zeros(2))), path)
    assert loaded[0].value == 7
    assert loaded[1].value.tolist() == [1, 2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
def test_packed_weights_are_an_error(tmp_path: Path) -> None:
    packed = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear}, torch.qint8)
    with pytest.raises(lw.WalkError, match=r"keeps its weights packed"):
        lw.save(packed, tmp_path / "a.safetensors")
    assert os.listdir(tmp_path) == []


def test_targets_that_cannot_be_written_are_told_before_anything_changes() -> None:
    target = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 4, bias=False))
    target[1].weight = nn.Parameter(torch.zeros(1, 4).expand(4, 4))
    before = target[0].weight.detach().clone()
    with pytest.raises(lw.LoadError, match=r"cannot load 1.weight: it is expanded.*nothing was changed"):
        lw.load(target, nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 4, bias=False)))
    assert torch.equal(target[0].weight, before)


class Head(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        if tied:
            self.head.weight = self.embed.weight


def test_a_tie_that_cannot_come_back_is_in_the_plan(tmp_path: Path) -> None:
    path = lw.save(Head(True), tmp_path / "a.safetensors")
    frozen = Head(False)
    frozen.head.weight.requires_grad_(False)
    plan = lw.plan(frozen, path)
    assert not plan.holds
    assert "head.weight is frozen and embed.weight is not" in str(plan)
    assert lw.plan(frozen, path, ties="ignore").holds


def test_attributes_of_parameters_on_meta_stay() -> None:
    with torch.device("meta"):
        target: Any = nn.Linear(2, 2)
    target.weight.tag = "mine"
    loaded = lw.load(target, nn.Linear(2, 2))
    assert loaded.weight.tag == "mine"


# -- optimizers --------------------------------------------------------------------------------------------


def net(classes: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, classes))


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    optimizer.zero_grad()
    model(torch.ones(5, 3, dtype=next(model.parameters()).dtype)).square().mean().backward()
    optimizer.step()
    return optimizer


@pytest.fixture
def saved(tmp_path: Path) -> str:
    model = net()
    optimizer = stepped(model, torch.optim.AdamW(model.parameters()))
    return str(lw.save({"model": model, "optimizer": optimizer}, tmp_path / "run.safetensors"))


def test_a_new_head_gets_no_state(saved: str) -> None:
    model = net(7)
    optimizer = torch.optim.AdamW(model.parameters())
    lw.load({"model": model, "optimizer": optimizer}, saved, allow={"shape"})
    assert len(optimizer.state) == 2
    stepped(model, optimizer)


@pytest.mark.parametrize("kind", [torch.optim.RMSprop, torch.optim.SGD])
def test_another_kind_of_optimizer_is_told(kind: Any, saved: str) -> None:
    model = net()
    with pytest.raises(lw.LoadError, match=r"the option betas, which optimizer does not have; is it another kind"):
        lw.load({"model": model, "optimizer": kind(model.parameters(), lr=0.1)}, saved)


def test_state_is_cast_with_its_parameter(saved: str) -> None:
    model = net().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    lw.load({"model": model, "optimizer": optimizer}, saved, cast=True)
    state = optimizer.state[model[0].weight]
    assert state["exp_avg"].dtype == torch.bfloat16
    stepped(model, optimizer)


def test_a_parameter_that_the_source_does_not_step_is_missing(saved: str, tmp_path: Path) -> None:
    model = net()
    path = lw.save(
        {"model": model, "optimizer": stepped(model, torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9))},
        tmp_path / "part.safetensors",
    )
    target = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}
    assert lw.plan(target, path).missing == ["optimizer.state.model.2.weight", "optimizer.state.model.2.bias"]


def test_state_follows_its_parameter_through_a_rename(tmp_path: Path) -> None:
    def pair() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 3, bias=False))

    model = pair()
    optimizer = stepped(model, torch.optim.AdamW(model.parameters()))
    path = lw.save({"model": model, "optimizer": optimizer}, tmp_path / "a.safetensors")
    other = pair()
    target = torch.optim.AdamW(other.parameters())
    lw.load({"net": other, "opt": target}, path, rename={"model.0": "net.2", "model.2": "net.0", "optimizer": "opt"})
    for here, there in ((0, 2), (2, 0)):
        assert torch.equal(other[here].weight, model[there].weight)
        moved = target.state[other[here].weight]["exp_avg"]
        assert torch.equal(moved, optimizer.state[model[there].weight]["exp_avg"])


def test_numbered_state_whose_shapes_contradict_the_order(tmp_path: Path) -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.AdamW([model.weight, model.bias])
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    swapped = torch.optim.AdamW([model.bias, model.weight])
    with pytest.raises(lw.LoadError, match=r"exp_avg of model.bias is 4×3, and model.bias is 4"):
        lw.load({"model": model, "optimizer": swapped}, tmp_path / "a.pt")
    right = torch.optim.AdamW([model.weight, model.bias])
    lw.load({"model": model, "optimizer": right}, tmp_path / "a.pt")
    assert torch.equal(right.state[model.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])
    alone = torch.optim.AdamW([model.weight, model.bias])
    run = lw.save({"model": model, "optimizer": optimizer}, tmp_path / "a.safetensors")
    lw.load(alone, lw.open(run)["optimizer"])
    assert torch.equal(alone.state[model.bias]["exp_avg"], optimizer.state[model.bias]["exp_avg"])


def test_an_optimizer_of_a_model_on_meta_steps_what_was_loaded(saved: str) -> None:
    with torch.device("meta"):
        model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    lw.load({"model": model, "optimizer": optimizer}, saved)
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], model.parameters(), strict=True))
    stepped(model, optimizer)


def test_a_learning_rate_stays_a_tensor_or_a_number(saved: str, tmp_path: Path) -> None:
    model = net()
    tensor = torch.optim.AdamW(model.parameters(), lr=torch.tensor(5.0), foreach=False)
    lw.load({"model": model, "optimizer": tensor}, saved)
    assert tensor.param_groups[0]["lr"].item() == pytest.approx(0.001)
    path = lw.save({"model": model, "optimizer": tensor}, tmp_path / "a.safetensors")
    number = torch.optim.AdamW(model.parameters(), lr=5.0)
    lw.load({"model": model, "optimizer": number}, path)
    assert number.param_groups[0]["lr"] == pytest.approx(0.001)


# -- saving ------------------------------------------------------------------------------------------------


def test_views_that_cannot_be_told_are_written_each(tmp_path: Path) -> None:
    flat = torch.arange(12.0)
    state = {"flat": flat, "w1": flat[:6].view(2, 3), "w2": flat[6:].view(2, 3), "d": flat.view(3, 4).diagonal()}
    path = lw.save(state, tmp_path / "a.safetensors")
    with lw.open(path) as t:
        for name, value in state.items():
            assert np.array_equal(t[name].numpy(), value.numpy()), name


def test_a_save_leaves_the_shards_of_others_alone(tmp_path: Path) -> None:
    state = {"a": torch.ones(100), "b": torch.ones(100)}
    lw.save(state, tmp_path / "m", shard_size=400)
    lw.save(state, tmp_path / "m.safetensors", shard_size=400)
    index = tmp_path / "m.safetensors.index.json"
    (tmp_path / "copy.safetensors.index.json").write_bytes(index.read_bytes())
    lw.save(state, tmp_path / "m.safetensors")
    for name in ("m", "m.safetensors", "copy.safetensors"):
        assert lw.verify(tmp_path / name).leaves == 2, name


def test_shards_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    link = tmp_path / "x" / "l.safetensors"
    link.symlink_to(tmp_path / "y" / "t.safetensors")
    state = {"a": torch.ones(100), "b": torch.ones(100)}
    lw.save(state, link)
    written = lw.save(state, link, shard_size=400)
    assert lw.verify(written).leaves == lw.verify(link).leaves == 2


def test_only_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(lw.FileError, match=r"it is not a file, but a folder, a pipe or a device"):
        lw.save({"a": torch.ones(2)}, tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_private_checkpoint_stays_private(tmp_path: Path) -> None:
    state = {"a": torch.ones(100), "b": torch.ones(100)}
    path = tmp_path / "m.safetensors"
    lw.save(state, path)
    path.chmod(0o600)
    for options in ({"shard_size": 400}, {"shard_size": 400}, {}):
        lw.save(state, path, **options)  # type: ignore[arg-type]
        assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


class Word(str, enum.Enum):  # noqa: UP042
    A = "x"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Word.A, "v"),
        ([10**5000], "v"),
        (object(), "v"),
        ({1, (2, object())}, "v"),
        (lambda: 1, "v"),
        ({"inner": [1, object()]}, "v.inner.1"),
        (np.ma.array([1, 2], mask=[0, 1]), "v"),
        (np.array(["a"]), "v"),
        (np.array([1], "datetime64[s]"), "v"),
        (torch.ones(2, dtype=torch.complex128), "v"),
        (torch.ones(2, device="meta"), "v"),
        (torch.eye(2).to_sparse(), "v"),
        (nn.LazyLinear(2), "v.weight"),
    ],
)
@pytest.mark.parametrize("background", [False, True])
def test_what_cannot_be_saved_is_named(value: Any, path: str, background: bool, tmp_path: Path) -> None:
    def save() -> None:
        saving = lw.save({"w": torch.ones(2), "v": value}, tmp_path / "a.safetensors", background=background)
        saving.wait()

    with pytest.raises(lw.Error, match=rf"cannot save {path}\b"):
        save()
    assert os.listdir(tmp_path) == []


def test_names_that_cannot_be(tmp_path: Path) -> None:
    for state in (
        {"w": torch.ones(1), "a.b": 1, "a": {"b": 2}},
        {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}},
        {"__metadata__": torch.ones(1)},
        {"\ud800": torch.ones(1)},
        {"\ud800": 1},
    ):
        with pytest.raises(lw.Error, match=r"cannot save"):
            lw.save(state, tmp_path / "a.safetensors")
    for metadata in ({"k": "\ud800"}, {"k": 1}, {"leafwise": "x"}, "x"):
        with pytest.raises(lw.QueryError, match=r"metadata"):
            lw.save({"a": torch.ones(1)}, tmp_path / "a.safetensors", metadata=metadata)  # type: ignore[arg-type]
    for wrong in (None, 5, "a\0b", "", str(tmp_path / "no") + "/", "s3://bucket/x"):
        with pytest.raises(lw.FileError):
            lw.save({"a": torch.ones(1)}, wrong)  # type: ignore[arg-type]
    for size in (0, -1, "abc", "1.2.3GB", True, "0"):
        with pytest.raises(lw.QueryError, match=r"shard_size"):
            lw.save({"a": torch.ones(1)}, tmp_path / "a.safetensors", shard_size=size)
    for dtype in ("int8", "complex64", "float7"):
        with pytest.raises(lw.QueryError, match=r"cannot cast to"):
            lw.save({"a": torch.ones(1)}, tmp_path / "a.safetensors", dtype=dtype)
    assert os.listdir(tmp_path) == []


def test_a_forked_child_does_not_wait_for_a_save_that_is_not_its_own(tmp_path: Path) -> None:
    saving = lw.save({"a": torch.ones(10)}, tmp_path / "a.safetensors", background=True)
    saving.wait()
    saving._process -= 1  # as in a child
    with pytest.raises(lw.FileError, match=r"from which this one was forked"):
        saving.wait()
    assert not saving.done


# -- files that somebody made up ---------------------------------------------------------------------------


def craft(path: Path, entry: str) -> Path:
    """A file with right checksums, and any entry."""
    from leafwise.files.checksums import checksum

    data = np.ones(4, np.float32).tobytes()
    entry = entry.replace("SUM", checksum(data))
    rest = f' {entry}"}},"a":{{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}}}'
    path.write_bytes(sealed(rest, TENSORS, lead=8, multiple=8) + data)
    return path


GOOD = f'"chunk":{CHUNK},"sums":"SUM"'.replace('"', '\\"')


@pytest.mark.parametrize(
    "more",
    [
        '"roles":[-1],"role_table":[["x",null]]',
        '"roles":[5],"role_table":[["x",null]]',
        '"roles":[0],"role_table":[[5,null]]',
        '"roles":[0],"role_table":[["x","abc"]]',
        '"roles":[0],"role_table":[["x",[1]]]',
        '"roles":[0,0],"role_table":[["x",null]]',
        '"kinds":"pp"',
        '"kinds":"x"',
        '"kinds":["p"]',
        '"ties":[["b","nothing",null,null]],"tie_roles":[0],"role_table":[["x",null]]',
        '"ties":[["b","b",null,null]],"tie_roles":[0],"role_table":[["x",null]]',
        '"ties":[["b","a",null,null]]',
        '"ties":[["b","a",null,null],["b","a",null,null]],"tie_roles":[0,0],"role_table":[["x",null]]',
        '"ties":[["b","a",[[0,9999999999999999999999,1]],[1,0]]],"tie_roles":[0],"role_table":[["x",null]]',
        '"ties":[["b","a",[7],null]],"tie_roles":[0],"role_table":[["x",null]]',
        '"ties":[["b","a",null,[true]]],"tie_roles":[0],"role_table":[["x",null]]',
        '"ties":[["b","a",{},null]],"tie_roles":[0],"role_table":[["x",null]]',
        '"ties":[[5,"a",null,null]],"tie_roles":[0],"role_table":[["x",null]]',
        '"scalars":["a"],"values":[1]',
        '"scalars":["s","s"],"values":[1,2]',
        '"scalars":["s"],"values":[]',
        '"scalars":[5],"values":[1]',
        '"scalars":"s","values":"x"',
        '"scalars":["s"],"values":[{"complex":[1' + "0" * 400 + ",1]}]",
        '"scalars":["s"],"values":[{"bytes":"!!"}]',
        '"scalars":["s"],"values":[{"float":"1_0"}]',
        '"scalars":["s"],"values":[{"float":5}]',
        '"scalars":["s"],"values":[{"unknown":5}]',
        '"scalars":["s"],"values":[{}]',
        '"scalars":["s"],"values":[' + "[" * 5000 + "]" * 5000 + "]",
    ],
)
def test_entries_that_make_no_sense(more: str, tmp_path: Path) -> None:
    path = craft(tmp_path / "a.safetensors", "{" + GOOD + "," + more.replace('"', '\\"') + "}")
    with pytest.raises(lw.FileError):
        lw.open(path)


@pytest.mark.parametrize("entry", ["{}", "[]", "5", "", '{\\"chunk\\":0,\\"sums\\":\\"SUM\\"}', "nonsense"])
def test_entries_that_are_none(entry: str, tmp_path: Path) -> None:
    with pytest.raises(lw.FileError):
        lw.open(craft(tmp_path / "a.safetensors", entry))


def test_the_entry_that_was_made_up_is_right_without_nonsense(tmp_path: Path) -> None:
    assert lw.verify(craft(tmp_path / "a.safetensors", "{" + GOOD + "}")).leaves == 1


# -- the second review -------------------------------------------------------------------------------------


def wrapped(layer: nn.Module) -> Any:
    module: Any = nn.Module()
    module.fc = layer
    return module


def adam(model: nn.Module, kind: Any = torch.optim.Adam, **options: Any) -> Any:
    optimizer = kind(model.parameters(), **options)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("size", [(4, 4), (4, 3)])
def test_state_is_turned_with_its_parameter(size: tuple[int, int], tmp_path: Path) -> None:
    from transformers.pytorch_utils import Conv1D

    a, b = wrapped(nn.Linear(*size)), wrapped(Conv1D(size[1], size[0]))
    optimizer, target = adam(a), torch.optim.Adam(b.parameters())
    lw.load({"m": b, "o": target}, lw.save({"m": a, "o": optimizer}, tmp_path / "a.safetensors"))
    assert torch.equal(a.fc.weight.T, b.fc.weight)
    for key in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(optimizer.state[a.fc.weight][key].T, target.state[b.fc.weight][key])


def test_counts_of_steps_are_not_cast_and_state_does_not_overflow(tmp_path: Path) -> None:
    a = nn.Linear(2, 2)
    optimizer = adam(a)
    optimizer.state[a.weight]["step"].fill_(100_001)
    path = lw.save({"m": a, "o": optimizer}, tmp_path / "a.safetensors")
    b = nn.Linear(2, 2, dtype=torch.bfloat16)
    target = torch.optim.Adam(b.parameters())
    lw.load({"m": b, "o": target}, path, cast=True)
    assert target.state[b.weight]["step"].item() == 100_001
    assert target.state[b.weight]["exp_avg"].dtype == torch.bfloat16
    optimizer.state[a.weight]["exp_avg_sq"].fill_(1e6)
    path = lw.save({"m": a, "o": optimizer}, tmp_path / "a.safetensors")
    c = nn.Linear(2, 2, dtype=torch.float16)
    before = c.weight.detach().clone()
    with pytest.raises(lw.LoadError, match=r"weight.exp_avg_sq: some values do not fit into float16"):
        lw.load({"m": c, "o": torch.optim.Adam(c.parameters())}, path, cast=True)
    assert torch.equal(c.weight, before)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)


def test_plain_values_of_a_subtree_with_ties_that_come_back(tmp_path: Path) -> None:
    tied = Two()
    tied.b.weight = tied.a.weight

    def make(model: nn.Module, number: int) -> dict[str, Any]:
        return {"c": {"step": number + 1}, "d": {"step": number + 2}, "model": model, "step": number}

    run: Any = {"pad": {"k": 1}, "b": make(Two(), 0)}
    lw.load(lw.tree(run)["b"], lw.save(make(tied, 10), tmp_path / "a.safetensors"))
    assert (run["b"]["c"]["step"], run["b"]["d"]["step"], run["b"]["step"]) == (11, 12, 10)
    assert run["b"]["model"].b.weight is run["b"]["model"].a.weight


class Grows(nn.Module):
    def __init__(self, state: Any) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))
        self.state = state

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


class Meter:
    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts

    def state_dict(self) -> dict[str, Any]:
        return {"counts": dict(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "bad" in state["counts"]:
            raise ValueError("bad version")
        self.counts = state["counts"]


@pytest.mark.parametrize("now", [{}, None, {"classes": 0}])
def test_extra_state_that_grew(now: Any, tmp_path: Path) -> None:
    path = lw.save(Grows({"classes": 7}), tmp_path / "a.safetensors")
    assert lw.load(Grows(now), path).state == {"classes": 7}
    grown = lw.save(wrapped_in("m", Grows({"classes": 7, "more": 8})), tmp_path / "b.safetensors")
    loaded: Any = lw.load(wrapped_in("m", Grows(now)), grown)
    assert loaded.m.state == {"classes": 7, "more": 8}


def wrapped_in(name: str, module: nn.Module) -> nn.Module:
    return nn.ModuleDict({name: module})


def test_objects_with_state_that_grew_and_that_raise(tmp_path: Path) -> None:
    state = {"m": nn.Linear(2, 2), "meter": Meter({"seen": 3})}
    path = lw.save(state, tmp_path / "a.safetensors")
    meter = Meter({})
    lw.load({"m": nn.Linear(2, 2), "meter": meter}, path)
    assert meter.counts == {"seen": 3}
    bad = lw.save({"m": nn.Linear(2, 2), "meter": Meter({"bad": 1})}, tmp_path / "b.safetensors")
    with pytest.raises(lw.LoadError, match=r"ValueError was raised: bad version; the model is changed"):
        lw.load({"m": nn.Linear(2, 2), "meter": Meter({"bad": 0})}, bad)


def test_empty_containers_are_templates_and_are_saved(tmp_path: Path) -> None:
    path = lw.save({"losses": [0.5, 0.4], "seen": (1, 2), "cfg": {"a": {"b": 1}}, "e": []}, tmp_path / "a.safetensors")
    assert lw.load({"losses": [], "seen": (), "cfg": {}, "e": [5]}, path) == {
        "losses": [0.5, 0.4],
        "seen": (1, 2),
        "cfg": {"a": {"b": 1}},
        "e": [],
    }


def test_state_that_the_source_does_not_have_stays(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = adam(model)
    lw.load({"m": model, "o": optimizer}, lw.save({"m": model}, tmp_path / "a.safetensors"), allow={"missing"})
    assert len(optimizer.state) == 2


def test_adam_into_adamw_stays_adamw(tmp_path: Path) -> None:
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    path = lw.save({"m": a, "o": adam(a, weight_decay=0.1)}, tmp_path / "a.safetensors")
    target = torch.optim.AdamW(b.parameters())
    lw.load({"m": b, "o": target}, path)
    assert target.param_groups[0]["decoupled_weight_decay"]
    assert target.param_groups[0]["weight_decay"] == 0.1


def test_targets_that_refuse_are_told_before_anything_changes() -> None:
    with torch.inference_mode():
        inference = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with pytest.raises(lw.LoadError, match=r"it was made in inference mode"):
        lw.load(inference, nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    fixed = np.zeros(2)
    fixed.flags.writeable = False
    target = {"t": torch.zeros(2), "x": fixed}
    with pytest.raises(lw.LoadError, match=r"the array is read-only"):
        lw.load(target, {"t": torch.ones(2), "x": np.ones(2)})
    assert not target["t"].any()


def test_lbfgs_after_its_first_step_and_groups_without_parameters(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
    x = torch.randn(4, 2)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    lw.load({"m": model, "o": optimizer}, lw.save({"m": model, "o": optimizer}, tmp_path / "a.safetensors"))
    optimizer.step(closure)
    empty = torch.optim.SGD([{"params": []}, {"params": model.parameters()}], lr=0.1)
    lw.load({"m": model, "o": empty}, lw.save({"m": model, "o": empty}, tmp_path / "a.safetensors"))


def test_names_of_a_tied_parameter_in_another_order(tmp_path: Path) -> None:
    def build(*names: str) -> Any:
        model: Any = nn.Module()
        for name in names:
            setattr(model, name, nn.Linear(4, 4, bias=False))
        model.head.weight = model.emb.weight
        return model

    a, b = build("emb", "head"), build("head", "emb")
    optimizer, target = adam(a), torch.optim.Adam(b.parameters())
    lw.load({"m": b, "o": target}, lw.save({"m": a, "o": optimizer}, tmp_path / "a.safetensors"))
    assert torch.equal(target.state[b.emb.weight]["exp_avg"], optimizer.state[a.emb.weight]["exp_avg"])


@pytest.mark.parametrize("rename", [[("encoder", "backbone")], lambda name: name.replace("encoder", "backbone")])
def test_renames_inside_the_names_of_state(rename: Any, tmp_path: Path) -> None:
    a, b = nn.ModuleDict({"encoder": nn.Linear(3, 3)}), nn.ModuleDict({"backbone": nn.Linear(3, 3)})
    optimizer, target = adam(a), torch.optim.Adam(b.parameters())
    lw.load({"m": b, "o": target}, lw.save({"m": a, "o": optimizer}, tmp_path / "a.safetensors"), rename=rename)
    assert len(target.state) == 2


def test_prefixes_of_plain_values_and_copies_of_a_state(tmp_path: Path) -> None:
    inner = Grows({"v": 5})
    module: Any = nn.Module()
    module.module = inner
    assert lw.load(Grows({"v": 0}), lw.save(module, tmp_path / "a.safetensors")).state == {"v": 5}
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    best = {name: torch.zeros_like(value) for name, value in other.state_dict().items()}
    path = lw.save({"model": model, "best": model.state_dict()}, tmp_path / "b.safetensors")
    lw.load({"model": other, "best": best}, path)
    assert torch.equal(best["weight"], model.weight)


def test_more_input_that_cannot_be(tmp_path: Path) -> None:
    path = lw.save({"m": nn.Linear(2, 2), "step": 1}, tmp_path / "a.safetensors")
    for rename in (
        lambda name: {"m.weight": "m.weight", "m.bias": "m.bias"}[name],
        lambda name: 5 if name == "step" else name,
    ):
        with pytest.raises(lw.QueryError, match=r"rename="):
            lw.load({"m": nn.Linear(2, 2), "step": 0}, path, rename=rename)
    with pytest.raises(lw.QueryError, match=r"rename="):
        lw.load({"m": nn.Linear(2, 2), "step": 0}, path, rename=np.array(["a", "b"]))
    for size in (".", "9" * 400):
        with pytest.raises(lw.QueryError, match=r"shard_size"):
            lw.save(nn.Linear(2, 2), tmp_path / "b.safetensors", shard_size=size)
