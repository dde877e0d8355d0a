"""Models and optimizers under DeepSpeed ZeRO, on several ranks. The truth is what DeepSpeed itself gathers.

`make test` runs these in an environment of their own that has DeepSpeed, because other libraries behave differently
where it is installed.
"""

import importlib.util
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed import ranks
from tests.distributed.ranks import run_ranks
from torch import distributed, nn

import leafwise as lw

if importlib.util.find_spec("deepspeed") is None:
    pytest.skip("DeepSpeed is not installed here; make test runs these where it is", allow_module_level=True)
os.environ["DS_ACCELERATOR"] = "cpu"
# The last one compiles functions when it is imported.
ranks.import_first("deepspeed", "deepspeed.runtime.zero.stage3", "deepspeed.runtime.zero.muon.muon_optimizer")


class Net(nn.Module):
    """With a tie, a frozen parameter, a buffer, and a parameter that has fewer elements than there are ranks."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(11, 6)
        self.up = nn.Linear(6, 10)
        self.norm = nn.LayerNorm(10)
        self.down = nn.Linear(10, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.norm.bias.requires_grad_(False)
        self.gain = nn.Parameter(torch.rand(3) + 0.5)
        self.register_buffer("scale", torch.arange(1.0, 12.0) / (11 + seed))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.down(torch.relu(self.norm(self.up(self.embed(tokens)))))
        return self.head(x) * self.scale.to(x.dtype) * self.gain.sum()  # type: ignore[no-any-return,operator]


def plain(dtype: torch.dtype, seed: int = 6) -> Net:
    """A model with this dtype; DeepSpeed leaves buffers as they are."""
    model = Net(seed)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """With two groups."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    has_axes = [len(getattr(parameter, "ds_shape", parameter.shape)) > 1 for parameter in parameters]
    groups: list[list[nn.Parameter]] = [[], []]
    for parameter, decays in zip(parameters, has_axes, strict=True):
        groups[not decays].append(parameter)
    return torch.optim.AdamW([{"params": groups[0]}, {"params": groups[1], "weight_decay": 0.0}], lr=0.01)


def start_deepspeed() -> Any:
    """DeepSpeed, on the process group of the rank."""
    import deepspeed

    rank, count = distributed.get_rank(), distributed.get_world_size()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
    deepspeed.utils.logger.setLevel("ERROR")
    return deepspeed


def engine_of(model: nn.Module, stage: int, dtype: str = "float32", **options: Any) -> Any:
    """At stage 3, parameters of up to 10 elements are persistent, and the optimizer has several flat tensors."""
    zero = {"stage": stage, "stage3_param_persistence_threshold": 10, "sub_group_size": 30, **options}
    summed = zero.pop("grad_accum_dtype", None)
    config = {
        "train_micro_batch_size_per_gpu": 8 // distributed.get_world_size(),
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": dtype == "bfloat16"},
        "gradient_clipping": 0.0,
        "data_types": {"grad_accum_dtype": summed},
    }
    return start_deepspeed().initialize(model=model, optimizer=adamw(model), config=config)[0]


def batch(step: int) -> torch.Tensor:
    return torch.randint(0, 11, (8, 5), generator=torch.Generator().manual_seed(step))


def loss_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())


def train(engine: Any, steps: range) -> list[float]:
    """The losses of some steps over the whole batch, of which each rank has a part."""
    losses = []
    count, rank = distributed.get_world_size(), distributed.get_rank()
    for step in steps:
        loss = loss_of(engine, batch(step).chunk(count)[rank])
        engine.backward(loss)
        engine.step()
        total = loss.detach() / count
        distributed.all_reduce(total)
        losses.append(float(total))
    return losses


