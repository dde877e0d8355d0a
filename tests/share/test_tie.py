"""`lw.tie`: what a tie is, what works with it, and what is refused."""

import codecs
import copy
import locale
import warnings
from typing import Any

import pytest
import torch
from tests.contract import toy
from tests.share.models import names, tied_autoencoder, undone_names, view_model
from tools.tie_table import Autoencoder, FusedAttention, LanguageModel, SharedLayers
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import leafwise as lw


def snapshot(model: nn.Module) -> list[Any]:
    """Everything that a failed verb must leave alone."""
    return [
        (id(module), type(module), set(vars(module)), {name: id(p) for name, p in module._parameters.items()})
        for module in model.modules()
    ] + [value.clone() for value in model.state_dict().values()]


def unchanged(model: nn.Module, before: list[Any]) -> bool:
    for now, then in zip(snapshot(model), before, strict=True):
        if not (torch.equal(now, then) if isinstance(now, torch.Tensor) else now == then):
            return False
    return True


# -- what a tie is -----------------------------------------------------------------------------------------


def test_a_tied_parameter_exists_counts_and_is_edited_once() -> None:
    model = LanguageModel()
    parameters = lw.tree(model).counts.parameters
    assert lw.tie(model, "head.weight", to="embed.weight", keep="source") is model
    assert model.head.weight is model.embed.weight
    assert type(model.head) is nn.Linear
    assert [name for name, _ in model.named_parameters()] == ["embed.weight", "block.weight", "block.bias"]
    assert lw.tree(model).counts.parameters == parameters - 40
    model.head.weight.data[3, 2] = 7
    assert model.embed.weight[3, 2] == 7
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    assert len(optimizer.param_groups[0]["params"]) == 3


@pytest.mark.parametrize(("keep", "value"), [("source", 1.0), ("target", 3.0), ("mean", 2.0)])
def test_keep_chooses_between_values_that_differ(keep: Any, value: float) -> None:
    model = LanguageModel()
    nn.init.constant_(model.embed.weight, 1.0)
    nn.init.constant_(model.head.weight, 3.0)
    embed = model.embed.weight
    lw.tie(model, "head.weight", to="embed.weight", keep=keep)
    assert model.embed.weight is embed
    assert model.head.weight.unique().tolist() == [value]
    auto = Autoencoder()
    nn.init.constant_(auto.encoder.weight, 1.0)
    nn.init.constant_(auto.decoder.weight, 3.0)
    lw.tie(auto, "decoder.weight", to="encoder.weight", transpose=True, keep=keep)
    assert auto.encoder.weight.unique().tolist() == [value]


def test_equal_values_need_no_choice() -> None:
    model = LanguageModel()
    model.head.load_state_dict({"weight": model.embed.weight.detach()})
    lw.tie(model, "head.weight", to="embed.weight")
    assert names(model) == [["embed.weight", "head.weight"]]
    lw.tie(model, "head.weight", to="embed.weight")  # a second call changes nothing
    assert names(model) == [["embed.weight", "head.weight"]]


def test_the_leaf_that_comes_later_may_be_the_source() -> None:
    model = LanguageModel()
    head = model.head.weight
    lw.tie(model, "embed.weight", to="head.weight", keep="source")
    assert model.embed.weight is head
    model.to("meta").to_empty(device="cpu")
    assert model.embed.weight is model.head.weight


def test_globs_and_queries_tie_many() -> None:
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)])
    lw.tie(model, "{1..3}.weight", to="0.weight", keep="mean")
    assert names(model) == [[f"{n}.weight" for n in range(4)]]
    lw.tie(model, lw.where(role="bias"), to="2.bias", keep="source")
    assert names(model) == [[f"{n}.weight" for n in range(4)], [f"{n}.bias" for n in range(4)]]
    assert len(list(model.parameters())) == 2


