"""The command line, as a shell would use it."""

import gc
import itertools
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.forked import Commands
from tests.messages import said
from torch import nn

import leafwise as lw
from leafwise.cli import VERBS, main


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "leafwise", *arguments]


def run(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(*arguments), capture_output=True, encoding="utf-8", **options)  # type: ignore[call-overload,no-any-return]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Runs commands that import PyTorch, in processes that have imported it already."""
    commands = Commands("leafwise", ["torch"], tmp_path_factory.mktemp("commands"))
    yield commands
    commands.close()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file({"a.weight": torch.zeros(2, 3), "a.bias": torch.zeros(2), "evil\x1b[31m": torch.zeros(1)}, path)
    return path


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "mymodels.py").write_text(
        "from torch import nn\n"
        "def build(): return nn.Linear(2, 3)\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self): super().__init__(nn.Linear(1, 1))\n"
        "model = nn.Linear(4, 4)\n"
        "number = 3\n"
        "def broken(): raise RuntimeError('out of luck')\n"
    )
    return tmp_path


def test_show_draws_a_file_without_numpy_or_torch(saved: Path) -> None:
    script = (
        "import sys; from leafwise.cli import main; status = main(['show', sys.argv[1]]);"
        "assert not {'numpy', 'torch', 'safetensors'} & set(sys.modules); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(saved)], capture_output=True, encoding="utf-8", check=True)
    assert "weight" in done.stdout
    assert "9 parameters" in done.stdout
    assert "\x1b" not in done.stdout


def test_show_selects_and_limits_and_prints_json(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(saved), "--where", "a.*"]) == 0
    assert "8 parameters" in capsys.readouterr().out
    assert main(["show", str(saved), "--depth", "1"]) == 0
    assert "▸ 2 leaves" in capsys.readouterr().out
    assert main(["show", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["parameters"] == 9
    assert main(["show", str(saved), "--full"]) == 0
    capsys.readouterr()
    assert main(["show", str(saved), "--where", "b.*"]) == 1
    assert "no leaf of" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "shown"),
    [("mymodels:build", "9 parameters"), ("mymodels:Net", "2 parameters"), ("mymodels:model", "20 parameters")],
)
def test_show_draws_the_model_at_an_import_path(target: str, shown: str, models: Path, commands: Commands) -> None:
    done = commands.run("show", target, cwd=models)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "nowhere.safetensors",
            "cannot open 'nowhere.safetensors': there is no such file, and it does not have the form "
            "package.module:name",
        ),
        ("nomodule:build", "cannot import nomodule"),
        ("mymodels:bild", "cannot find mymodels:bild"),
        ("mymodels:number", "cannot walk builtins.int"),
        ("mymodels:broken", "mymodels:broken() raised RuntimeError: out of luck (mymodels.py:7)"),
        ("mymodels.py", "mymodels.py' at byte 0: not a checkpoint: it looks like text"),
    ],
)
def test_a_bad_target_is_one_line_and_status_one(target: str, message: str, models: Path, commands: Commands) -> None:
    done = commands.run("show", target, cwd=models)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.startswith("leafwise: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_groups_prints_the_account(models: Path, commands: Commands) -> None:
    (models / "more.py").write_text(
        "from torch import nn\n"
        "def stack(): return nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])\n"
        "def tied():\n"
        "    model = nn.ModuleDict({'embed': nn.Embedding(9, 4), 'layers': stack(), 'head': nn.Linear(4, 9)})\n"
        "    model['head'].weight = model['embed'].weight\n"
        "    return model\n"
    )
    account = commands.run("groups", "more:stack", cwd=models).stdout
    assert "no_decay()" in account
    assert "6 leaves, 60 parameters · 48 decayed · 12 not decayed" in account
    deep = commands.run("groups", "more:stack", "--layer-decay", "0.5", "--lr", "1", "--json", cwd=models)
    assert [group["options"]["lr"] for group in json.loads(deep.stdout)["groups"]] == [
        0.125,
        0.125,
        0.25,
        0.25,
        0.5,
        0.5,
    ]
    wrong = commands.run("groups", "more:tied", "--layer-decay", "0.5", cwd=models)
    assert wrong.returncode == 1
    assert "embed.weight and head.weight are one leaf" in wrong.stderr
    settled = commands.run("groups", "more:tied", "--layer-decay", "0.5", "--wins", "head.weight", cwd=models)
    assert "Rule('head.weight', wins=True)" in settled.stdout
    assert "--blocks needs --layer-decay" in commands.run("groups", "more:stack", "--blocks", "*", cwd=models).stderr


def test_groups_of_a_file_needs_no_framework(saved: Path) -> None:
    script = (
        "import sys; from leafwise.cli import main; status = main(['groups', sys.argv[1]]);"
        "assert not {'numpy', 'torch'} & set(sys.modules); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(saved)], capture_output=True, encoding="utf-8", check=True)
    assert "3 leaves, 9 parameters · 6 decayed · 3 not decayed" in done.stdout


def test_help_and_version_are_printed_and_wrong_usage_is_an_error() -> None:
    assert "show" in run("--help").stdout
    assert "--where" in run("show", "--help").stdout
    assert run("--version").stdout.startswith("leafwise 0.")
    assert run().returncode == 0
    assert run().stdout == run("--help").stdout
    assert run("show", "x", "--depth", "-1").returncode == 2


def test_a_reader_that_leaves_early_is_not_a_failure(saved: Path) -> None:
    pipeline = f"{shlex.join(command('show', str(saved), '--json'))} | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", pipeline], capture_output=True, encoding="utf-8")
    assert done.stderr == ""
    assert done.returncode == 0


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """The output of the command when standard output is a (pseudo) terminal."""
    ours, theirs = pty.openpty()
    environ = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    environ |= {"TERM": "xterm", "COLUMNS": "80"} | environment
    process = subprocess.Popen([sys.executable, "-m", "leafwise", *arguments], stdout=theirs, env=environ)
    os.close(theirs)
    output = b""
    try:
        while chunk := os.read(ours, 65536):
            output += chunk
    except OSError:  # how Linux says that the other side has closed
        pass
    os.close(ours)
    assert process.wait() == 0
    return output.decode()


