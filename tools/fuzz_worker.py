"""Runs cases for `tools/fuzz.py`: calls leafwise's functions on a damaged checkpoint, and reports what went wrong.

    python -m tools.fuzz_worker SEEDS FOLDER FORMAT ...

This is a process that `tools/fuzz.py` starts. It reads one case from each line of its input and answers with one line.
"""

import contextlib
import faulthandler
import gc
import io
import json
import os
import pkgutil
import random
import re
import resource
import shutil
import signal
import sys
import sysconfig
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from tools import fuzz_kernels
from tools.fuzz_mutations import Files, Mutant, mutate
from tools.fuzz_seeds import SEEDS, STALE, Seed, files_of, generator

import leafwise as lw
from leafwise import cli
from leafwise.files import stored_file
from leafwise.files.formats import safetensors as safetensors_format

MAX_SECONDS = 5.0  # processor time of one verb
MAX_MEGABYTES = 500  # more than before the case
MAX_LINES = 100_000  # larger trees are not printed in full
MAX_WRITTEN = 500 << 20  # bytes that a written file may have; a small file may expand to as much as `Limits` allows
ZIP_CHECKSUMS = True  # whether the CRC-32 of an array in a zip file must be compared by load, verify and convert
STALE_SHARDS = True  # whether a shard of another save must be refused

KERNELS = "kernels"  # instead of a format: calls the C code directly

Verb = Callable[["Bench", Path], Any]


class Watch:
    """Records what a checkpoint must never make a process do, by means of Python's audit events."""

    _RUNS = (
        "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.startfile",
        "subprocess.", "pty.", "socket.", "urllib.", "http.", "ftplib.", "smtplib.", "webbrowser.", "ctypes.dlopen",
        "code.", "pickle.find_class", "builtins.input", "os.kill", "os.putenv", "shutil.",
    )  # fmt: skip
    _CHANGES = (
        "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
        "os.chown", "os.utime", "os.setxattr",
    )  # fmt: skip

    def __init__(self, folder: Path) -> None:
        self.on = False
        self.imported: set[str] = set()  # modules that sound files need
        self.found: list[str] = []
        self._folder = str(folder)
        paths = sysconfig.get_paths()
        self._installed = tuple({*paths.values(), str(Path(lw.__file__).parent), "<frozen"})

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "import" and not self.on:
            self.imported.add(args[0])
        if self.on and self._is_wrong(event, args):
            self.found.append(f"{event} {ascii(args)[:200]}")

    def _is_wrong(self, event: str, args: tuple[Any, ...]) -> bool:
        if event == "import":
            return args[0] not in self.imported and not args[0].startswith(("leafwise.", "encodings."))
        if event == "exec":  # importing a module executes the code of an installed file
            return not str(getattr(args[0], "co_filename", "")).startswith(self._installed)
        if event == "open":
            mode, flags = args[1], args[2]
            writes = bool(set(mode) & set("wax+")) if isinstance(mode, str) else flags & (os.O_WRONLY | os.O_RDWR)
            return bool(writes) and not self._is_ours(args[0])
        if event.startswith(self._CHANGES):
            return not all(self._is_ours(one) for one in args[:2] if isinstance(one, str | bytes | os.PathLike))
        return event.startswith(self._RUNS)

    def _is_ours(self, path: Any) -> bool:
        if isinstance(path, int):
            return True  # a file descriptor: its file was checked when it was opened
        text = os.path.abspath(os.fsdecode(path))
        return text.startswith(self._folder) or text in ("/dev/null", "/dev/tty")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        self.on = True
        try:
            yield
        finally:
            self.on = False