def test_modules_are_tied_leaf_by_leaf_and_stay_themselves() -> None:
    model = SharedLayers()
    layers = [layer.attn for layer in model.layers]
    lw.tie(model, "layers.*.attn", to="layers.0.attn", keep="source")
    assert [layer.attn for layer in model.layers] == layers
    assert len(names(model)) == 4
    assert model.layers[1].norm.weight is not model.layers[0].norm.weight
    batch = nn.ModuleDict({"a": nn.BatchNorm1d(2), "b": nn.BatchNorm1d(2)})
    lw.tie(batch, "b", to="a")
    assert batch["a"].running_mean is batch["b"].running_mean
    batch.half()
    assert batch["a"].running_mean is batch["b"].running_mean
    batch["a"](torch.randn(4, 2).half())
    assert batch["b"].num_batches_tracked == 1


def test_a_view_is_live_and_the_module_is_still_what_it_was() -> None:
    model = lw.tie(Autoencoder(), "decoder.weight", to="encoder.weight", transpose=True, keep="source")
    decoder = model.decoder
    assert isinstance(decoder, nn.Linear)
    assert lw.tree(model)["decoder.weight"].owner == "Linear"
    assert len(lw.tree(model).select(lw.where(owner="Linear"))) == 3
    assert [node.type for node in lw.tree(model).nodes] == ["Autoencoder", "Linear", "Linear"]
    assert torch.equal(decoder.weight, model.encoder.weight.T)
    assert lw.tree(model)["decoder.weight"].role == "linear.weight"
    with torch.no_grad():
        decoder.weight[1, 2] = 5
    assert model.encoder.weight[2, 1] == 5
    lw.tree(model)["decoder.weight"].write(torch.ones(4, 3))
    assert (model.encoder.weight == 1).all()
    model.encoder.weight = nn.Parameter(torch.zeros(3, 4))
    assert not decoder.weight.any()
    decoder.reset_parameters()  # writes in place
    assert torch.equal(decoder.weight, model.encoder.weight.T)
    assert lw.tree(decoder)["weight"].shape == (4, 3)


def test_assigning_to_a_view_says_to_untie_first() -> None:
    model = lw.tie(Autoencoder(), "decoder.weight", to="encoder.weight", transpose=True, keep="source")
    with pytest.raises(
        lw.TieError, match=r'decoder.weight is encoder.weight.T: .* lw.untie\(model, "decoder.weight"\)'
    ):
        model.decoder.weight = nn.Parameter(torch.zeros(4, 3))
    with pytest.raises(lw.TieError, match=r"untie it first"):
        del model.decoder.weight
    with pytest.raises(lw.TieError, match=r"untie it first"):
        model.decoder.register_parameter("weight", None)
    model.decoder.bias = nn.Parameter(torch.zeros(4))
    model.decoder.extra = 3
    del model.decoder.extra
    del model.encoder.weight
    with pytest.raises(lw.TieError, match=r"decoder.weight is a view of encoder.weight, which no longer exists"):
        model.decoder(torch.zeros(1, 3))


def test_slices_and_orders_of_axes_can_be_tied() -> None:
    model: Any = nn.Module()
    model.whole = nn.Parameter(torch.randn(6, 4, 2))
    model.rows = nn.Parameter(torch.randn(2, 4, 2))
    model.one = nn.Parameter(torch.randn(4, 2))
    model.turned = nn.Parameter(torch.randn(2, 6, 4))
    model.steps = nn.Parameter(torch.randn(2, 3))
    lw.tie(model, "rows", to="whole", slice=slice(-2, None), keep="source")
    lw.tie(model, "one", to="whole", slice=1, keep="source")
    lw.tie(model, "turned", to="whole", transpose=(2, 0, 1), keep="source")
    lw.tie(model, "steps", to="whole", slice=(slice(0, 6, 2), 3), transpose=True, keep="source")
    assert names(model) == [
        ["whole", "rows[4:6, :, :]", "one[1, :, :]", "turned.permute(2, 0, 1)", "steps[0:6:2, 3, :].T"]
    ]
    assert torch.equal(model.rows, model.whole[4:])
    assert torch.equal(model.one, model.whole[1])
    assert torch.equal(model.turned, model.whole.permute(2, 0, 1))
    assert torch.equal(model.steps, model.whole[0:6:2, 3].T)
    again = copy.deepcopy(model)
    assert names(again) == names(model)
    assert list(again.state_dict()) == ["whole", "rows", "one", "turned", "steps"]
    for name in ("rows", "one", "turned", "steps"):
        part = copy.deepcopy(model)
        getattr(part, name).sum().backward()
        assert part.whole.grad.sum() == getattr(part, name).numel()