def test_a_terminal_gets_color_and_its_width_and_escaped_names(saved: Path) -> None:
    assert "\x1b[1mweight\x1b[0m" in on_a_terminal("show", str(saved))
    plain = on_a_terminal("show", str(saved), NO_COLOR="1")
    assert "\x1b" not in plain
    assert '"evil\\u001b[31m"' in plain
    narrow = on_a_terminal("show", str(saved), NO_COLOR="1", COLUMNS="24")
    assert max(map(len, narrow.splitlines())) <= 24


def test_ascii_output_is_ascii(saved: Path) -> None:
    done = run("show", str(saved), env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "`-" in done.stdout


# In one process, because importing PyTorch takes longer than all the rest.
EACH_IN_TURN = """
import json, sys
from leafwise.cli import main
for arguments in json.loads(sys.argv[1]):
    print("arguments:", ascii(arguments), file=sys.stderr, flush=True)
    try:
        status = main(arguments)
    except SystemExit as end:
        status = end.code or 0
    assert status in (0, 1), status
"""


@pytest.mark.slow
@pytest.mark.parametrize("locale", ["C", "de_DE.ISO-8859-1"])
def test_no_verb_fails_in_a_locale_without_utf_8(saved: Path, models: Path, locale: str) -> None:
    """If the locale is not installed, this tests the C locale twice."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONIOENCODING"}
    sources = Path(lw.__file__).parents[1]
    environment |= {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONPATH": os.pathsep.join(map(str, (models, sources)))}
    other = saved.with_name("other.safetensors")
    save_file({"\u4e2d\u6587.weight": torch.ones(2, 3), "a.bias": torch.ones(2)}, other)
    files, model = [str(saved), str(other)], "mymodels:build"
    commands = {
        "show": [files[1]], "read": [files[0], "a.weight"], "stats": [files[1]], "check": [files[1]], "diff": files,
        "image": [files[0], "a.weight"],
        "view": [files[1], "--export", str(saved.with_name("report.html"))],
        "ties": [files[1]], "groups": [model], "plan": [model, files[1]],
        "verify": [files[1]], "edit": [files[1], "-o", str(saved.with_name("edited.safetensors"))],
        "convert": [files[1], str(saved.with_name("out.safetensors"))], "tour": [],
        "completion": ["bash"],
    }  # fmt: skip
    assert list(commands) == VERBS
    every = [[verb, *given] for verb, arguments in commands.items() for given in (arguments, ["--help"])]
    script = [sys.executable, "-c", EACH_IN_TURN, json.dumps(every)]
    done = subprocess.run(script, capture_output=True, env=environment)
    errors = done.stderr.decode(errors="replace")
    assert errors.count("arguments: ") == len(every), errors
    assert "Traceback" not in errors
    assert done.returncode == 0, errors
    shown = subprocess.run([sys.executable, "-m", "leafwise", "show", files[1]], capture_output=True, env=environment)
    assert b"\\u4e2d\\u6587" in shown.stdout  # characters that cannot be encoded are escaped


def test_the_results_in_the_tour_are_as_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tour"]) == 0
    shown = capsys.readouterr().out
    assert "False" not in shown
    results = dict(zip(*[iter(_pairs(shown))] * 2, strict=True))
    assert results['t["5.weight"].path.code("net")'] == "'net[5].weight'"
    assert results['print(t["5.bias"].grad)'] == "None"
    assert results['t["4.weight"] is t["2.weight"]'] == "True"
    assert results["net[4].weight[0, 0].item()"] == "100.0"
    assert results['torch.allclose(t["2.weight"].grad, first + second)'] == "True"
    assert results["t.counts.names, t.counts.leaves, t.counts.parameters"] == "(8, 6, 121)"


def _pairs(shown: str) -> list[str]:
    """Each line of code with the line that follows it."""
    lines = shown.splitlines()
    pairs: list[str] = []
    for line, following in itertools.pairwise(lines):
        if line.startswith(">>> "):
            pairs += [line.removeprefix(">>> "), following]
    return pairs


def test_stats_prints_a_table_of_a_file_without_torch(saved: Path) -> None:
    script = (
        "import sys; from leafwise.cli import main; status = main(['stats', sys.argv[1]]);"
        "assert 'torch' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(saved)], capture_output=True, encoding="utf-8", check=True)
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["values", "mean", "std", "min", "max", "zeros"]
    assert "3 leaves, 9 values" in done.stdout
    assert "\x1b" not in done.stdout
    assert said(done.stderr) == ""


def test_stats_selects_folds_and_prints_json(
    saved: Path, models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["stats", str(saved), "--where", "a.*", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [leaf["path"] for leaf in data["leaves"]] == ["a.bias", "a.weight"]
    assert data["total"]["zeros"] == 8
    assert main(["stats", str(saved), "--no-histogram", "--depth", "1"]) == 0
    assert "2 leaves" in capsys.readouterr().out
    assert main(["stats", str(saved), "--where", "nothing.here"]) == 1
    assert "no leaf of" in capsys.readouterr().err
    monkeypatch.chdir(models)
    assert main(["stats", "mymodels:build"]) == 0
    assert "2 leaves, 9 values · bars count magnitudes" in capsys.readouterr().out
    assert main(["stats", str(saved.parent / "gone.safetensors")]) == 1
    assert "there is no such file" in capsys.readouterr().err


def test_read_prints_plain_values_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"url": "https://me:pass@host/a?b=c", "steps": [1, 2], "red": "\x1b[31m"}, tmp_path / "a.pt")
    for path, shown in (("url", "https://me:pass@host/a?b=c"), ("red", "\\u001b[31m"), ("steps", "[1, 2]")):
        assert main(["read", str(tmp_path / "a.pt"), path]) == 0
        assert capsys.readouterr().out == f"{shown}\n"


def test_read_prints_parts_of_arrays_and_refuses_wrong_indices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(
        {"w": torch.arange(12).reshape(3, 4), "bf": torch.tensor([1.5]).bfloat16(), "step": 3}, tmp_path / "a.pt"
    )
    path = str(tmp_path / "a.pt")
    assert main(["read", path, "w[0:2, 1]"]) == 0
    assert capsys.readouterr().out == "[1 5]\n"
    assert main(["read", path, "bf", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": "bf", "shape": [1], "dtype": "bfloat16", "values": [1.5]}
    assert main(["read", path, "step"]) == 0
    assert capsys.readouterr().out == "3\n"
    for wrong in ("w[9]", "w[a]", "w[0", "w[0:1:2:3]", "v", "step[0]"):
        assert main(["read", path, wrong]) == 1
    assert main(["ties", path]) == 0
    assert main(["show", path, "--where", "w"]) == 0


def test_stats_of_a_broken_file_is_one_line(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved.write_bytes(saved.read_bytes()[:-5])
    assert main(["stats", str(saved)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_output_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    path = str(lw.save(nn.Linear(2, 2), tmp_path / "model.safetensors"))
    stats = shlex.join(command("stats", path))
    full = subprocess.run(f"exec {stats} > /dev/full", shell=True, capture_output=True, encoding="utf-8")
    assert full.returncode == 1
    assert said(full.stderr) == "leafwise: cannot write to standard output: No space left on device\n"
    closed = subprocess.run(f"exec {stats} >&-", shell=True, capture_output=True, encoding="utf-8")
    assert "Traceback" not in closed.stderr


def test_an_interrupt_prints_one_line(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\ndef build():\n    pathlib.Path('started').touch()\n    while True: time.sleep(0.1)\n"
    )
    process = subprocess.Popen(
        command("stats", "slow:build"),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        # A process that a shell starts in the background ignores the signal, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (tmp_path / "started").exists() and process.poll() is None:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=300)
    assert process.returncode == 130
    assert printed == "leafwise: interrupted\n"


def test_a_program_that_calls_main_keeps_its_settings_of_the_process(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether main returns, raises, or is ended by SIGTERM, which it handles itself while it runs."""
    from leafwise.cli import ties

    def settings() -> list[object]:
        handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        return [*handlers, gc.isenabled(), warnings.showwarning, warnings.filters[:], dict(os.environ), os.getcwd()]

    def status(run: Callable[[object], object]) -> object:
        monkeypatch.setattr(ties, "run", run)
        try:
            return main(["ties", str(saved)])
        except (SystemExit, ZeroDivisionError) as error:
            return error.code if isinstance(error, SystemExit) else "raised"

    def fails(_: object) -> None:
        raise lw.Error("no")

    def is_interrupted(_: object) -> None:
        raise KeyboardInterrupt

    at_first, is_collecting = signal.getsignal(signal.SIGTERM), gc.isenabled()
    try:
        for handler, collect in [(print, gc.enable), (signal.SIG_DFL, gc.disable), (signal.SIG_IGN, gc.enable)]:
            signal.signal(signal.SIGTERM, handler)
            collect()
            before = settings()
            assert main(["check", f"{saved.parent}/*.safetensors"]) == 0  # which switches garbage collection on
            assert settings() == before
            for run, expected in [
                (lambda _: 0, 0),
                (fails, 1),
                (is_interrupted, 130),
                (lambda _: 1 / 0, "raised"),
                (lambda _: signal.raise_signal(signal.SIGTERM), 143),
            ]:
                assert status(run) == expected
                assert settings() == before
    finally:
        signal.signal(signal.SIGTERM, at_first)
        (gc.enable if is_collecting else gc.disable)()


def test_warnings_are_printed_like_errors(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from leafwise.kernels import cpu

    monkeypatch.setattr(cpu, "load", lambda: None)
    cpu._warn_not_built.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["stats", str(saved)]) == 0
    printed = capsys.readouterr().err
    assert printed.startswith("leafwise: leafwise was installed without a C compiler: ")
    assert len(printed.splitlines()) == 1
    cpu._warn_not_built.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "FILE", "--select", "lw101"], "--select: no rule has the code 'lw101'; did you mean 'LW101'?"),
        (["check", "FILE", "--ignore", "LW999"], "--ignore: no rule has the code 'LW999'"),
        (["groups", "FILE", "--layer-decay", "5"], "--layer-decay takes a number above 0 and at most 1, not 5.0"),
        (["convert", "FILE", "out.safetensors", "--dtype", "int8"], "cannot cast to 'int8'; floating-point arrays can"),
    ],
)
def test_messages_spell_options_as_the_command_line_does(
    arguments: list[str], message: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(saved) if word == "FILE" else word for word in arguments]) != 0
    assert message in capsys.readouterr().err