class Bench:
    """The seeds, the values they load as, and the verbs that are called on damaged copies."""

    def __init__(self, seeds: Path, folder: Path, formats: list[str]) -> None:
        self.seeds, self.folder = seeds, folder
        self.files = {name: files_of(seeds / name) for name in formats}
        self.stale = files_of(seeds / STALE) if (seeds / STALE).exists() else {}
        self.loaded: dict[str, Any] = {}
        self.format = ""
        self.rng = random.Random(0)
        self.texts: list[str] = []

    @property
    def seed(self) -> Seed:
        return SEEDS[self.format]

    def path_of(self, folder: Path, name: str) -> Path:
        return folder / SEEDS[name].opened if SEEDS[name].opened else folder

    def warm_up(self) -> list[str]:
        """Runs every verb on every sound checkpoint, which imports every module that sound files need. Returns what
        went wrong."""
        wrong = []
        for module in pkgutil.walk_packages(lw.__path__, "leafwise."):
            if not module.name.endswith("__main__"):
                with contextlib.suppress(ImportError):  # of a framework that is not installed
                    import_module(module.name)
        for name in self.files:
            wrong += self.of_sound(name)
        self._refuse()
        for number in range(20):  # only for the imports; failures are counted when these run as cases
            with contextlib.suppress(AssertionError):
                fuzz_kernels.case(np.random.default_rng(number), self.folder)
        gc.collect()
        gc.freeze()  # otherwise collecting after each case would take longer than the case itself
        return wrong

    def of_sound(self, name: str) -> list[str]:
        """The verbs that wrongly fail on a sound checkpoint. Stores the values it loads as."""
        self.format, wrong = name, []
        path = self.path_of(self.seeds / name, name)
        for called, verb in VERBS.items():
            self.rng = random.Random(called)
            try:
                verb(self, path)
            except Exception as error:
                if called not in _MAY_REFUSE.get(name, ()):
                    wrong.append(f"{called} of a sound {name}: {error!r:.300}")
        if not wrong and (self.seed.sealed or self.seed.checked):
            self.loaded[name] = self._load(path)
        return wrong

    def _refuse(self) -> None:
        """Makes every verb raise its errors once, to import the modules that errors need."""
        (self.folder / "noise").write_bytes(b"\x80\x02noise")
        for verb in VERBS.values():
            with contextlib.suppress(lw.Error):
                verb(self, self.folder / "noise")
        with contextlib.suppress(lw.Error):
            lw.load({"wait": np.zeros(3)}, {"weight": np.ones(3)})
        traceback.format_exc()

    def say(self, *texts: Any) -> None:
        self.texts += [str(text) for text in texts]

    def _load(self, path: Path) -> Any:
        """The content of a target after a load: arrays and plain values, by path."""
        allow = () if self.seed.sealed else ("missing", "unexpected")
        with lw.tree(lw.load(self.seed.target(), path, allow=allow, cast=not self.seed.sealed)) as tree:
            arrays = {str(leaf.path): (leaf.dtype, leaf.shape, leaf.numpy().tobytes()) for leaf in tree}
            return arrays, {str(key): repr(value) for key, value in tree.scalars.items()}

    def mutant(self, seed: int, name: str, number: int) -> tuple[Mutant, random.Random]:
        rng = generator(seed, name, number)
        stale = self.stale if name == "leafwise shards" else {}
        return mutate(name, self.files[name], self.files, stale, rng), rng

    def written(self, files: Files) -> Path:
        into = self.folder / "case"
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir()
        for name, data in files.items():
            (into / name).write_bytes(data)
        return self.path_of(into, self.format)

    def run(self, seed: int, name: str, number: int, watch: Watch) -> dict[str, Any]:
        """Runs a case, and returns its result."""
        if name == KERNELS:
            return self._run_kernels(seed, number, watch)
        self.format = name
        mutant, self.rng = self.mutant(seed, name, number)
        _list_by_library(number % 2 == 0)
        path = self.written(mutant.files)
        verbs = _chosen(number, mutant, self.seed)
        failures: list[str] = []
        done: list[str] = []
        before, seconds = _reset_memory(), 0.0
        for verb in verbs:
            self.texts, started = [], time.process_time()
            with watch.watching():
                outcome = _outcome(lambda verb=verb: VERBS[verb](self, path), self.texts)
            if outcome == "":
                done.append(verb)
            elif outcome.startswith("!"):
                kind = "silent" if outcome.startswith("!AssertionError") else "foreign"
                failures.append(f"{kind}: {verb}: {outcome[1:]}")
            elif "File too large" in outcome:
                failures.append(f"megabytes: {verb} wrote a file of more than {MAX_WRITTEN >> 20} MB: {outcome}")
            failures += [f"raw text: {verb}: {ascii(text)[:300]}" for text in self.texts if _RAW.search(text)][:1]
            seconds = max(seconds, time.process_time() - started)
            if time.process_time() - started > MAX_SECONDS:
                failures.append(f"seconds: {time.process_time() - started:.1f} s for {verb}")
        megabytes = (_peak_memory() - before) / 1e6
        outcome = _outcome(lambda: failures.extend(self._silent(path, mutant, done)), [])
        if outcome.startswith("!"):
            failures.append(f"foreign: load or verify: {outcome[1:]}")
        failures += [f"executed: {what}" for what in watch.found]
        watch.found.clear()
        if megabytes > MAX_MEGABYTES:
            failures.append(f"megabytes: {megabytes:.0f} MB for {', '.join(verbs)}")
        return {
            "how": mutant.how, "opened": "show" in done, "failures": failures, "seconds": seconds,
            "megabytes": max(0.0, megabytes),
        }  # fmt: skip

    def _run_kernels(self, seed: int, number: int, watch: Watch) -> dict[str, Any]:
        before, started = _reset_memory(), time.process_time()
        rng = np.random.default_rng([seed, number])
        failures = []
        with watch.watching():
            outcome = _outcome(lambda: fuzz_kernels.case(rng, self.folder), [])
        if outcome:
            kind = "silent" if outcome.startswith("!AssertionError") else "foreign"
            failures.append(f"{kind}: {outcome.removeprefix('!')}")
        seconds, megabytes = time.process_time() - started, (_peak_memory() - before) / 1e6
        found = {"how": "arrays", "opened": True, "failures": failures, "seconds": seconds}
        return {**found, "megabytes": max(0.0, megabytes)}

    # -- silently wrong ----------------------------------------------------------------------------------

    def _silent(self, path: Path, mutant: Mutant, done: list[str]) -> list[str]:
        """Failures where other values than the seed's were loaded and nothing was raised. A forged file may contain any
        values."""
        if mutant.forged:
            return []
        found = []
        if self.seed.sealed and (STALE_SHARDS or "another save" not in mutant.how):
            # If a damaged file looks as if another program wrote it, it has no checksums, and verify reports that.
            if self._loads_others(path) and (mutant.one_bit or not self._is_unchecked(path)):
                found.append("silent: it loads values that were not saved")
        if self.seed.checked and mutant.in_data and ZIP_CHECKSUMS:
            took = [verb for verb in ("verify", "convert") if verb in done]
            took += ["load"] if self._loads_others(path) else []
            if took:
                found.append(f"silent: a flipped bit in an array is not detected by {', '.join(took)}")
        return found

    def _loads_others(self, path: Path) -> bool:
        try:
            return bool(self._load(path) != self.loaded[self.format])
        except lw.Error:
            return False

    @staticmethod
    def _is_unchecked(path: Path) -> bool:
        try:
            return bool(lw.verify(path).unchecked)
        except lw.Error:
            return False

    def show(self, path: Path) -> None:
        with lw.open(path) as tree:
            self.say(tree, tree._repr_html_(), tree.counts)
            if len(tree) + len(tree.scalars) < MAX_LINES:  # printing a million lines may take long
                self.say(tree.text(full=True))
            json.dumps(tree.json())
            dict(tree.scalars)

    def read(self, path: Path) -> None:
        with lw.open(path) as tree:
            arrays = {}
            for leaf in tree:
                with contextlib.suppress(lw.Error):
                    arrays[".".join(leaf.path.names)] = leaf.numpy()
            self._compare_with_peer(path, arrays)

    def _compare_with_peer(self, path: Path, arrays: dict[str, Any]) -> None:
        """If the format's own library can read the file, it must read the same values."""
        peer = _PEERS.get(path.suffix)
        try:
            theirs = peer(path) if peer is not None else {}
        except Exception:
            return
        for name, array in theirs.items():
            mine = arrays.get(name)
            if mine is not None and array.dtype.kind in "fiub" and (mine.shape, mine.tobytes()) != (
                array.shape, array.astype(array.dtype.newbyteorder("=")).tobytes()
            ):  # fmt: skip
                raise AssertionError(f"{name!a} differs from what the library of this format reads")

    def stats(self, path: Path) -> None:
        found = lw.stats(path)
        self.say(found, found._repr_html_())
        json.dumps(found.json())

    def verify(self, path: Path) -> None:
        lw.verify(path)

    def diff(self, path: Path) -> None:
        seed = self.path_of(self.seeds / self.format, self.format)
        found = lw.diff(*((seed, path) if self.rng.random() < 0.5 else (path, seed)))
        self.say(found, found._repr_html_())
        json.dumps(found.json())

    def load(self, path: Path) -> None:
        if self.rng.random() < 0.5:
            self._load(path)
        else:  # for the message that lists every mismatch
            lw.load(self.seed.target(), path)

    def plan(self, path: Path) -> None:
        self.say(lw.plan(self.seed.target(), path))

    def ties(self, path: Path) -> None:
        self.say(lw.ties(path, equal_untied=True))

    def check(self, path: Path) -> None:
        self.say(lw.check(path))

    def image(self, path: Path) -> None:
        with lw.open(path) as tree:
            leaves = list(tree)
            for leaf in self.rng.sample(leaves, min(3, len(leaves))):
                with contextlib.suppress(lw.Error):
                    self.say(lw.image(leaf).caption)

    def save(self, path: Path) -> None:
        with lw.open(path) as tree:
            lw.save(tree, self.folder / "saved.safetensors")

    def convert(self, path: Path) -> None:
        suffix = self.rng.choice([".safetensors", ".npz"])
        cast = self.rng.choice([[], [], ["--dtype", "bfloat16"], ["--dtype", "float32"]])
        self._command("convert", str(path), str(self.folder / f"converted{suffix}"), *cast)

    def commands(self, path: Path) -> None:
        verb = self.rng.choice([["show"], ["show", "--json"], ["stats", "--json"], ["verify"], ["ties"], ["check"]])
        self._command(verb[0], str(path), *verb[1:])

    def _command(self, *arguments: str) -> None:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = cli.main(list(arguments))
        self.say(out.getvalue(), err.getvalue())
        if status:
            raise lw.Error(err.getvalue())