def test_a_tie_to_a_view_is_the_same_view() -> None:
    model: Any = nn.ModuleDict(
        {name: nn.Linear(*sizes) for name, sizes in {"a": (4, 3), "b": (3, 4), "c": (3, 4)}.items()}
    )
    lw.tie(model, "b.weight", to="a.weight", transpose=True, keep="source")
    lw.tie(model, "c.weight", to="b.weight", keep="source")
    assert names(model) == [["a.weight", "b.weight.T", "c.weight.T"]]
    with pytest.raises(lw.TieError, match=r"b.weight is itself a.weight.T; tie to the leaf"):
        lw.tie(model, "c.bias", to="b.weight", slice=0)


def test_a_tie_made_on_meta_survives_to_empty() -> None:
    with torch.device("meta"):
        model = Autoencoder()
    lw.tie(model, "decoder.weight", to="encoder.weight", transpose=True)
    assert names(model) == [["encoder.weight", "decoder.weight.T"]]
    model.to_empty(device="cpu")
    nn.init.normal_(model.encoder.weight)
    assert torch.equal(model.decoder.weight, model.encoder.weight.T)


def test_recurrent_layers_take_part_in_plain_ties() -> None:
    model: Any = nn.ModuleDict({"one": nn.LSTM(3, 3), "two": nn.LSTM(3, 3)})
    lw.tie(model, "two", to="one", keep="source")
    x = torch.randn(2, 1, 3)
    assert torch.equal(model["one"](x)[0], model["two"](x)[0])
    model.to("meta").to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    assert torch.equal(model["one"](x)[0], model["two"](x)[0])
    assert len(list(model.parameters())) == 4
    with pytest.raises(lw.TieError, match=r"belongs to a RNN, which passes its weights as a list"):
        lw.tie(
            nn.ModuleDict({"rnn": nn.RNN(3, 3), "b": nn.Linear(3, 3)}),
            "rnn.weight_hh_l0",
            to="b.weight",
            transpose=True,
        )


# -- with PyTorch's transformations of modules ----------------------------------------------------------------


# PyTorch's compiler reads its templates in the locale's encoding, and cannot be imported unless that is UTF-8.
@pytest.mark.slow
@pytest.mark.skipif(codecs.lookup(locale.getencoding()).name != "utf-8", reason="torch.compile needs a UTF-8 locale")
def test_views_work_under_compile() -> None:
    model, x = view_model()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    model(x).sum().backward()
    expected = model.encoder.weight.grad.clone()
    model.zero_grad()
    out = compiled(x)
    out.sum().backward()
    torch.testing.assert_close(out, model(x))
    torch.testing.assert_close(model.encoder.weight.grad, expected)
    model.load_state_dict({name: 2 * value for name, value in model.state_dict().items()}, assign=True)
    torch.testing.assert_close(compiled(x), model(x))
    assert names(compiled) == [["encoder.weight", "decoder.weight.T"]]
    fused: Any = FusedAttention()
    lw.tie(fused, "q.weight", to="qkv.weight", slice=slice(0, 4), keep="source")
    torch.testing.assert_close(torch.compile(fused, fullgraph=True, backend="aot_eager")(x), fused(x))