def train_plain(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:
        loss = loss_of(model, batch(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    """The values of a model as DeepSpeed gathers them."""
    import deepspeed

    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return {name: value.detach().clone() for name, value in model.state_dict().items()}


def whole_state(engine: Any) -> dict[str, torch.Tensor]:
    """The copies in full precision and the optimizer state, as DeepSpeed gathers them."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    states = {}
    if hasattr(engine.optimizer, "_hp_optimizer_states_linked"):
        # DeepSpeed looks for the state of all groups when it has stepped the first of them, and not again.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    for name, parameter in engine.module.named_parameters():
        if parameter.requires_grad:
            states[f"{name}.master_param"] = safe_get_full_fp32_param(parameter).clone()
            for key in ("exp_avg", "exp_avg_sq"):
                states[f"{name}.{key}"] = safe_get_full_optimizer_state(parameter, key).clone()
    return states


def masters(model: nn.Module) -> dict[str, torch.Tensor]:
    from deepspeed.utils import safe_get_full_fp32_param

    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    return {name: safe_get_full_fp32_param(parameter).clone() for name, parameter in trained}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


def refusal(action: Any) -> str:
    try:
        action()
    except lw.Error as error:
        return str(error)
    raise AssertionError("it was not refused")


def statuses(model: nn.Module) -> dict[str, str]:
    return {name: parameter.ds_status.name for name, parameter in model.named_parameters()}  # type: ignore[attr-defined]


# -- a run ---------------------------------------------------------------------------------------------

OFFLOADED = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
KINDS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "stage 3": (3, "float32", {}),
    "stage 3, bfloat16": (3, "bfloat16", {}),
    "stage 3, bfloat16, offloaded": (3, "bfloat16", OFFLOADED),
    "stage 2, bfloat16": (2, "bfloat16", {}),
    "stage 1": (1, "float32", {}),
    "stage 1, bfloat16, BF16_Optimizer": (1, "bfloat16", {"grad_accum_dtype": "fp32"}),
}


def trained_and_saved(folder: str) -> dict[str, list[float]]:
    """Trains, saves in the middle, and continues. The truth is saved by torch."""
    losses = {}
    for name, (stage, dtype, options) in KINDS.items():
        engine = engine_of(Net(), stage, dtype, **options)
        assert name.endswith("BF16_Optimizer") == (type(engine.optimizer).__name__ == "BF16_Optimizer")
        losses[name] = train(engine, range(2))
        lw.save({"model": engine, "optimizer": engine.optimizer}, f"{folder}/{name}", format="dcp")
        truth = whole(engine.module), whole_state(engine)
        if distributed.get_rank() == 0:
            torch.save(truth, f"{folder}/{name}.pt")
        losses[name] += train(engine, range(2, 5))
    return losses


def resumed(folder: str) -> dict[str, list[float]]:
    """Resumes in an engine that has other values and has already stepped."""
    losses = {}
    for name, (stage, dtype, options) in KINDS.items():
        engine = engine_of(Net(seed=5), stage, dtype, **options)
        train(engine, range(7, 8))
        lw.load({"model": engine, "optimizer": engine.optimizer}, f"{folder}/{name}")
        values, states = torch.load(f"{folder}/{name}.pt")
        assert_same(whole(engine.module), values)
        assert_same(whole_state(engine), states)
        losses[name] = train(engine, range(2, 5))
    return losses


def resumed_from_plain(folder: str) -> list[float]:
    path = f"{folder}/plain.safetensors"
    engine = engine_of(Net(seed=5), 3)
    lw.load({"model": engine, "optimizer": engine.optimizer}, path)
    # In bfloat16, only the parameters are cast; the state of the optimizer stays in full precision.
    narrow = engine_of(Net(seed=5), 3, "bfloat16")
    lw.load({"model": narrow, "optimizer": narrow.optimizer}, path, cast=True)
    states = [{key: value for key, value in whole_state(one).items() if "exp" in key} for one in (engine, narrow)]
    assert_same(*states)
    return train(engine, range(2, 5))


def test_a_run_continues_on_any_number_of_ranks_and_without_deepspeed(tmp_path: Path) -> None:
    losses = run_ranks(4, trained_and_saved, str(tmp_path))[0]
    for count in (2, 1):
        for name, values in run_ranks(count, resumed, str(tmp_path))[0].items():
            tolerance = 0.01 if "bfloat16" in name else 1e-5
            assert values == pytest.approx(losses[name][2:], rel=tolerance), name
    for name in KINDS:
        values, states = torch.load(tmp_path / f"{name}.pt")
        model = lw.load(plain(values["up.weight"].dtype), lw.open(tmp_path / name)["model"])
        assert_same(model.state_dict(), values)
        saved = lw.open(tmp_path / name)
        for key, value in states.items():
            if not key.endswith("master_param") or "bfloat16" in name:
                assert (saved[f"optimizer.state.model.{key}"].numpy() == value.numpy()).all(), key
    # The state is also that of a plain optimizer, and the other way around.
    model = Net(seed=6)
    optimizer = adamw(model)
    lw.load({"model": model, "optimizer": optimizer}, tmp_path / "stage 3")
    assert train_plain(model, optimizer, range(2, 5)) == pytest.approx(losses["stage 3"][2:], rel=1e-5)
    model = Net()
    optimizer = adamw(model)
    train_plain(model, optimizer, range(2))
    lw.save({"model": model, "optimizer": optimizer}, tmp_path / "plain.safetensors")
    continued = run_ranks(2, resumed_from_plain, str(tmp_path))[0]
    assert continued == pytest.approx(train_plain(model, optimizer, range(2, 5)), rel=1e-5)


# -- looking at a model ----------------------------------------------------------------------------------


def inspected(folder: str) -> tuple[str, int]:
    engine = engine_of(Net(), 3, "bfloat16")
    train(engine, range(1))
    model = engine.module
    truth = plain(torch.bfloat16)
    truth.load_state_dict(whole(model))
    if distributed.get_rank() == 0:
        lw.save(truth, f"{folder}/truth.safetensors")
    distributed.barrier()
    before = statuses(model)
    text = str(lw.tree(engine))
    ours, theirs = lw.tree(model), lw.tree(truth)
    assert [(str(leaf.path), leaf.shape, leaf.dtype, leaf.nbytes, leaf.trainable) for leaf in ours] == [
        (str(leaf.path), leaf.shape, leaf.dtype, leaf.nbytes, leaf.trainable) for leaf in theirs
    ]
    assert ours.counts._replace(local_bytes=theirs.counts.local_bytes) == theirs.counts
    here = ours.counts.local_bytes
    assert str(lw.stats(model)) == str(lw.stats(truth))
    assert str(lw.check(model)) == str(lw.check(truth))
    assert str(lw.diff(f"{folder}/truth.safetensors", model)) == "9 leaves, all the same"
    lw.save(model, f"{folder}/saved", format="dcp")
    assert statuses(model) == before
    assert all(not parameter.numel() for name, parameter in model.named_parameters() if before[name] != "AVAILABLE")
    # One value differs, on the last rank.
    if distributed.get_rank() == distributed.get_world_size() - 1:
        model.down.weight.ds_tensor[-1] = float("nan")
    assert "1 NaN among 60 values, at [5, 9]" in str(lw.check(model))
    assert "9 leaves: 1 changed, 8 same" in str(lw.diff(f"{folder}/truth.safetensors", model))
    return text, here


def test_a_model_is_shown_measured_and_compared_without_gathering(tmp_path: Path) -> None:
    shown = run_ranks(4, inspected, str(tmp_path))
    assert "Net in DeepSpeedEngine" in shown[0][0]
    assert "bfloat16    3    6 B  flat shard over 4 ranks" in shown[0][0]
    # Parts of the parameters, and all of the buffer.
    assert sum(here for _, here in shown) == 450 + 4 * 44
    assert "494 B, 162 B on this rank" in shown[0][0]
    assert str(lw.diff(tmp_path / "truth.safetensors", tmp_path / "saved")).startswith("9 leaves, all the same")


# -- loading -------------------------------------------------------------------------------------------------


def loaded(folder: str) -> None:
    sources = [plain(torch.bfloat16, seed) for seed in (7, 8)]
    paths = [f"{folder}/{number}.safetensors" for number in range(2)]
    if distributed.get_rank() == 0:
        for source, path in zip(sources, paths, strict=True):
            lw.save(source, path)
        lw.save(Net(7), f"{folder}/float32.safetensors")
    distributed.barrier()
    for stage in (3, 2):
        engine = engine_of(Net(), stage, "bfloat16")
        lw.load(engine, paths[0])
        assert_same(whole(engine.module), sources[0].state_dict())
        # Steps begin with the loaded values, in full precision, too.
        other = engine_of(deepcopy(sources[0]), stage, "bfloat16")
        assert_same(masters(engine.module), masters(other.module))
        assert train(engine, range(2)) == train(other, range(2))
        # An evaluation leaves gathered copies; the next one must not use them.
        with torch.no_grad():
            engine(batch(0))
            lw.load(engine.module, paths[1])
            assert torch.equal(engine(batch(0)), sources[1](batch(0)))
        # A part: everything else stays as it is.
        train(engine, range(2, 3))
        before, precise = whole(engine.module), masters(engine.module)
        lw.load(lw.tree(engine)["up"], lw.open(paths[0])["up"])
        now, full = whole(engine.module), masters(engine.module)
        for name in before:
            value = sources[0].state_dict()[name] if name.startswith("up.") else before[name]
            assert torch.equal(now[name], value), name
        for name in full:
            value = sources[0].state_dict()[name].float() if name.startswith("up.") else precise[name]
            assert torch.equal(full[name], value), name
        lw.load(engine, f"{folder}/float32.safetensors", cast=True)
        assert_same(whole(engine.module), sources[0].state_dict())


def test_loaded_values_survive_the_next_step(tmp_path: Path) -> None:
    run_ranks(4, loaded, str(tmp_path))


def not_loaded(folder: str) -> None:
    rank = distributed.get_rank()
    engine = engine_of(Net(), 3, "bfloat16")
    train(engine, range(1))
    both = {"model": engine, "optimizer": engine.optimizer}
    wider = nn.ModuleDict({"up": nn.Linear(6, 12)})
    if rank == 0:
        lw.save(wider, f"{folder}/wider.safetensors")
        lw.save(plain(torch.bfloat16), f"{folder}/right.safetensors")
        model = plain(torch.bfloat16)
        optimizer = adamw(model)
        train_plain(model, optimizer, range(1))
        optimizer.state[model.up.bias]["step"] += 1
        lw.save({"model": model, "optimizer": optimizer}, f"{folder}/steps.safetensors")
    distributed.barrier()
    before, states = whole(engine.module), whole_state(engine)
    allowed = {"missing", "unexpected"}
    assert "up.weight is 10×6 in the model" in refusal(
        lambda: lw.load(engine, f"{folder}/wider.safetensors", allow=allowed)
    )
    message = refusal(lambda: lw.load(engine, f"{folder}/{'right' if rank else 'absent'}.safetensors"))
    assert ("rank 0 failed: cannot open" if rank else "cannot open") in message
    assert "DeepSpeed keeps one state for 4 of its parameters, but the source has different ones for them: " in refusal(
        lambda: lw.load(both, f"{folder}/steps.safetensors")
    )
    assert_same(whole(engine.module), before)
    assert_same(whole_state(engine), states)
    # At stage 2, parameters are whole, but their copies are not, so that all ranks must load, too.
    engine = engine_of(Net(), 2, "bfloat16")
    before = whole(engine.module)
    message = refusal(lambda: lw.load(engine, f"{folder}/{'right' if rank else 'absent'}.safetensors"))
    assert ("rank 0 failed: cannot open" if rank else "cannot open") in message
    assert_same(whole(engine.module), before)


def test_all_ranks_load_or_none(tmp_path: Path) -> None:
    run_ranks(2, not_loaded, str(tmp_path))


# -- what else works, and what does not -----------------------------------------------------------------------


def other_verbs(folder: str) -> None:
    deepspeed = start_deepspeed()
    # A model without an optimizer: there are no copies.
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = Net()
    truth = Net(9)
    lw.load(model, truth)
    assert_same(whole(model), truth.state_dict())
    lw.initialize(lw.tree(model)["up"], [lw.Rule("*", init="ones")])
    assert (whole(model)["up.weight"] == 1).all()
    grouped = [parameter for group in lw.groups(model, [lw.no_decay()]) for parameter in group["params"]]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert set(map(id, grouped)) == set(map(id, trained))

    engine = engine_of(Net(), 3, "bfloat16")
    model = engine.module
    # A moving average: the same as of a plain model.
    reference = plain(torch.bfloat16)
    reference.load_state_dict(whole(model))
    averages = lw.Average(model, decay=0.5), lw.Average(reference, decay=0.5)
    train(engine, range(1))
    reference.load_state_dict(whole(model))
    averages[0].update(model)
    averages[1].update(reference)
    with torch.no_grad():
        engine(batch(0))  # leaves gathered copies
        with averages[0].applied(model), averages[1].applied(reference):
            assert torch.equal(engine(batch(0)), reference(batch(0)))
            assert_same(whole(model), reference.state_dict())
        assert torch.equal(engine(batch(0)), reference(batch(0)))
    assert_same(whole(model), reference.state_dict())
    # Loss scaling, which DeepSpeed does for float16 only.
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    engine.optimizer.loss_scaler = scaler = DynamicLossScaler(2.0**16, 1000, 1, 2, False)
    scaler.cur_iter = 7
    both = {"optimizer": engine.optimizer, "model": engine}
    lw.save(both, f"{folder}/scaled", format="dcp")
    scaler.cur_iter, scaler.cur_scale = 0, 1.0
    lw.load(both, f"{folder}/scaled")
    assert (scaler.cur_iter, scaler.cur_scale) == (7, 2.0**16)
    # In the background, and from one stage to another.
    other = engine_of(Net(), 2, "bfloat16", round_robin_gradients=True)
    train(other, range(2))
    values, states = whole(other.module), whole_state(other)
    saving = lw.save({"model": other, "optimizer": other.optimizer}, f"{folder}/2", format="dcp", background=True)
    train(other, range(2, 4))
    saving.wait()
    third = engine_of(Net(5), 3, "bfloat16")
    lw.load({"model": third, "optimizer": third.optimizer}, f"{folder}/2")
    assert_same(whole(third.module), values)
    assert_same(whole_state(third), states)
    # accelerate wraps the optimizer.
    from accelerate.utils.deepspeed import DeepSpeedOptimizerWrapper

    wrapper = DeepSpeedOptimizerWrapper.__new__(DeepSpeedOptimizerWrapper)  # without an Accelerator
    wrapper.optimizer = engine.optimizer
    wrapped = {"optimizer": wrapper, "model": engine}
    assert lw.tree(wrapped).counts == lw.tree(both).counts
    lw.load(wrapped, f"{folder}/scaled")


def test_averages_groups_initial_values_and_loss_scaling(tmp_path: Path) -> None:
    run_ranks(2, other_verbs, str(tmp_path))


def refused(folder: str) -> None:
    import deepspeed

    engine = engine_of(Net(), 3, "bfloat16")
    model = engine.module
    both = {"model": engine, "optimizer": engine.optimizer}
    source = plain(torch.bfloat16)

    def save() -> Any:
        return lw.save(both, f"{folder}/saved", format="dcp")

    assert 'call lw.save(…, folder, format="dcp") in every process' in refusal(
        lambda: lw.save(model, f"{folder}/{distributed.get_rank()}.safetensors")
    )
    only_load = "DeepSpeed keeps a copy of it in full precision"
    assert only_load in refusal(lambda: lw.initialize(lw.tree(model)["up"], [lw.Rule("*", init="ones")]))
    assert "made its optimizer for the parameters that were trainable then" in refusal(lambda: lw.freeze(model, "up"))
    listed = refusal(lambda: lw.stats(list(model.parameters())))
    assert "a parameter of DeepSpeed ZeRO-3" in listed
    assert "pass the model that contains it" in listed
    # The gathered copy was changed on one rank only.
    with deepspeed.zero.GatheredParameters([model.up.weight], modifier_rank=0):
        if distributed.get_rank() == 0:
            model.up.weight.data[0, 0] += 1
        assert "the gathered copy was changed" in refusal(save)
    # Where copies, or parameters, are elsewhere.
    for setting, where in {"swap_optimizer": "on NVMe", "zenflow": "with ZenFlow"}.items():
        setattr(engine.optimizer, setting, True)
        assert where in refusal(save)
        assert where in refusal(lambda: lw.load(model, source))
        setattr(engine.optimizer, setting, False)
    flat = engine.optimizer.fp32_partitioned_groups_flat[0]
    engine.optimizer.optimizer.state[flat] = {"row_means": torch.ones(2)}
    assert "AdamW keeps row_means for many parameters that DeepSpeed has joined" in refusal(save)
    del engine.optimizer.optimizer.state[flat]
    up = model.up.weight
    up.ds_tensor.final_location = "nvme"
    assert "has moved its values to NVMe" in refusal(save)
    up.ds_tensor.final_location = None
    up.ds_tensor.ds_quant_scale = torch.ones(1)
    assert "quantized" in refusal(save)
    del up.ds_tensor.ds_quant_scale
    groups = [distributed.new_group([rank]) for rank in range(distributed.get_world_size())]
    up.ds_process_group, group = groups[distributed.get_rank()], up.ds_process_group
    assert "DeepSpeed has split it over 1 of 2 ranks" in refusal(save)
    up.ds_process_group = group
    save()
    # Stages 1 and 2: only a load writes into the copies.
    engine = engine_of(Net(), 2, "bfloat16")
    assert only_load in refusal(lambda: lw.initialize(lw.tree(engine)["up"], [lw.Rule("*", init="ones")]))
    # Without ZeRO, only the engine knows the copies.
    engine = engine_of(Net(), 0, "bfloat16")
    assert "a copy of it in full precision in a FP16_UnfusedOptimizer" in refusal(lambda: lw.load(engine, source))
    # Copies in full precision have no place in an engine that trains in full precision.
    engine = engine_of(Net(), 3)
    assert "the parameters themselves have this dtype" in refusal(
        lambda: lw.load({"model": engine, "optimizer": engine.optimizer}, f"{folder}/saved", cast=True)
    )


def test_what_leafwise_does_not_understand_is_refused(tmp_path: Path) -> None:
    run_ranks(2, refused, str(tmp_path))
