"""`lw.uses`: the gradient of a parameter, use by use."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tools.tie_table import Autoencoder, LanguageModel
from torch import nn
from torch.nn import functional as F  # noqa: N812  # noqa: N812
from torch.utils.checkpoint import checkpoint

import leafwise as lw


def adds_up(uses: Any, model: nn.Module) -> None:
    for leaf in lw.tree(model):
        if leaf.trainable and leaf.grad is not None:
            total = uses[leaf.path].total()
            torch.testing.assert_close(
                total.to_dense() if total.is_sparse else total,
                leaf.grad.to_dense() if leaf.grad.is_sparse else leaf.grad,
            )


def listed(uses: Any, path: str = "weight") -> list[str]:
    return [str(use) for use in uses[path]]


class Functional(nn.Module):
    """Reads a parameter that belongs to another module."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4, sparse=sparse)
        self.mix = nn.Linear(4, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.mix(self.embed(tokens))
        return F.linear(h, self.embed.weight) + (self.embed.weight * 0.1).sum() + F.linear(h, self.embed.weight)


def test_every_entry_into_an_operation_is_a_use() -> None:
    torch.manual_seed(0)
    model = Functional()
    with lw.uses(model) as uses:
        model(torch.tensor([1, 2])).pow(2).sum().backward()
    assert listed(uses, "embed.weight") == [
        "embed call 0: embedding",
        "(root) call 0: linear",
        "(root) call 0: mul",
        "(root) call 0: linear (2)",
    ]
    assert listed(uses, "mix.weight") == ["mix call 0: linear"]
    adds_up(uses, model)
    # Each gradient is the same as if the other uses had tensors of their own.
    apart = [model.embed.weight.detach().clone().requires_grad_() for _ in range(4)]
    h = model.mix(F.embedding(torch.tensor([1, 2]), apart[0]))
    (F.linear(h, apart[1]) + (apart[2] * 0.1).sum() + F.linear(h, apart[3])).pow(2).sum().backward()
    for gradient, alone in zip(uses["embed.weight"].values(), apart, strict=True):
        torch.testing.assert_close(gradient, alone.grad)


def test_uses_are_found_by_any_name_by_use_and_by_module() -> None:
    model: Any = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    lw.tie(model, "head.weight", to="embed.weight", keep="source")
    with lw.uses(model) as uses:
        model["head"](model["embed"](torch.tensor([1]))).sum().backward()
    assert uses["head.weight"].keys() == uses["embed.weight"].keys()
    found = uses["embed.weight"]
    assert found[lw.Use("head", 0, "linear")] is found["head"]
    assert "head" in found
    assert len(found) == 2
    assert [str(path) for path in uses] == ["embed.weight"]
    with pytest.raises(lw.PathError, match=r"embed.weight was not used in body; its uses are: embed call 0: embedding"):
        found["body"]
    with pytest.raises(lw.PathError, match=r"embed is a module; index with one of its leaves, such as embed.weight"):
        uses["embed"]
    with pytest.raises(lw.PathError, match=r"nothing at"):
        uses["nothing"]
    assert "embed call 0" in repr(found)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.zeros(1, 3)
        for step in x:
            h = self.cell(step[None], h)
        return h


def test_a_recurrent_cell_has_a_use_for_each_step() -> None:
    torch.manual_seed(0)
    model, x = Recurrent(), torch.randn(4, 3)
    with lw.uses(model) as uses:
        model(x).sum().backward()
    assert [(use.path, use.call) for use in uses["cell.weight_hh"]] == [("cell", step) for step in range(4)]
    adds_up(uses, model)
    with pytest.raises(lw.PathError, match=r"cell.weight_hh was used 4 times in cell"):
        uses["cell.weight_hh"]["cell"]


def test_a_fused_recurrent_layer_counts_once() -> None:
    model = nn.LSTM(3, 3)
    with lw.uses(model) as uses:
        model(torch.randn(4, 1, 3))[0].sum().backward()
    assert len(uses["weight_hh_l0"]) == 1
    adds_up(uses, model)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)

    def part(self, x: torch.Tensor) -> Any:
        return torch.tanh(F.linear(self.a(torch.tanh(self.a(x))), self.b.weight))

    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(2):
            x = self.part(x) if self.reentrant is None else checkpoint(self.part, x, use_reentrant=self.reentrant)
            x = self.b(x)
        return x


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_merged(reentrant: bool) -> None:
    torch.manual_seed(0)
    plain, model = Checkpointed(None), Checkpointed(reentrant)
    model.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, requires_grad=True)
    found = []
    for one in (plain, model):
        with lw.uses(one) as uses:
            for _ in range(2):  # the second pass continues the numbering of the first
                one(x).pow(2).sum().backward()
        adds_up(uses, one)
        found.append(uses)
    for path in ("a.weight", "b.weight"):
        assert list(found[1][path]) == list(found[0][path])
        for use, gradient in found[0][path].items():
            torch.testing.assert_close(found[1][path][use], gradient)
    assert len(found[0]["a.weight"]) == 8
    assert len(found[0]["b.weight"]) == 8