def test_views_work_under_functional_call() -> None:
    model, x = view_model()
    parameters = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    other, _ = view_model()
    other.load_state_dict(parameters)
    torch.testing.assert_close(torch.func.functional_call(model, parameters, (x,)), other(x))
    given = torch.randn(4, 3)  # a separate value for the view, in this call only
    torch.func.functional_call(model, {**parameters, "decoder.weight": given}, (x,))
    expected = nn.functional.linear(torch.relu(other.encoder(x)), given, other.decoder.bias)
    torch.testing.assert_close(
        torch.func.functional_call(model, {**parameters, "decoder.weight": given}, (x,)), expected
    )
    assert names(model) == [["encoder.weight", "decoder.weight.T"]]
    gradients = torch.func.grad(lambda p: torch.func.functional_call(model, p, (x,)).sum())(parameters)
    other(x).sum().backward()
    torch.testing.assert_close(gradients["encoder.weight"], other.encoder.weight.grad)


def test_views_work_under_autocast_export_and_tracing() -> None:
    model, x = view_model()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert model.encoder.weight.grad is not None
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), model(x))
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))


def test_views_in_data_parallel_are_refused() -> None:
    model, _ = view_model()
    with pytest.raises(
        lw.Unsupported, match=r"DataParallel cannot replicate decoder.weight, .*DistributedDataParallel"
    ):
        model.decoder._replicate_for_data_parallel()


def test_kept_models_can_be_scripted_and_exported() -> None:
    model = LanguageModel()
    lw.tie(model, "head.weight", to="embed.weight", keep="source")
    x = torch.tensor([1, 2])
    torch.testing.assert_close(torch.jit.script(model)(x), model(x))
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))


def test_a_view_follows_a_source_that_is_parametrized_or_deleted() -> None:
    model = tied_autoencoder()
    parametrizations.weight_norm(model.encoder)
    model(torch.ones(1, 4)).sum().backward()
    assert torch.equal(model.decoder.weight, model.encoder.weight.T)
    assert "decoder.weight" in model.state_dict()
    assert len(undone_names(model)) == 1
    gone = tied_autoencoder()
    del gone.encoder.weight
    lw.tree(gone)
    assert list(gone.state_dict()) == ["encoder.bias", "decoder.bias"]
    gone.decoder.weight = nn.Parameter(torch.zeros(4, 3))
    assert type(gone.decoder) is nn.Linear


def test_a_parametrization_beside_a_view_is_kept_and_one_before_it_is_refused() -> None:
    model = tied_autoencoder()
    parametrize.register_parametrization(model.decoder, "bias", nn.Tanh())
    lw.untie(model, "decoder.weight")
    model(torch.ones(1, 4))
    model.decoder.weight = nn.Parameter(torch.zeros(4, 3))
    assert not model.decoder.weight.any()
    other = Autoencoder()
    parametrize.register_parametrization(other.decoder, "bias", nn.Tanh())
    with pytest.raises(lw.TieError, match=r"belongs to a module that is parametrized; tie first, then parametrize"):
        lw.tie(other, "decoder.weight", to="encoder.weight", transpose=True, keep="source")


class Hashed(nn.Linear):
    def __hash__(self) -> int:
        return self.in_features


def test_modules_with_their_own_hash_or_apply_can_be_tied() -> None:
    model: Any = nn.ModuleDict({"a": Hashed(3, 3), "b": Hashed(3, 3)})
    lw.tie(model, "b.weight", to="a.weight", keep="source")
    again = copy.deepcopy(model)
    assert again["a"].weight is again["b"].weight
    other = LanguageModel()
    other.head.weight = other.embed.weight

    def mine(fn: Any, recurse: bool = True) -> str:
        return "mine"

    other.head.__dict__["_apply"] = mine
    lw.keep_ties(other)
    assert other.head._apply(lambda tensor: tensor) == "mine"
    lw.release_ties(other)
    assert other.head.__dict__["_apply"] is mine


