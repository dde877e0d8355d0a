"""Kills ranks while they load or save one checkpoint together, at every step, and checks what the others do.

    python -m tools.rank_faults --most 30           30 steps of each verb, store and kind of fault (half an hour)
    python -m tools.rank_faults load save           only these verbs, at every step (hours)
    python -m tools.rank_faults --list              lists the steps

Expected is that the ranks that are left raise `lw.RankError`, or finish, within a few times the limit; that the folder
then contains the old checkpoint or the new one, whole; and that the next load and the next save work. A rank may be
killed, which the others notice because its connections end, or stopped, as if its machine had no power any more.
"""

import functools
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.distributed.models import Net, fsdp
from tests.distributed.ranks import run_ranks
from tools import sweeps
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import leafwise as lw
from leafwise.files.dcp.writer import staged_name
from leafwise.files.writing.writer import staged_prefix

PATIENCE = 3.0  # seconds; instead of a minute
MARGIN = 5  # a rank hangs that waits for this many times the limit: machines may be slow, but not that slow
VERBS = ["load", "save", "background"]  # the last is a save in the background
STORES = ["parent", "first", "file"]  # where the store of torch.distributed is: as with torchrun, in rank 0, in a file
OLD, NEW = 1, 2  # the seeds of the values of the checkpoint that is in the folder, and of the model
_AT_ONCE = 4  # cases that run side by side: they mostly wait
_FEW = 8  # times a step may be repeated until only some of them are cases
_ATTEMPTS = 3
_START_SECONDS = 60  # for processes to start, and to get to the step
_TORCH = "leafwise.homes.torch.parallel"


class Case(NamedTuple):
    """A fault: what the ranks do, which of them is killed or stopped, and at which step."""

    verb: str
    store: str
    fault: str  # "killed", "stopped", or "late": it sleeps for longer than the limit
    ranks: int
    rank: int
    step: str

    def __str__(self) -> str:
        return f"{self.verb}, store in {self.store}: rank {self.rank} of {self.ranks} {self.fault} {self.step}"


class Outcome(NamedTuple):
    """What happened on a rank that was left."""

    kind: str  # "done", "hung", or the class of its error
    text: str  # the error, or where it hangs
    named: int | None  # the rank that the error names
    waited: float  # seconds from the fault on
    values: str  # those of the model: "old", "new" or "mixed"


# -- in a rank ---------------------------------------------------------------------------------------------------