class _Hidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * w

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, gradients[0] * ctx.saved_tensors[0]


def test_what_cannot_be_attributed_is_a_row_of_its_own() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> Any:
            return _Hidden.apply(x, self.w) + x * self.w

    model = Model()
    with lw.uses(model) as uses:
        model(torch.full((3,), 2.0)).sum().backward()
    assert listed(uses, "w") == ["(root) call 0: mul", "unattributed"]
    adds_up(uses, model)
    assert uses["w"].total().tolist() == [4, 4, 4]


def test_views_show_where_the_source_enters() -> None:
    model: Any = nn.ModuleDict({"encoder": nn.Linear(4, 3), "decoder": nn.Linear(3, 4)})
    lw.tie(model, "decoder.weight", to="encoder.weight", transpose=True, keep="source")
    with lw.uses(model, "encoder.weight") as uses:
        model["decoder"](model["encoder"](torch.randn(2, 4))).sum().backward()
    assert [use.path for use in uses["decoder.weight"]] == ["encoder", "decoder"]
    torch.testing.assert_close(uses["encoder.weight"].total(), model["encoder"].weight.grad)
    assert len(uses) == 1
    with pytest.raises(lw.PathError, match=r"no leaf matches"):
        lw.uses(model, "nothing.*")


def test_uses_of_a_module_in_two_places_name_its_caller() -> None:
    class Branch(nn.Module):
        def __init__(self, body: nn.Module) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: torch.Tensor) -> Any:
            return self.body(x)

    body = nn.Linear(2, 2)
    model = nn.Sequential(Branch(body), Branch(body))
    with lw.uses(model) as uses:
        model(torch.randn(1, 2)).sum().backward()
    assert [use.path for use in uses["0.body.weight"]] == ["0.body", "1.body"]


def test_sparse_half_nan_and_accumulated_gradients_add_up() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
    with lw.uses(model) as uses:
        for _ in range(3):
            model(torch.tensor([1, 4])).sum().backward()
    assert len(uses["0.weight"]) == 3
    adds_up(uses, model)
    half = nn.Linear(4, 4).to(torch.bfloat16)
    with lw.uses(half) as uses:
        sum(half(torch.randn(2, 4).bfloat16()).sum() for _ in range(20)).backward()
    assert len(uses["weight"]) == 20
    broken = nn.Linear(2, 2)
    with lw.uses(broken) as uses:
        (broken(torch.ones(1, 2)) * float("nan")).sum().backward()
    assert listed(uses, "weight") == ["(root) call 0: linear"]


def test_nothing_is_left_behind() -> None:
    model = Functional()
    before = [dict(vars(module)) for module in model.modules()]
    forward = torch.utils.checkpoint.CheckpointFunction.forward
    with pytest.raises(RuntimeError, match=r"stop"), lw.uses(model) as uses:
        raise RuntimeError("stop")
    model(torch.tensor([1])).sum().backward()
    assert len(uses["embed.weight"]) == 0
    assert uses["embed.weight"].total() is None
    assert torch.utils.checkpoint.CheckpointFunction.forward is forward
    assert [dict(vars(module)) for module in model.modules()] == before
    assert not model.embed.weight._backward_hooks
    with pytest.raises(lw.TieError, match=r"no trainable parameter"), lw.uses(nn.Linear(2, 2).requires_grad_(False)):
        pass


def test_optimizers_clipping_and_inspection_run_inside() -> None:
    model = Functional()
    optimizer = torch.optim.AdamW(model.parameters())
    with lw.uses(model) as uses:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.tensor([1])).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
        assert model.embed.weight.is_leaf
        assert model.embed.weight.grad is not None
        assert repr(model.embed.weight).startswith("Parameter")
        lw.tree(model)["embed.weight"].numpy()
    assert len(uses["embed.weight"]) == 8


