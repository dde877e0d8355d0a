"""The state of an optimizer goes with the parameter it belongs to: through renames, casts, transposes
and other orders."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leafwise as lw
from leafwise.homes.torch.training.stepping import TorchStepping


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


def test_a_new_head_gets_no_state(saved: str) -> None:
    model = net(7)
    optimizer = torch.optim.AdamW(model.parameters())
    lw.load({"model": model, "optimizer": optimizer}, saved, allow={"shape"})
    assert len(optimizer.state) == 2
    stepped(model, optimizer)


@pytest.mark.parametrize("kind", [torch.optim.RMSprop, torch.optim.SGD])
def test_another_kind_of_optimizer_is_an_error(kind: Any, saved: str) -> None:
    model = net()
    with pytest.raises(lw.LoadError, match=r"has another kind of optimizer: only the .* has the options .*betas"):
        lw.load({"model": model, "optimizer": kind(model.parameters(), lr=0.1)}, saved)


def test_a_parameter_that_the_source_does_not_step_is_missing(saved: str, tmp_path: Path) -> None:
    model = net()
    path = lw.save(
        {"model": model, "optimizer": stepped(model, torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9))},
        tmp_path / "part.safetensors",
    )
    target = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}
    assert lw.plan(target, path).missing == ["optimizer.state.model.2.weight", "optimizer.state.model.2.bias"]


def test_state_that_the_source_does_not_have_is_kept(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = adam(model)
    lw.load({"m": model, "o": optimizer}, lw.save({"m": model}, tmp_path / "a.safetensors"), allow={"missing"})
    assert len(optimizer.state) == 2


def test_state_is_cast_with_its_parameter(saved: str) -> None:
    model = net().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    lw.load({"model": model, "optimizer": optimizer}, saved, cast=True)
    state = optimizer.state[model[0].weight]
    assert state["exp_avg"].dtype == torch.bfloat16
    stepped(model, optimizer)


def test_step_counts_are_not_cast_and_state_that_would_overflow_is_refused(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("size", [(4, 4), (4, 3)])
def test_state_is_transposed_with_its_parameter(size: tuple[int, int], tmp_path: Path) -> None:
    from transformers.pytorch_utils import Conv1D

    a, b = wrapped(nn.Linear(*size)), wrapped(Conv1D(size[1], size[0]))
    optimizer, target = adam(a), torch.optim.Adam(b.parameters())
    lw.load({"m": b, "o": target}, lw.save({"m": a, "o": optimizer}, tmp_path / "a.safetensors"))
    assert torch.equal(a.fc.weight.T, b.fc.weight)
    for key in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(optimizer.state[a.fc.weight][key].T, target.state[b.fc.weight][key])


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


@pytest.mark.parametrize("rename", [[("encoder", "backbone")], lambda name: name.replace("encoder", "backbone")])
def test_state_is_renamed_with_its_parameter_by_patterns_and_functions(rename: Any, tmp_path: Path) -> None:
    a, b = nn.ModuleDict({"encoder": nn.Linear(3, 3)}), nn.ModuleDict({"backbone": nn.Linear(3, 3)})
    optimizer, target = adam(a), torch.optim.Adam(b.parameters())
    lw.load({"m": b, "o": target}, lw.save({"m": a, "o": optimizer}, tmp_path / "a.safetensors"), rename=rename)
    assert len(target.state) == 2


def test_state_of_a_tied_parameter_is_found_by_any_of_its_names(tmp_path: Path) -> None:
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


def test_numbered_state_whose_shapes_contradict_the_order_is_an_error(tmp_path: Path) -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.AdamW([model.weight, model.bias])
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    swapped = torch.optim.AdamW([model.bias, model.weight])
    with pytest.raises(lw.LoadError, match=r"exp_avg of model.bias is 4×3 in the .*, but model.bias is 4 in the model"):
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


def test_the_state_of_adam_loaded_into_adamw_leaves_it_adamw(tmp_path: Path) -> None:
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    path = lw.save({"m": a, "o": adam(a, weight_decay=0.1)}, tmp_path / "a.safetensors")
    target = torch.optim.AdamW(b.parameters())
    lw.load({"m": b, "o": target}, path)
    assert target.param_groups[0]["decoupled_weight_decay"]
    assert target.param_groups[0]["weight_decay"] == 0.1


def test_lbfgs_after_its_first_step_and_groups_without_parameters_come_back(tmp_path: Path) -> None:
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


def test_an_option_that_is_an_object_of_an_unknown_class_is_refused(tmp_path: Path) -> None:
    import datetime

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = optimizer.state_dict()
    state["param_groups"][0]["lr"] = datetime.date(2026, 1, 31)
    torch.save({"m": model.state_dict(), "o": state}, tmp_path / "a.pt")
    with pytest.raises(lw.LoadError, match=r"o\.param_groups\.0\.lr is <datetime\.date, not loaded>"):
        lw.load({"m": model, "o": optimizer}, tmp_path / "a.pt")
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_damaged_state_is_not_given_to_an_optimizer(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    path = Path(lw.save({"optimizer": adam(model)}, tmp_path / "o.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    new = torch.optim.Adam(model.parameters())
    with pytest.raises(lw.ChecksumError, match="is damaged"):
        lw.load({"optimizer": new}, path)
    assert not new.state


# -- which parameter numbered state belongs to -----------------------------------------------------------------


class Three(nn.Module):
    """Three matrices of one shape, so that shapes do not reveal a wrong match."""

    def __init__(self) -> None:
        super().__init__()
        self.w0, self.w1, self.w2 = (nn.Parameter(torch.full((2, 2), float(number))) for number in range(3))


def three(groups: list[str], kind: Any = torch.optim.AdamW, **options: Any) -> tuple[Three, Any]:
    model = Three()
    listed = [{"params": [getattr(model, name) for name in group.split()]} for group in groups]
    optimizer = kind(listed, lr=0.1, **options)
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, number + 1.0)
    optimizer.step()
    return model, optimizer


GROUPS = ["w2", "w0 w1"]


@pytest.mark.parametrize("other", [["w0 w1 w2"], ["w0 w1", "w2"], ["w2", "w0", "w1"], ["w2 w0", "w1"]])
@pytest.mark.parametrize("is_live", [False, True])
def test_numbered_state_is_refused_if_the_groups_have_other_sizes(
    other: list[str], is_live: bool, tmp_path: Path
) -> None:
    model, optimizer = three(GROUPS)
    source: Any = optimizer
    if not is_live:
        torch.save({"m": model.state_dict(), "o": optimizer.state_dict()}, tmp_path / "a.pt")
        source = tmp_path / "a.pt"
    model, target = three(other)
    before = {parameter: state["exp_avg"].clone() for parameter, state in target.state.items()}
    things = target if is_live else {"m": model, "o": target}
    with pytest.raises(
        lw.LoadError, match=r"only numbered, and their groups differ: 1 \+ 2 .* with the same groups, or"
    ):
        lw.load(things, source)
    assert all(torch.equal(target.state[parameter]["exp_avg"], state) for parameter, state in before.items())


def test_numbered_state_loads_into_the_same_groups_and_named_state_into_any(tmp_path: Path) -> None:
    model, optimizer = three(GROUPS)
    torch.save({"m": model.state_dict(), "o": optimizer.state_dict()}, tmp_path / "a.pt")
    path = lw.save({"m": model, "o": optimizer}, tmp_path / "a.safetensors")
    for source, groups in (
        (tmp_path / "a.pt", GROUPS),
        (path, GROUPS),
        (path, ["w0 w1 w2"]),
        (path, ["w1", "w2", "w0"]),
    ):
        other, target = three(groups)
        target.state.clear()
        lw.load({"m": other, "o": target}, source)
        for one, value in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(target.state[value]["exp_avg"], optimizer.state[one]["exp_avg"])


def test_an_lbfgs_whose_parameters_are_in_another_order_is_refused(tmp_path: Path) -> None:
    model = Three()
    optimizer = torch.optim.LBFGS(list(model.parameters()))

    def loss() -> Any:
        optimizer.zero_grad()
        total = sum((parameter - 5).square().sum() * number for number, parameter in enumerate(model.parameters(), 1))
        total.backward()
        return total

    optimizer.step(loss)
    path = lw.save({"m": model, "o": optimizer}, tmp_path / "a.safetensors")
    same, other = Three(), Three()
    again = torch.optim.LBFGS(list(same.parameters()))
    lw.load({"m": same, "o": again}, path)
    assert torch.equal(again.state[same.w0]["prev_flat_grad"], optimizer.state[model.w0]["prev_flat_grad"])
    turned = torch.optim.LBFGS(list(other.parameters())[::-1])
    with pytest.raises(lw.LoadError, match=r"or are in another order; torch\.LBFGS joins them in one vector"):
        lw.load({"m": other, "o": turned}, path)


# -- another kind of optimizer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("allow", [(), {"missing", "unexpected"}])
@pytest.mark.parametrize("by", ["lw.save", "torch.save", "live"])
@pytest.mark.parametrize("groups", [GROUPS, ["w0 w1 w2"]])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop, torch.optim.NAdam, torch.optim.Adadelta])
def test_state_of_another_kind_of_optimizer_is_refused_in_any_groups(
    kind: Any, groups: list[str], by: str, allow: Any, tmp_path: Path
) -> None:
    model, optimizer = three(GROUPS)
    source: Any = {"m": model, "o": optimizer}
    if by == "lw.save":
        source = lw.save(source, tmp_path / "a.safetensors")
    elif by == "torch.save":
        torch.save({name: each.state_dict() for name, each in source.items()}, tmp_path / "a.pt")
        source = tmp_path / "a.pt"
    other, target = three(groups, kind)
    target.state.clear()
    with pytest.raises(lw.LoadError):
        lw.load({"m": other, "o": target}, source, allow=allow)
    assert not target.state


def test_the_optimizers_of_two_libraries_with_one_name_differ(tmp_path: Path) -> None:
    class AdamW(torch.optim.SGD):
        pass

    AdamW.__module__ = "library.optimizers"
    model, optimizer = three(GROUPS)
    path = lw.save({"m": model, "o": optimizer}, tmp_path / "a.safetensors")
    with pytest.raises(lw.LoadError, match=r"o is library.*AdamW in the model, but .* has another kind of optimizer"):
        lw.load({"m": model, "o": AdamW(model.parameters(), lr=0.1)}, path)


def test_options_that_need_state_that_was_not_saved_are_refused(tmp_path: Path) -> None:
    model, optimizer = three(GROUPS)
    path = lw.save({"m": model, "o": optimizer}, tmp_path / "a.safetensors")
    other, target = three(["w0 w1 w2"], amsgrad=True)
    with pytest.raises(lw.LoadError, match="group 0 of o needs state called max_exp_avg_sq for its options"):
        lw.load({"m": other, "o": target}, path)
    other, target = three(GROUPS, amsgrad=True)  # which gets the options of the same groups, too
    lw.load({"m": other, "o": target}, path)
    assert not target.param_groups[0]["amsgrad"]


# -- optimizers of models without memory -----------------------------------------------------------------------


def lazy_net() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))


def meta_net() -> nn.Module:
    with torch.device("meta"):
        return net()


@pytest.mark.parametrize("make", [lazy_net, meta_net])
@pytest.mark.parametrize("way", ["together", "by torch.save", "the model alone", "a file for each"])
def test_the_optimizer_steps_the_parameters_that_the_model_has_after_a_load(
    make: Any, way: str, tmp_path: Path
) -> None:
    saved = net()
    trained = {"model": saved, "optimizer": stepped(saved, torch.optim.AdamW(saved.parameters()))}
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())
    target: Any = {"model": model, "optimizer": optimizer}
    if way == "together":
        lw.load(target, lw.save(trained, tmp_path / "a.safetensors"))
    elif way == "by torch.save":
        torch.save({name: each.state_dict() for name, each in trained.items()}, tmp_path / "a.pt")
        lw.load(target, tmp_path / "a.pt")
    elif way == "the model alone":
        lw.load(lw.tree(target)["model"], lw.save(saved, tmp_path / "a.safetensors"))
    else:
        saved.zero_grad()
        states = torch.optim.AdamW(saved.parameters())
        files = {
            "optimizer": lw.save(states, tmp_path / "o.safetensors"),
            "model": lw.save(saved, tmp_path / "m.safetensors"),
        }
        lw.load(dict(reversed(target.items())), files)
    assert [id(value) for value in optimizer.param_groups[0]["params"]] == [id(value) for value in model.parameters()]
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), saved.parameters(), strict=True))
    before = [value.detach().clone() for value in model.parameters()]
    stepped(model, optimizer)
    assert not all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))


def test_an_optimizer_that_would_step_other_parameters_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = meta_net()
    target = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    source = net()
    monkeypatch.setattr(TorchStepping, "exchange", lambda *what: None)
    with pytest.raises(lw.LoadError, match=r"the optimizer steps another parameter than model\.0\.weight of the model"):
        lw.load(lw.tree(target)["model"], source)


# -- gradients that are being accumulated ----------------------------------------------------------------------


KINDS = [
    (torch.optim.AdamW, {}), (torch.optim.Adam, {"amsgrad": True}), (torch.optim.Adam, {"weight_decay": 0.1}),
    (torch.optim.RMSprop, {}), (torch.optim.Adagrad, {}), (torch.optim.SGD, {"momentum": 0.9}), (torch.optim.NAdam, {}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_gradients_that_a_step_has_used_are_not_reported(kind: Any, options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = net()
    optimizer = kind(model.parameters(), lr=0.01, **options)
    for number in range(60):
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        (model(torch.randn(8, 3)) * 10 ** (number % 4)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if number % 10 == 9:
            lw.save({"model": model, "optimizer": optimizer}, tmp_path / "a.safetensors")


@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize(("kind", "options"), KINDS[:2] + KINDS[3:5])
def test_gradients_that_no_step_has_used_are_a_warning(
    kind: Any, options: dict[str, Any], steps: int, tmp_path: Path
) -> None:
    model = net()
    optimizer = kind(model.parameters(), lr=0.01, **options)
    for _ in range(steps):
        stepped(model, optimizer)
        optimizer.zero_grad()
    for _ in range(4):
        (30 * model(torch.ones(5, 3)) + 30).square().mean().backward()
    with pytest.warns(UserWarning, match=r"gradients that no optimizer\.step\(\) has used yet are not saved"):
        lw.save({"model": model, "optimizer": optimizer}, tmp_path / "a.safetensors")
    optimizer.step()
    lw.save({"model": model, "optimizer": optimizer}, tmp_path / "a.safetensors")