# -- what is refused -------------------------------------------------------------------------------------


class _Positive(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp()


def _mixed() -> Any:
    model: Any = nn.ModuleDict(
        {
            "a": nn.Linear(3, 3),
            "b": nn.Linear(3, 3),
            "wide": nn.Linear(3, 5),
            "doubled": nn.Linear(3, 3).double(),
            "on_meta": nn.Linear(3, 3, device="meta"),
            "lazy": nn.LazyLinear(3),
            "frozen": nn.Linear(3, 3).requires_grad_(False),
            "norm": nn.BatchNorm1d(3),
            "positive": nn.Linear(3, 3),
            "odd": nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, bias=False)),
            "even": nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)),
            "list": nn.ParameterList([torch.zeros(3, 3)]),
        }
    )
    parametrize.register_parametrization(model["positive"], "weight", _Positive())
    return model


REFUSED = {
    "no such path": (("a.wieght",), {"to": "b.weight"}, r'cannot tie "a.wieght" to b.weight.*did you mean "a.weight"'),
    "no such source": (
        ("a.weight",),
        {"to": "b.wieght"},
        r'cannot tie "a.weight" to "b.wieght".*did you mean "b.weight"',
    ),
    "no such glob": (("z.*",), {"to": "b.weight"}, r"cannot tie \"z\.\*\" to b.weight: no leaf matches 'z\.\*'"),
    "to itself": (("a.weight",), {"to": "a.weight"}, r'cannot tie "a.weight" to itself'),
    "module to itself": (("a",), {"to": "a"}, r"cannot tie a to itself"),
    "a cycle of modules": (("odd.0",), {"to": "odd"}, r"cannot tie odd.0 to odd: this would be a cycle"),
    "shapes": (
        ("wide.weight",),
        {"to": "a.weight"},
        r"their shapes differ, wide.weight is 5×3 and a.weight would give 3×3",
    ),
    "shapes, transposed": (
        ("wide.weight",),
        {"to": "a.weight", "slice": slice(0, 2)},
        r"wide.weight is 5×3 and a.weight would give 2×3",
    ),
    "values": (
        ("a.weight",),
        {"to": "b.weight"},
        r'cannot tie a.weight to b.weight: their values differ; use keep="source" for the values of b.weight',
    ),
    "dtype": (
        ("doubled.weight",),
        {"to": "a.weight"},
        r"doubled.weight is float64 and a.weight is float32; cast one first: model.doubled.to\(torch.float32\)",
    ),
    "device": (
        ("on_meta.weight",),
        {"to": "a.weight"},
        r"on_meta.weight is on meta and a.weight is on cpu; give the one on meta memory",
    ),
    "lazy": (("lazy.weight",), {"to": "a.weight"}, r"lazy.weight has no shape until the first forward"),
    "frozen": (("frozen.weight",), {"to": "a.weight"}, r"frozen.weight is frozen and a.weight is not"),
    "kinds": (
        ("norm.running_mean",),
        {"to": "norm.bias"},
        r"norm.running_mean is a buffer and norm.bias is a parameter",
    ),
    "parametrized": (
        ("positive.parametrizations.weight.original",),
        {"to": "a.weight"},
        r'inside a parametrization; remove it first: .*remove_parametrizations\(model.positive, "weight"\)',
    ),
    "structures": (("odd",), {"to": "even"}, r"cannot tie odd to even: their structures differ.*even.1.bias"),
    "a leaf and a module": (
        ("a.weight",),
        {"to": "b"},
        r'cannot tie "a.weight" to b: one is a leaf, the other a module',
    ),
    "a module and a leaf": (("a",), {"to": "b.weight"}, r'cannot tie "a" to b.weight: one is a module'),
    "an op for modules": (
        ("a",),
        {"to": "b", "transpose": True},
        r"cannot tie to b: it is a module, and transpose= and slice= are for leaves",
    ),
    "transpose of a vector": (("a.bias",), {"to": "b.bias", "transpose": True}, r"transpose=True is for matrices"),
    "no order": (
        ("a.weight",),
        {"to": "b.weight", "transpose": (0, 2)},
        r"not a permutation of the 2 axes of b.weight",
    ),
    "no slice": (("a.weight",), {"to": "b.weight", "slice": "0:2"}, r"slice= for b.weight \(3×3\) takes a slice"),
    "too many slices": (("a.weight",), {"to": "b.weight", "slice": (0, 0, 0)}, r"tuple of at most 2 of them"),
    "outside": (("a.weight",), {"to": "b.weight", "slice": 7}, r"slice=7 is outside b.weight, which is 3×3"),
    "backwards": (("a.weight",), {"to": "b.weight", "slice": slice(None, None, -1)}, r"steps of 1 or more"),
    "no such keep": (("a.weight",), {"to": "b.weight", "keep": "both"}, r'keep= takes "source", "target" or "mean"'),
    "a view in a list": (("list.0",), {"to": "a.weight", "transpose": True}, r"belongs to a ParameterList"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=list(REFUSED))
def test_bad_input_is_an_error_and_nothing_changes(case: tuple[Any, Any, str]) -> None:
    args, options, message = case
    model = _mixed()
    comparable = nn.ModuleDict({name: child for name, child in model.items() if name not in ("lazy", "on_meta")})
    before = snapshot(comparable)
    with pytest.raises(lw.Error, match=message):
        lw.tie(model, *args, **options)
    assert unchanged(comparable, before)


def test_quantized_leaves_are_refused() -> None:
    model: Any = nn.Module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch is about to drop them
        model.register_buffer("q", torch.quantize_per_tensor(torch.randn(2, 2), 0.1, 0, torch.qint8))
        model.register_buffer("r", torch.quantize_per_tensor(torch.randn(2, 2), 0.2, 0, torch.qint8))
    with pytest.raises(lw.TieError, match=r"cannot tie q to r: r is quantized"):
        lw.tie(model, "q", to="r")


class NoSubclasses(nn.Linear):
    def __init_subclass__(cls, *, key: int, **options: Any) -> None:
        super().__init_subclass__(**options)


class Stubborn(nn.Linear):
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "bias" and "bias" in self.__dict__.get("_parameters", {}):
            raise RuntimeError("no")
        super().__setattr__(name, value)


def test_a_tie_that_fails_changes_nothing() -> None:
    auto: Any = Autoencoder()
    auto.decoder = NoSubclasses(3, 4)
    with pytest.raises(lw.TieError, match=r"which cannot be subclassed"):
        lw.tie(auto, "decoder.weight", to="encoder.weight", transpose=True, keep="source")
    auto(torch.ones(1, 4))
    expanded: Any = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    expanded["a"].bias = nn.Parameter(torch.zeros(1).expand(3))
    stubborn: Any = nn.ModuleDict({"a": nn.Linear(3, 3), "b": Stubborn(3, 3)})
    for model, error in ((expanded, "is expanded"), (stubborn, "no")):
        before = [p.detach().clone() for p in model.parameters()]
        held = [id(p) for p in model.parameters()]
        with pytest.raises(Exception, match=error):
            lw.tie(model, "b", to="a", keep="target")
        assert [id(p) for p in model.parameters()] == held
        assert all(torch.equal(p, then) for p, then in zip(model.parameters(), before, strict=True))


def test_an_existing_tie_is_not_broken_by_another() -> None:
    model = LanguageModel()
    lw.tie(model, "head.weight", to="embed.weight", keep="source")
    other: Any = nn.ModuleDict({"lm": model, "x": nn.Embedding(10, 4)})
    with pytest.raises(
        lw.TieError, match=r"already tied to lm.embed.weight; untie it first.*or tie all of its names at once"
    ):
        lw.tie(other, "lm.head.weight", to="x.weight", keep="source")
    lw.tie(other, "lm.{head,embed}.weight", to="x.weight", keep="source")
    assert names(other) == [["lm.embed.weight", "lm.head.weight", "x.weight"]]
    auto: Any = lw.tie(Autoencoder(), "decoder.weight", to="encoder.weight", transpose=True, keep="source")
    with pytest.raises(lw.TieError, match=r"a cycle"):
        lw.tie(auto, "encoder.weight", to="decoder.weight", transpose=True)
    with pytest.raises(lw.TieError, match=r"a cycle"):
        lw.tie(auto, "encoder.weight", to="decoder.weight")
    with pytest.raises(lw.TieError, match=r"it is already encoder.weight.T; untie it first: lw.untie"):
        lw.tie(auto, "decoder.weight", to="encoder.weight", transpose=False, keep="source")
    assert names(auto) == [["encoder.weight", "decoder.weight.T"]]


def test_keeping_the_mean_of_whole_numbers_is_an_error() -> None:
    model: Any = nn.Module()
    model.register_buffer("a", torch.arange(3))
    model.register_buffer("b", torch.ones(3, dtype=torch.int64))
    with pytest.raises(lw.TieError, match=r'keep="mean": int64 values have no exact mean'):
        lw.tie(model, "a", to="b", keep="mean")
    lw.tie(model, "a", to="b", keep="target")
    assert model.a is model.b
    assert model.b.tolist() == [0, 1, 2]


def test_several_targets_that_differ_need_another_choice() -> None:
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(3)])
    with pytest.raises(
        lw.TieError, match=r'keep="target": the values of 1\.weight and 2\.weight differ; use keep="source"'
    ):
        lw.tie(model, "{1,2}.weight", to="0.weight", keep="target")
    assert names(model) == []