def together(*works: Any) -> list[Any]:
    """Runs each function in its own thread and returns the results. `meet()` waits until all of them have called it."""
    barrier = threading.Barrier(len(works), timeout=300)
    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(work, barrier.wait) for work in works]
        return [future.result() for future in futures]


# On a GPU, backward runs in its own threads.
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # PyTorch warns in each new thread
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_threads_that_use_one_model_count_their_own_uses(reentrant: bool | None, device: str) -> None:
    torch.manual_seed(0)
    model = Checkpointed(reentrant).to(device)
    inputs = [torch.randn(2, 3, requires_grad=True, device=device) for _ in range(2)]
    expected = []
    for x in inputs:
        with lw.uses(model) as uses:
            model(x).pow(2).sum().backward()
        expected.append({path: dict(uses[path]) for path in ("a.weight", "b.weight")})

    def work(x: torch.Tensor) -> Any:
        def run(meet: Any) -> Any:
            with lw.uses(model) as uses:
                meet()
                loss = model(x).pow(2).sum()
                meet()  # both graphs exist, and both captures are active
                loss.backward()
                meet()
            return {path: dict(uses[path]) for path in ("a.weight", "b.weight")}

        return run

    for _ in range(5):
        for found, wanted in zip(together(*map(work, inputs)), expected, strict=True):
            for path, gradients in wanted.items():
                assert list(found[path]) == list(gradients)
                for use, gradient in gradients.items():
                    torch.testing.assert_close(found[path][use], gradient)


def test_a_module_that_another_thread_recomputes_is_not_the_one_that_runs_here() -> None:
    """During a call in this thread, another thread's backward recomputes a part of its forward in the same modules."""
    torch.manual_seed(0)
    model: Any = Checkpointed(True)
    cell = nn.Linear(3, 3)
    both = nn.ModuleDict({"model": model, "cell": cell})

    class Waits(nn.Module):
        def __init__(self, meet: Any) -> None:
            super().__init__()
            self.meet = meet
            self.w = cell.weight

        def forward(self, x: torch.Tensor) -> Any:
            self.meet()
            self.meet()
            return torch.matmul(x, self.w)

    def here(meet: Any) -> Any:
        waits = Waits(meet)
        outer = nn.ModuleDict({"both": both, "waits": waits})
        with lw.uses(outer) as uses:
            waits(torch.ones(2, 3)).sum().backward()
        return [str(use) for use in uses["waits.w"]]

    def elsewhere(meet: Any) -> None:
        loss = model(torch.ones(2, 3, requires_grad=True)).sum()
        stopped = [False]

        def stop(module: Any, inputs: Any) -> None:
            if not stopped[0] and torch._C._current_graph_task_id() != -1:
                stopped[0] = True
                meet()
                meet()

        handle = model.a.register_forward_pre_hook(stop)
        try:
            loss.backward()
        finally:
            handle.remove()
        assert stopped[0]

    uses, _ = together(here, elsewhere)
    assert uses == ["waits call 0: matmul"]