VERBS: dict[str, Verb] = {
    "show": Bench.show, "read": Bench.read, "stats": Bench.stats, "verify": Bench.verify, "diff": Bench.diff,
    "load": Bench.load, "plan": Bench.plan, "ties": Bench.ties, "check": Bench.check, "image": Bench.image,
    "save": Bench.save, "convert": Bench.convert, "commands": Bench.commands,
}  # fmt: skip
_ROTATED = [name for name in VERBS if name != "show"]
# Verbs that may fail on sound files, because the target has only some of the content.
_MAY_REFUSE = {
    "GGUF quantized": ("load", "save"), "torch zip, training": ("load",), "torch legacy, training": ("load",),
}  # fmt: skip
_PEERS: dict[str, Callable[[Path], Any]] = {
    ".safetensors": safetensors.numpy.load_file,
    ".npz": lambda path: dict(np.load(path, allow_pickle=False)),
}
# What must not be printed unescaped: control characters except newlines and tabs, and bidirectional marks.
_RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _chosen(number: int, mutant: Mutant, seed: Seed) -> list[str]:
    """The verbs of a case: always `show`, and two others in turn."""
    others = [_ROTATED[(2 * number + step) % len(_ROTATED)] for step in range(2)]
    if seed.checked and mutant.in_data:
        others = [others[0], "verify", "convert"]
    return ["show", *others]