# -- a target without a verb, words, and totals ----------------------------------------------------------------------


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    names = [f"model.layers.{layer}.self_attn.{name}" for layer in range(2) for name in ("q_proj", "k_proj")]
    tensors = {f"{name}.weight": torch.ones(4, 4) for name in names}
    save_file(tensors | {"model.norm.weight": torch.ones(4), "lm_head.weight": torch.ones(8, 4)}, tmp_path / "deep.st")
    return tmp_path / "deep.st"


@pytest.mark.slow
def test_a_target_without_a_verb_is_shown(deep: Path, models: Path, commands: Commands) -> None:
    shown = run("show", str(deep)).stdout
    assert shown
    assert run(str(deep)).stdout == shown
    assert run("deep.st", cwd=deep.parent).stdout == shown
    assert run(str(deep), "--depth", "1").stdout == run("show", str(deep), "--depth", "1").stdout != shown
    assert run("--depth", "1", str(deep)).stdout == run("show", str(deep), "--depth", "1").stdout
    assert run(str(deep), "q_proj").stdout == run("show", str(deep), "q_proj").stdout != shown
    assert "20 parameters" in commands.run("mymodels:model", cwd=models).stdout
    assert "there is no such file" in run("nowhere.safetensors").stderr
    assert "the connection was refused" in run("https://localhost:1/model.safetensors").stderr