def test_homes_that_cannot_tie_say_so() -> None:
    with toy.registered():
        model = toy.Model(a=toy.matrix(2, 2), b=toy.matrix(2, 2))
        with pytest.raises(lw.Unsupported, match=r"toy cannot tie"):
            lw.tie(model, "a", to="b")
        shared = toy.matrix(2, 2)
        tied = toy.Model(a=shared, b=shared)
        assert names(tied) == [["a", "b"]]
        with pytest.raises(lw.Unsupported, match=r"toy cannot keep ties"):
            lw.keep_ties(tied)
        with pytest.raises(lw.Unsupported, match=r"toy cannot untie"):
            lw.untie(tied, "b")
        with pytest.raises(lw.TieError, match=r"no trainable parameter"), lw.uses(model):
            pass
    state = {"a": torch.zeros(2), "b": torch.zeros(2)}
    with pytest.raises(lw.Unsupported, match=r"containers cannot tie"):
        lw.tie(state, "a", to="b")


def test_non_persistent_buffers_of_modules_are_not_tied() -> None:
    model = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in "ab"})
    for number, module in enumerate(model.values()):
        module.register_buffer("cache", torch.full((2,), float(number)), persistent=False)
    lw.tie(model, "b", to="a", keep="source")
    assert names(model) == [["a.weight", "b.weight"]]
    assert model["b"].cache.tolist() == [1, 1]


def test_a_negative_index_is_the_same_view_as_a_positive_one() -> None:
    model: Any = nn.ModuleDict({"table": nn.Embedding(4, 3), "row": nn.Linear(1, 3)})
    lw.tie(model, "row.bias", to="table.weight", slice=-1, keep="source")
    lw.tie(model, "row.bias", to="table.weight", slice=3)
    assert names(model) == [["table.weight", "row.bias[3, :]"]]


def test_modules_that_are_tied_to_one_leaf_can_be_tied_to_each_other_again() -> None:
    model = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in "abc"})
    lw.tie(model, "{b,c}", to="a", keep="source")
    lw.tie(model, "c", to="b")
    assert names(model) == [["a.weight", "b.weight", "c.weight"]]