class Steps:
    """Counts the steps of a rank; at one of them, something happens to it."""

    def __init__(self, chosen: str, happens: Callable[[], None]) -> None:
        self.seen: list[str] = []
        self._chosen, self._happens = chosen, happens
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def reached(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1
            step = f"{name} {self._counts[name]}"
            self.seen.append(step)
        if step == self._chosen:
            self._happens()

    def is_next(self, name: str) -> bool:
        return f"{name} {self._counts[name] + 1}" == self._chosen

    def around(self, owner: Any, name: str, label: str = "") -> None:
        """Makes steps of the beginning and of the end of a function."""
        kept, label = getattr(owner, name), label or name.strip("_")

        @functools.wraps(kept)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.reached(f"before {label}")
            result = kept(*arguments, **options)
            self.reached(f"after {label}")
            return result

        setattr(owner, name, wrapped)

    def within(self, owner: Any, name: str, position: int) -> None:
        """Makes a step of the middle of a function: half of an argument has been used then."""
        kept = getattr(owner, name)

        @functools.wraps(kept)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if self.is_next(f"within {name}"):
                whole = arguments[position]
                whole = memoryview(whole).cast("B") if not isinstance(whole, list) else whole
                kept(*arguments[:position], whole[: len(whole) // 2], *arguments[position + 1 :], **options)
            self.reached(f"within {name}")
            return kept(*arguments, **options)

        setattr(owner, name, wrapped)

    def around_gathers(self, team: Any) -> None:
        kept = team.start_gather

        def start_gather(*arguments: Any) -> Any:
            self.reached("before gather")
            finish = kept(*arguments)
            self.reached("while gather is under way")

            def finished() -> Any:
                result = finish()
                self.reached("after gather")
                return result

            return finished

        team.start_gather = start_gather

    def around_values_in_store(self, messages: Any) -> None:
        """Messages are values in the store. Signs of life are no steps."""
        for name, word in (("_put", "sending"), ("_take", "receiving")):
            kept = getattr(messages, name)

            def wrapped(own: Any, key: str, *data: bytes, kept: Any = kept, word: str = word) -> Any:
                label = next((f"{word} a {what}" for what in ("to", "from") if f"/{what}/" in key), "")
                label = label.replace(" a to", " data").replace(" a from", " a reply")
                if label:
                    self.reached(f"before {label}")
                result = kept(own, key, *data)
                if label:
                    self.reached(f"after {label}")
                return result

            setattr(messages, name, wrapped)


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _make_steps(steps: Steps) -> None:
    """Every moment at which a rank may die."""
    team, messages = _module(f"{_TORCH}.teams").TorchTeam, _module(f"{_TORCH}.messages").StoreMessages
    steps.around_gathers(team)
    for name in ("exchange", "overlay", "messages"):
        steps.around(team, name)
    steps.around_values_in_store(messages)
    steps.around(messages, "meet")
    steps.around(messages, "__exit__", "leaving")
    load = _module("leafwise.checkpoint.loading.load_steps")
    for name in ("prepare", "_verify_parts", "verify_values", "apply", "_write", "_changes", "restore_optimizers"):
        steps.around(load, name)
    reads = _module("leafwise.files.reading.checked_reads")
    steps.within(reads, "fill", 0)
    for name in ("fill", "verify_subarrays"):
        steps.around(reads, name)
    joint_save = _module("leafwise.checkpoint.saving.joint_save")
    for name in ("plan", "write", "_write_own", "_check_shared"):
        steps.around(joint_save.JointSave, name, f"{name.strip('_')} of a save")
    steps.around(joint_save, "_remove_files")
    writer = _module("leafwise.files.dcp.writer")
    for name in ("make_plan", "write_rank", "write_items", "ending", "finish", "_remove_former"):
        steps.around(writer, name)
    steps.around(_module("leafwise.files.writing.writer").FileTransaction, "_end", "end of a transaction")
    disk = _module("leafwise.files.sources.disk").disk
    for name, position in (("write", 1), ("write_at", 1)):
        steps.within(disk, name, position)
    for name in ("create", "write", "write_at", "lock_folder", "sync", "rename", "sync_folder", "remove"):
        steps.around(disk, name)


def _objects(seed: int, sharded: bool = True) -> dict[str, Any]:
    """A model, its optimizer and a number, with values that the seed decides, the same on every rank."""
    model: Any = Net()
    generator = torch.Generator().manual_seed(seed)
    model.load_state_dict(
        {key: torch.randn(value.shape, generator=generator) for key, value in model.state_dict().items()}
    )
    if sharded:
        model = fsdp(model, init_device_mesh("cpu", (distributed.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for state in optimizer.state.values():
        state["exp_avg"].fill_(float(seed))
    return {"model": model, "optimizer": optimizer, "step": seed}


def _local(objects: dict[str, Any]) -> list[torch.Tensor]:
    values = [*objects["model"].state_dict().values()]
    values += [state["exp_avg"] for state in objects["optimizer"].state.values()]
    return [value.to_local().clone() if isinstance(value, DTensor) else value.detach().clone() for value in values]


def _same(values: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(values, expected, strict=True))


def save_first(folder: str) -> None:
    """Writes the checkpoint that cases begin with."""
    lw.save(_objects(OLD), folder, format="dcp")


def run_case(case: Case, folder: str, port: int) -> Any:
    """Runs on each rank. Returns its steps if nothing happens to it, or else its outcome."""
    here, rank = Path(folder), distributed.get_rank()
    _use_store(case.store, here, port)
    torch.set_num_threads(1)
    model_seed = OLD + NEW if case.verb == "load" else NEW
    objects, before, loaded = _objects(model_seed), _local(_objects(model_seed)), _local(_objects(OLD))

    def happens() -> None:
        text = f"{time.time()} {os.getpid()}"
        (here / "fault.new").write_text(text, "utf-8")
        os.rename(here / "fault.new", here / "fault")
        if case.fault == "late":
            time.sleep(2.5 * PATIENCE)
        else:
            os.kill(os.getpid(), signal.SIGKILL if case.fault == "killed" else signal.SIGSTOP)

    steps = Steps(case.step if rank == case.rank else "", happens)
    distributed.barrier()
    _module(f"{_TORCH}.signs_of_life").PATIENCE = PATIENCE
    _make_steps(steps)
    errors: list[BaseException] = []
    ends: list[float] = []

    def work() -> None:
        try:
            steps.reached("before the call")
            _call(case.verb, objects, str(here / "run"))
            steps.reached("after the call")
        except BaseException as error:
            errors.append(error)
        ends.append(time.time())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    began = time.time()
    while thread.is_alive() and time.time() < (_fault_time(here) or began + _START_SECONDS) + MARGIN * PATIENCE:
        thread.join(0.05)
    at, values = _fault_time(here) or time.time(), _local(objects)
    named = "old" if _same(values, before) else "new" if case.verb == "load" and _same(values, loaded) else "mixed"
    if thread.is_alive():
        stack = traceback.extract_stack(sys._current_frames()[thread.ident])  # type: ignore[index]
        places = [
            f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
            for frame in stack
            if "leafwise" in frame.filename
        ]
        outcome = Outcome("hung", " > ".join(places[-5:]), None, time.time() - at, named)
    elif errors:
        text = " ".join(str(errors[0]).split())
        outcome = Outcome(type(errors[0]).__name__, text, getattr(errors[0], "rank", None), ends[0] - at, named)
    else:
        outcome = Outcome("done", "", None, ends[0] - at, named)
    _stay_for_others(case, here, rank)
    return (steps.seen, outcome)


def _call(verb: str, objects: dict[str, Any], path: str) -> None:
    if verb == "load":
        lw.load({**objects, "step": 0}, path)
    elif verb == "save":
        lw.save(objects, path, format="dcp")
    else:
        lw.save(objects, path, format="dcp", background=True).wait()


def _use_store(store: str, here: Path, port: int) -> None:
    """Makes the process group again, with another store. The tests' own is a file, which never goes away."""
    if store == "file":
        return
    rank, count = distributed.get_rank(), distributed.get_world_size()
    distributed.destroy_process_group()
    made: Any
    if store == "parent":
        made = distributed.PrefixStore(here.name, distributed.TCPStore("127.0.0.1", port))
    elif rank == 0:
        made = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        (here / "port.new").write_text(str(made.port), "utf-8")
        os.rename(here / "port.new", here / "port")
    else:
        while not (here / "port").exists():
            time.sleep(0.01)
        made = distributed.TCPStore("127.0.0.1", int((here / "port").read_text("utf-8")))
    distributed.init_process_group("gloo", store=made, rank=rank, world_size=count, timeout=timedelta(minutes=30))


def _fault_time(here: Path) -> float | None:
    with suppress(OSError):
        return float((here / "fault").read_text("utf-8").split()[0])
    return None


def _stay_for_others(case: Case, here: Path, rank: int) -> None:
    """A rank that ends closes its connections, which the others would notice: the last one to end may not profit from
    that."""
    (here / f"ended-{rank}").touch()
    others = [here / f"ended-{other}" for other in range(case.ranks) if other != case.rank or case.fault == "late"]
    deadline = time.time() + _START_SECONDS
    while not all(other.exists() for other in others) and time.time() < deadline:
        time.sleep(0.02)
    if case.fault == "stopped" and (here / "fault").exists():
        with suppress(ProcessLookupError):
            os.kill(int((here / "fault").read_text("utf-8").split()[1]), signal.SIGKILL)


# -- the cases ---------------------------------------------------------------------------------------------------


class Faults:
    """Runs cases. A context manager: it has a folder, and a store as torchrun has."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._steps: dict[str, list[list[str]]] = {}

    def __enter__(self) -> "Faults":
        self._folder = tempfile.TemporaryDirectory()
        self._store: Any = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        run_ranks(self.ranks, save_first, str(self._first))
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    @property
    def _first(self) -> Path:
        return Path(self._folder.name, "first")

    @contextmanager
    def _case_folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            shutil.copytree(self._first, Path(folder, "run"))
            yield Path(folder)

    def steps(self, verb: str) -> list[list[str]]:
        """The steps of each rank."""
        if verb not in self._steps:
            plain = Case(verb, "parent", "late", self.ranks, 0, "")
            results, failure = self._run(plain, lambda folder, results: results)
            assert results, failure
            self._steps[verb] = [_few(seen) for seen, _ in results]
        return self._steps[verb]

    def _run(self, case: Case, then: Callable[[Path, list[Any]], Any]) -> tuple[Any, str]:
        """Runs a case, and then something in its folder. Sometimes gloo cannot connect the ranks: tries again."""
        dies, failed = [] if case.fault == "late" else [case.rank], ""
        for _ in range(_ATTEMPTS):
            with self._case_folder() as folder:
                try:
                    results = run_ranks(
                        case.ranks, run_case, case, str(folder), self._store.port, dies=dies, timeout=90
                    )
                except pytest.fail.Exception as failure:
                    failed = str(failure)
                    continue
                return then(folder, results), ""
        return None, failed

    def problems(self, case: Case) -> tuple[list[str], list[Outcome | None]]:
        """What went wrong in a case, and the outcomes of the ranks."""

        def judged(folder: Path, results: list[Any]) -> tuple[list[str], list[Outcome | None]]:
            outcomes = [None if result is None else result[1] for result in results]
            return [*_wrong_outcomes(case, outcomes, folder), *_wrong_folder(case, outcomes, folder / "run")], outcomes

        judgement, failure = self._run(case, judged)
        return judgement or ([f"the case itself failed: {failure}"], [])


def _few(steps: Sequence[str]) -> list[str]:
    """Of steps that are repeated often, the first, the one in the middle and the last."""
    last = {name: int(number) for name, _, number in (step.rpartition(" ") for step in steps)}
    kept = {
        f"{name} {number}"
        for name, most in last.items()
        for number in (range(1, most + 1) if most <= _FEW else (1, most // 2, most))
    }
    return [step for step in steps if step in kept]


def _wrong_outcomes(case: Case, outcomes: list[Outcome | None], folder: Path) -> list[str]:
    if not (folder / "fault").exists():
        return ["the step was never reached"]
    wrong = []
    for rank, outcome in enumerate(outcomes):
        if outcome is None:
            if rank != case.rank:
                wrong.append(f"rank {rank} ended without a result")
            continue
        shown = f"rank {rank}, {outcome.waited:.1f} s after: {outcome.kind}: {outcome.text}"
        if case.fault == "late":
            if outcome.kind != "done":
                wrong.append(f"a slow rank is taken for a dead one: {shown}")
        elif outcome.kind == "hung":
            wrong.append(f"hangs: {shown}")
        elif outcome.kind not in ("done", "RankError"):
            wrong.append(f"another error: {shown}")
        elif outcome.named not in (None, case.rank) and "cannot reach every one" not in outcome.text:
            wrong.append(f"names another rank: {shown}")
        if outcome.values == "mixed" and case.verb == "load":
            wrong.append(f"the model is partly loaded: {shown}")
        if outcome.kind == "done" and case.verb == "load" and outcome.values != "new":
            wrong.append(f"says that it is loaded, but it is not: {shown}")
    return wrong


def _wrong_folder(case: Case, outcomes: list[Outcome | None], run: Path) -> list[str]:
    """What is wrong with the checkpoint, and with the next save into its folder."""
    try:
        if not lw.verify(run).ok:
            return ["lw.verify finds damage"]
        seed = _seed_of(run)
        saved = case.verb != "load" and any(outcome is not None and outcome.kind == "done" for outcome in outcomes)
        if (case.verb == "load" and seed != OLD) or (saved and seed != NEW):
            return [f"the folder contains the checkpoint of seed {seed}"]
        again = _objects(OLD + NEW, sharded=False)
        lw.save(again, run, format="dcp")
        # What a rank has begun to write is removed by its own next save; this one has no such rank.
        begun = staged_prefix(staged_name(case.rank))
        left = sorted(path.name for path in run.iterdir() if case.rank == 0 or not path.name.startswith(begun))
        if _seed_of(run) != OLD + NEW or not lw.verify(run).ok or len(left) != 3:
            return [f"after the next save, the folder contains {left}"]
    except Exception as error:
        return [f"the checkpoint cannot be used: {type(error).__name__}: {error}"]
    return []


def _seed_of(run: Path) -> int:
    """The seed of the values of a checkpoint. Raises if they do not belong together."""
    objects = _objects(0, sharded=False)
    step = lw.load({**objects, "step": 0}, run)["step"]
    assert _same(_local(objects), _local(_objects(step, sharded=False))), f"values are not those of step {step}"
    return int(step)


def is_case(fault: str, step: str) -> bool:
    """Whether a fault at a step is a case. Nobody can notice a rank that is stopped before its first sign of life: it
    may just be slow. A rank that is late within a function would use half of its argument twice."""
    if fault == "late" and step.startswith("within "):
        return False
    return fault != "stopped" or step not in ("before the call 1", "before gather 1")


def cases_of(faults: Faults, verbs: Sequence[str], stores: Sequence[str], kinds: Sequence[str]) -> list[Case]:
    """Every step of every rank."""
    cases = []
    for verb in verbs:
        for rank, steps in enumerate(faults.steps(verb)):
            for store in stores:
                cases += [
                    Case(verb, store, kind, faults.ranks, rank, step)
                    for kind in kinds
                    for step in steps
                    if is_case(kind, step)
                ]
    return cases


def run_all(faults: Faults, cases: Sequence[Case]) -> Iterator[tuple[Case, list[str], list[Outcome | None]]]:
    """Several cases at once, in the order in which they end."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running = {pool.submit(faults.problems, case): case for case in cases}
        for done in as_completed(running):
            yield running[done], *done.result()


def main() -> int:
    parser = sweeps.parser(__doc__, f"verbs: {', '.join(VERBS)}")
    parser.add_argument("--list", action="store_true", help="list the steps")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--stores", nargs="*", default=STORES, choices=STORES)
    parser.add_argument("--faults", nargs="*", default=["killed", "stopped", "late"])
    parser.add_argument("--most", type=int, default=0, help="a random sample of this many cases of each kind")
    parser.add_argument("--at", default="", help="only steps that contain this")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    bad, count, longest = 0, 0, 0.0
    with Faults(options.ranks) as faults:
        cases = []
        for verb in options.only or VERBS:
            for store in options.stores:
                for fault in options.faults:
                    some = [case for case in cases_of(faults, [verb], [store], [fault]) if options.at in str(case)]
                    cases += draw.sample(some, options.most) if 0 < options.most < len(some) else some
        if options.list:
            print(*cases, sep="\n")
            return 0
        for case, problems, outcomes in run_all(faults, cases):
            count += 1
            bad += bool(problems)
            longest = max([longest, *(outcome.waited for outcome in outcomes if outcome is not None)])
            waits = ", ".join("-" if one is None else f"{one.kind} {one.waited:.1f}" for one in outcomes)
            print(f"{'WRONG' if problems else 'right'}  {case}: {waits}", flush=True)
            for problem in problems:
                print(f"       {problem}", flush=True)
    steps = len({case.step for case in cases})
    text = (
        f"{options.ranks} ranks, one of which was killed, stopped or late at one of {steps} steps of a load or save: "
        f"{count:,} cases, {bad} wrong. The others waited at most {longest / PATIENCE:.1f} times the limit."
    )
    print(text)
    if not (options.only or options.at):
        sweeps.record("make ranks", {"ranks": text}, options.seed)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