def test_a_verb_wins_over_a_file_of_the_same_name(deep: Path) -> None:
    folder = deep.parent
    (folder / "stats").write_bytes(deep.read_bytes())
    assert run("stats", cwd=folder).returncode == 2
    assert run("./stats", cwd=folder).stdout == run("show", "stats", cwd=folder).stdout != ""
    (folder / "bare").write_bytes(deep.read_bytes())
    assert run("bare", cwd=folder).stdout == run("show", "bare", cwd=folder).stdout != ""


def test_a_mistyped_verb_is_not_taken_for_a_file(deep: Path) -> None:
    done = run("shwo", str(deep))
    assert done.returncode == 2
    assert "there is no verb 'shwo', and no file of that name; did you mean 'show'? verbs: show, read" in done.stderr
    assert "verbs: show, read" in run("frobnicate").stderr
    assert "--json is not an option here; options follow the verb" in run("--json", "stats", str(deep)).stderr


@pytest.mark.parametrize(
    ("words", "leaves"),
    [
        (["q_proj"], 2),
        (["q_proj", "layers.1"], 1),
        (["model.layers.0"], 2),
        (["model"], 5),
        (["layers.{0..1}"], 0),
        (["**.layers.{0..1}"], 4),
        (["Q_PROJ"], 0),
        (["--where", "model", "k_proj"], 2),
        (["k_proj", "--depth", "1", "layers.0"], 1),
        (["--where", "model.layers.1"], 2),
    ],
)
def test_words_find_leaves(words: list[str], leaves: int, deep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["show", str(deep), "--json", *words])
    printed = capsys.readouterr()
    assert status == (0 if leaves else 1)
    if leaves:
        assert json.loads(printed.out)["counts"]["leaves"] == leaves
    else:
        assert printed.err.startswith(f"leafwise: no leaf of {deep} contains")