def test_the_gradients_of_a_thread_that_captures_nothing_are_its_own() -> None:
    model = nn.Linear(3, 3, bias=False)

    def captures(meet: Any) -> Any:
        with lw.uses(model) as uses:
            loss = model(model(torch.ones(1, 3))).sum()
            meet()
            meet()
            loss.backward()
        return [str(use) for use in uses["weight"]]

    def trains(meet: Any) -> None:
        meet()
        model(torch.ones(1, 3)).sum().backward()
        meet()

    assert together(captures, trains)[0] == ["(root) call 0: linear", "(root) call 1: linear"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_a_backward_that_is_handed_to_another_thread_is_counted(reentrant: bool | None, device: str) -> None:
    torch.manual_seed(0)
    model, x = Checkpointed(reentrant).to(device), torch.randn(2, 3, requires_grad=True, device=device)
    with lw.uses(model) as here:
        model(x).sum().backward()
    model.zero_grad()
    with lw.uses(model) as handed, ThreadPoolExecutor(1) as pool:
        pool.submit(model(x).sum().backward).result()
    adds_up(handed, model)
    for path in ("a.weight", "b.weight"):
        assert list(handed[path]) == list(here[path])


def test_captures_may_end_in_any_order() -> None:
    function = torch.utils.checkpoint.CheckpointFunction
    before = function.forward, function.backward
    model, x = Checkpointed(True), torch.ones(2, 3, requires_grad=True)

    def first(meet: Any) -> None:
        with lw.uses(model):
            meet()
        meet()
        meet()

    def second(meet: Any) -> Any:
        meet()
        with lw.uses(model) as uses:
            meet()
            model(x).sum().backward()
        meet()
        return len(uses["a.weight"]), len(uses["b.weight"])

    def overlapping(meet: Any) -> Any:  # starts while the first is active, and ends after it
        with lw.uses(model) as uses:
            meet()
            meet()
            model(x).sum().backward()
        meet()
        return len(uses["a.weight"]), len(uses["b.weight"])

    assert together(first, second, overlapping)[1:] == [(4, 4), (4, 4)]
    assert (function.forward, function.backward) == before


def test_a_capture_inside_another_of_the_same_thread_sees_the_same_uses() -> None:
    inner_model = Checkpointed(True)
    outer_model = nn.ModuleDict({"inner": inner_model})
    x = torch.ones(2, 3, requires_grad=True)
    with lw.uses(outer_model) as outer, lw.uses(inner_model) as inner:
        inner_model(x).sum().backward()
    adds_up(inner, inner_model)
    for path in ("a.weight", "b.weight"):
        short = [(use.path, use.call, use.operation) for use in inner[path]]
        assert [(f"inner.{at}" if at else "inner", *rest) for at, *rest in short] == [
            (use.path, use.call, use.operation) for use in outer[f"inner.{path}"]
        ]


def test_properties_renormalized_tables_and_transforms_count_as_uses() -> None:
    model = Autoencoder()
    with lw.uses(model) as uses:
        code = F.linear(torch.ones(1, 4), model.encoder.weight)
        F.linear(code, model.encoder.weight.T).sum().backward()
    assert listed(uses, "encoder.weight") == ["(root) call 0: linear", "(root) call 0: T"]
    table = nn.Embedding(10, 4, max_norm=0.5)
    with lw.uses(table) as uses:
        table(torch.tensor([1, 2])).sum().backward()
    assert torch.equal(uses["weight"].total(), table.weight.grad)
    layer = nn.Linear(3, 3)
    with lw.uses(layer):
        torch.func.vmap(layer)(torch.ones(2, 3))
        torch.func.jacrev(layer)(torch.ones(3))
        torch.func.grad(lambda x: layer(x).sum())(torch.ones(3))


def test_uses_of_mixed_sparse_and_dense_of_complex_and_nested_captures_add_up() -> None:
    model: Any = LanguageModel()
    model.embed = nn.Embedding(10, 4, sparse=True)
    lw.tie(model, "head.weight", to="embed.weight", keep="source")
    with lw.uses(model) as uses:
        model(torch.tensor([1, 2])).sum().backward()
    torch.testing.assert_close(uses["embed.weight"].total(), model.embed.weight.grad.to_dense())
    waves: Any = nn.Module()
    waves.w = nn.Parameter(torch.randn(3, 3, dtype=torch.complex64))
    with lw.uses(waves) as uses:
        ((waves.w * 2j).abs().sum() + (waves.w.T * 1j).real.sum()).backward()
    torch.testing.assert_close(uses["w"].total(), waves.w.grad)
    layer = nn.Linear(3, 3)
    with lw.uses(layer) as outer, lw.uses(layer) as inner:
        layer(torch.ones(1, 3)).sum().backward()
    assert listed(outer) == listed(inner) == ["(root) call 0: linear"]
    with inner:
        layer(torch.ones(1, 3)).sum().backward()
    assert listed(inner) == ["(root) call 0: linear"]


def test_a_thread_that_runs_the_model_meanwhile_does_not_change_uses() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    stop = threading.Event()

    def evaluate() -> None:
        with torch.no_grad():
            while not stop.is_set():
                model(torch.ones(1, 3))

    thread = threading.Thread(target=evaluate)
    thread.start()
    try:
        for _ in range(50):
            with lw.uses(model) as uses:
                model(torch.ones(1, 3)).sum().backward()
            assert listed(uses, "0.weight") == ["0 call 0: linear"]
            assert listed(uses, "1.weight") == ["1 call 0: linear"]
    finally:
        stop.set()
        thread.join()


def test_lazy_layers_are_refused_until_they_have_a_shape() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LazyLinear(2))
    with pytest.raises(lw.TieError, match=r"1\.weight has no shape until the first forward"), lw.uses(model):
        pass
    model(torch.ones(1, 2))
    with lw.uses(model) as uses:
        model(torch.ones(1, 2)).sum().backward()
    assert len(uses["1.weight"]) == 1