def _list_by_library(always: bool) -> None:
    """Whether the C code that lists long headers lists short ones, too."""
    safetensors_format.LONG = 0 if always else 1 << 60
    stored_file.MANY = 0 if always else 1 << 60


def _raise(error: BaseException, options: Any) -> int:
    raise error


def _outcome(call: Callable[[], Any], texts: list[str]) -> str:
    """Empty if it succeeded, the message of an `lw.Error`, or the message of another exception after a "!"."""
    try:
        call()
    except lw.Error as error:
        texts.append(str(error))
        return f"{type(error).__name__}: {str(error)[:300]}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "leafwise" in frame.filename]
        where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        return f"!{type(error).__name__}: {ascii(str(error))[:200]}{where}"
    return ""


def _reset_memory() -> int:
    """Resets the peak memory of the process, if the system can do that, and returns it in bytes."""
    gc.collect()
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    return _peak_memory()


def _peak_memory() -> int:
    try:
        status = Path("/proc/self/status").read_text("ascii", "replace")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return int(found[1]) * 1024 if found else 0


def main(arguments: list[str]) -> None:
    seeds, folder, *formats = arguments
    # Answers go to the original standard output; everything else that is printed goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # sent by the parent to find out where this process hangs
    cli._unexpected = _raise  # count as a failure what the command line would report as a bug
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_WRITTEN, MAX_WRITTEN))
    watch = Watch(Path(folder))
    sys.addaudithook(watch.hear)
    bench = Bench(Path(seeds), Path(folder), formats)
    _list_by_library(True)  # loads it
    wrong = bench.warm_up()
    print(json.dumps({"wrong": wrong}), file=answers, flush=True)
    for line in sys.stdin:
        seed, name, number = json.loads(line)
        print(json.dumps(bench.run(seed, name, number, watch)), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
