"""Models over several devices, streams and processes. Without a GPU, the same tests run on the CPU alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kernels.gpu import DEVICE
from torch import nn

import leafwise as lw
from leafwise.homes.torch.gpu import launching, pinned

ON_GPU = DEVICE.type == "cuda"
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
pytestmark = pytest.mark.usefixtures("triton_runs")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(50, 32), nn.Linear(32, 48), nn.ReLU(), nn.Conv2d(3, 8, 3), nn.Linear(48, 32).bfloat16()
    )


def spread(whole: nn.Sequential) -> nn.Sequential:
    """The model with every other layer on the device, as `device_map` splits a model."""
    for layer in list(whole)[::2]:
        layer.to(DEVICE)
    whole[3].to(DEVICE)
    return whole


def values_of(whole: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu() for name, value in whole.state_dict().items()}


def equal(first: nn.Module, second: nn.Module) -> bool:
    here, there = values_of(first), values_of(second)
    return here.keys() == there.keys() and all(torch.equal(here[name], there[name]) for name in here)


def test_statistics_of_a_model_over_two_devices_are_those_of_one_device() -> None:
    expected, found = lw.stats(model()), lw.stats(spread(model()))
    assert list(expected) == list(found)
    for name in expected:
        assert (found[name].count, found[name].min, found[name].max) == (
            expected[name].count, expected[name].min, expected[name].max,
        )  # fmt: skip
        assert found[name].l2 == pytest.approx(expected[name].l2, rel=1e-5)


def test_a_model_over_two_devices_is_compared_with_one_on_the_cpu() -> None:
    here, there = model(), spread(model())
    assert lw.diff(here, there).same
    with torch.no_grad():
        there[0].weight[3, 4] += 1
        there[1].bias[2] = float("nan")
    for first, second in ((here, there), (there, here)):
        changes = {change.path: change.comparison for change in lw.diff(first, second).of("changed")}
        assert list(changes) == ["0.weight", "1.bias"]
        weight, bias = changes.values()
        assert weight is not None
        assert bias is not None
        assert (weight.changed, bias.changed, bias.nonfinite_changed) == (1, 1, 1)
        assert weight.largest == pytest.approx(1, rel=1e-6)


def test_findings_in_a_model_over_two_devices_are_those_of_one_device() -> None:
    def faulty(whole: nn.Sequential) -> list[str]:
        with torch.no_grad():
            whole[0].weight[7] = whole[0].weight[9]
            whole[1].weight[5] = 0
            whole[4].bias[1] = float("inf")
        return [str(finding) for finding in lw.check(whole)]

    expected = faulty(model())
    assert len(expected) >= 3
    assert faulty(spread(model())) == expected


def test_initial_values_do_not_depend_on_the_device() -> None:
    rules = [lw.Rule("**", init="normal", std=0.02), lw.Rule("3.*", init="uniform", low=-1, high=1)]
    assert equal(lw.initialize(model(), rules), lw.initialize(spread(model()), rules))


@pytest.mark.parametrize("verify", [True, False])
def test_a_checkpoint_goes_from_and_to_two_devices(tmp_path: Path, verify: bool) -> None:
    saved = spread(model())
    path = lw.save(saved, tmp_path / "model.safetensors")
    assert lw.verify(path)
    target = spread(model())
    with torch.no_grad():
        for value in target.parameters():
            value.zero_()
    lw.load(target, path, verify=verify)
    assert equal(saved, target)
    assert [value.device for value in target.parameters()] == [value.device for value in saved.parameters()]
    background = lw.save(saved, tmp_path / "background.safetensors", background=True)
    with torch.no_grad():
        for value in saved.parameters():
            value.fill_(7)
    assert lw.diff(path, background.wait()).same


def test_gradients_on_two_devices_are_clipped_together() -> None:
    here, there = model(), spread(model())
    for whole in (here, there):
        for number, value in enumerate(whole.parameters()):
            value.grad = torch.full_like(value, 0.1 * (number + 1))
    expected, found = lw.clip(here, 1.0), lw.clip(there, 1.0)
    assert found.total == pytest.approx(expected.total, rel=1e-5)
    for first, second in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(first.grad, second.grad.cpu(), rtol=1e-2, atol=1e-6)  # type: ignore[union-attr]


def test_without_pinned_memory_every_verb_works_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refused(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if pin_memory:
            asked.append(size)
            raise RuntimeError("CUDA error: out of memory")
        return empty(*size, **options)

    empty = torch.empty
    monkeypatch.setattr(pinned.torch, "empty", refused)
    saved, target = model().to(DEVICE), model().to(DEVICE)
    with torch.no_grad():
        target[1].weight.zero_()
    path = lw.save(saved, tmp_path / "model.safetensors")
    lw.load(target, path)
    assert equal(saved, target)
    assert lw.diff(saved, target).same
    assert lw.diff(target, path).same
    assert lw.stats(target)["1.weight"].max == saved[1].weight.max().item()
    for value in target.parameters():
        value.grad = torch.ones_like(value)
    assert lw.clip(target, 1.0).total == pytest.approx(sum(map(torch.numel, target.parameters())) ** 0.5)
    assert equal(lw.initialize(target), lw.initialize(model()))
    assert bool(asked) == ON_GPU


def test_what_would_be_captured_instead_of_done_is_refused_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def tied() -> nn.ModuleDict:
        net = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 4, bias=False)})
        return lw.tie(net, "b.weight", to="a.weight", keep="source")

    net = tied()
    average = lw.Average(net, decay=0.5)
    average.update()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for call in (average.update, lambda: lw.Average(net), lambda: lw.untie(net, "b.weight"), tied):
        with pytest.raises(lw.WalkError, match="while a CUDA graph is being captured"):
            call()
    with pytest.raises(lw.WalkError, match="cannot average while a CUDA graph"), average.applied():
        pass
    assert average.updates == 1
    assert net["b"].weight is net["a"].weight


def out_of_memory(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 1 GiB.")


def test_without_memory_on_the_device_statistics_are_computed_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "KERNEL_DEVICES", frozenset({DEVICE.type}))
    monkeypatch.setattr("leafwise.kernels.triton.cuda.table_of", out_of_memory)
    whole = {"x": torch.arange(10.0, device=DEVICE) - 3}
    assert lw.stats(whole)["x"].mean == 1.5
    assert lw.stats(whole)["x"].min == -3


def test_without_memory_on_the_device_gradients_are_clipped_by_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "KERNEL_DEVICES", frozenset({DEVICE.type}))
    monkeypatch.setattr("leafwise.kernels.triton.cuda_clipping.PreparedClip", out_of_memory)
    net = nn.Linear(3, 3, bias=False, device=DEVICE)
    net.weight.grad = torch.full((3, 3), 2.0, device=DEVICE)
    assert lw.clip(net, 3.0).total == 6
    assert net.weight.grad.norm().item() == pytest.approx(3)


def test_too_little_memory_on_the_device_is_an_error_of_leafwise(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Linear(3, 3, bias=False, device=DEVICE)
    before = net.weight.detach().clone()
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "clone", out_of_memory)
        with pytest.raises(lw.WriteError) as error:
            lw.Average(net)
    assert str(error.value) == ("cannot average: CUDA out of memory. Tried to allocate 2.00 MiB; nothing was changed")
    with monkeypatch.context() as patch:
        patch.setattr("leafwise.homes.torch.values.comparing.words_of", out_of_memory)
        with pytest.raises(lw.WriteError, match="cannot compare values: CUDA out of memory"):
            lw.ties(net, equal_untied=True)
    with monkeypatch.context() as patch:
        patch.setattr(launching, "KERNEL_DEVICES", frozenset({DEVICE.type}))
        patch.setattr("leafwise.kernels.triton.cuda_drawing.draw_all", out_of_memory)
        with pytest.raises(lw.WriteError, match="cannot initialize: CUDA out of memory"):
            lw.initialize(net)
    assert torch.equal(net.weight, before)


def test_other_kinds_of_devices_do_not_run_kernels() -> None:
    for kind in ("mps", "xpu", "hpu", "meta", "cpu"):
        assert not launching.runs_kernels(torch.device(kind))


# -- only with a GPU -------------------------------------------------------------------------------------------------


@needs_gpu
def test_verbs_see_what_the_current_stream_has_queued(tmp_path: Path) -> None:
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    weight = torch.zeros(1000, 1000, device="cuda")
    other = torch.ones(1000, 1000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about a tenth of a second
        weight.fill_(1)
        found = lw.stats({"w": weight})
        assert lw.diff({"w": weight}, {"w": other}).same
        assert (found["w"].min, found["w"].max) == (1, 1)
        torch.cuda._sleep(200_000_000)
        weight.fill_(2)
        path = lw.save({"w": weight}, tmp_path / "w.safetensors")
        torch.cuda._sleep(200_000_000)
        weight.fill_(3)
        saving = lw.save({"w": weight}, tmp_path / "later.safetensors", background=True)
        weight.fill_(4)
    assert lw.stats(path)["w"].max == 2
    assert lw.stats(saving.wait())["w"].max == 3
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        weight.fill_(5)
        lw.load({"w": weight}, path)
    torch.cuda.synchronize()
    assert weight.max() == 2


@needs_gpu
@pytest.mark.parametrize("verb", ["stats", "diff", "check", "save", "load", "initialize", "clip", "image", "numpy"])
def test_a_verb_during_the_capture_of_a_graph_is_an_error(tmp_path: Path, verb: str) -> None:
    net = nn.Linear(8, 8, device="cuda")
    net.weight.grad = torch.ones_like(net.weight)
    path = lw.save(net, tmp_path / "net.safetensors")
    calls = {
        "stats": lambda: lw.stats(net).total,
        "diff": lambda: lw.diff(net, net),
        "check": lambda: lw.check(net),
        "save": lambda: lw.save(net, tmp_path / "other.safetensors"),
        "load": lambda: lw.load(net, path),
        "initialize": lambda: lw.initialize(net),
        "clip": lambda: lw.clip(net, 1.0),
        "image": lambda: lw.image(net, "weight"),
        "numpy": lambda: lw.tree(net)["weight"].numpy(),
    }
    spoils_nothing(calls[verb])


@needs_gpu
@pytest.mark.parametrize("verb", ["ties", "tie", "untie", "Average", "update"])
def test_tying_and_averaging_during_the_capture_of_a_graph_is_an_error(verb: str) -> None:
    net = nn.Linear(8, 8, device="cuda")
    pair, tied = nn.ModuleDict({"a": net, "b": nn.Linear(8, 8, device="cuda")}), nn.ModuleDict({"a": net, "b": net})
    average = lw.Average(net, decay=0.5)
    calls = {
        "ties": lambda: lw.ties(pair, equal_untied=True),
        "tie": lambda: lw.tie(pair, "b.weight", to="a.weight"),
        "untie": lambda: lw.untie(tied, "b"),
        "Average": lambda: lw.Average(net),
        "update": average.update,
    }
    spoils_nothing(calls[verb])


def spoils_nothing(call: Callable[[], Any]) -> None:
    """The call is refused during a capture, and the capture goes on."""
    graph = torch.cuda.CUDAGraph()
    x = torch.zeros(8, device="cuda")
    with torch.cuda.graph(graph):
        y = x + 1
        with pytest.raises(lw.Error, match="while a CUDA graph is being captured"):
            call()
    graph.replay()  # the capture itself is not spoiled
    torch.cuda.synchronize()
    assert y.sum() == 8


def in_another_process(handed: Any, answers: Any) -> None:
    weight = handed.get()
    answers.put((lw.stats({"w": weight})["w"].max, lw.diff({"w": weight}, {"w": weight.clone()}).same))
    lw.initialize({"w": weight}, [lw.Rule("w", init="constant", value=5.0)])
    torch.cuda.synchronize()
    answers.put("filled")


@needs_gpu
def test_a_tensor_of_another_process_is_a_tensor() -> None:
    processes = torch.multiprocessing.get_context("spawn")
    handed, answers = processes.Queue(), processes.Queue()
    process = processes.Process(target=in_another_process, args=(handed, answers))
    process.start()
    weight = torch.full((64, 64), 3.0, device="cuda")
    handed.put(weight)
    assert answers.get(timeout=120) == (3.0, True)
    assert answers.get(timeout=120) == "filled"
    process.join()
    assert weight.min() == weight.max() == 5


@needs_gpu
def test_too_little_memory_on_the_device_changes_nothing(tmp_path: Path) -> None:
    path = lw.save({"w": torch.zeros(1 << 26)}, tmp_path / "w.safetensors")  # 256 MiB
    with torch.device("meta"):
        empty = nn.ParameterDict({"w": nn.Parameter(torch.empty(1 << 26))})
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / total)
        with torch.device("cuda"), pytest.raises(lw.LoadError, match="nothing was changed"):
            lw.load(empty, path)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert empty["w"].is_meta
    with torch.device("cuda"):
        assert lw.load(empty, path)["w"].device.type == "cuda"