def test_a_word_that_finds_nothing_suggests_names(deep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(deep), "q_porj"]) == 1
    assert "contains 'q_porj'; did you mean q_proj" in capsys.readouterr().err
    assert main(["show", str(deep), "--where", "q_proj"]) == 1
    assert "matches 'q_proj'; did you mean \"**.q_proj\", which matches 2 leaves?" in capsys.readouterr().err
    assert main(["show", str(deep), "q_proj", "norm"]) == 1
    assert "contains all of 'q_proj', 'norm'" in capsys.readouterr().err
    assert main(["check", str(deep), "nothing"]) == 2
    assert "contains 'nothing'" in capsys.readouterr().err


def test_words_work_for_the_verbs_that_take_a_query(deep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb, counted in (("stats", '"path"'), ("check", '"checked": 2'), ("ties", ""), ("groups", "")):
        assert main([verb, str(deep), "q_proj", "--json"]) in (0, 1)
        assert counted in capsys.readouterr().out
    assert main(["stats", str(deep), "--json", "q_proj"]) == 0
    assert len(json.loads(capsys.readouterr().out)["leaves"]) == 2
    with pytest.raises(SystemExit):
        main(["verify", str(deep), "q_proj"])
    assert "unrecognized arguments: q_proj" in capsys.readouterr().err


def test_read_finds_the_only_leaf_with_a_word(deep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", str(deep), "norm[0:2]"]) == 0
    assert capsys.readouterr() == ("[1. 1.]\n", "model.norm.weight\n2 float32\n")
    assert main(["read", str(deep), "norm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == "model.norm.weight"
    assert main(["read", str(deep), "q_proj"]) == 1
    assert "2 leaves contain 'q_proj': model.layers.0.self_attn.q_proj.weight" in capsys.readouterr().err
    assert main(["read", str(deep), "nothing"]) == 1
    assert 'nothing at "nothing"' in capsys.readouterr().err


def test_the_largest_leaves_and_totals_are_printed(deep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(deep), "--top", "2"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["lm_head.weight", "8×4", "float32", "128", "B", "32%"],
        ["model.layers.0.self_attn.k_proj.weight", "4×4", "float32", "64", "B", "16%"],
        [],
        ["2", "of", "6", "leaves", "·", "192", "B", "of", "400", "B", "(48%)"],
    ]
    assert main(["show", str(deep), "--by", "module", "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert {group["name"]: group["bytes"] for group in groups} == {"model": 272, "lm_head": 128}
    assert main([str(deep), "--by", "module", "--depth", "3", "--top", "1", "q_proj"]) == 0
    assert "… 1 other" in capsys.readouterr().out
    assert main([str(deep), "--top", "2", "--depth", "2"]) == 1
    assert "--depth does not apply" in capsys.readouterr().err
    for wrong in (["--by", "size"], ["--top", "0"], ["--top", "many"]):
        with pytest.raises(SystemExit):
            main([str(deep), *wrong])
    assert main([str(deep), "--by", "dtype", "--depth", "2"]) == 1
    assert "cannot total by dtype with --depth" in capsys.readouterr().err
