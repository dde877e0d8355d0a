"""Completion in bash, zsh and fish: each real shell runs its script and asks leafwise."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import leafwise as lw
from leafwise.cli import VERBS, main
from leafwise.cli.candidates import candidates

SHELLS = ["bash", "zsh", "fish"]
# Names that a shell would run, split or expand if they were inserted into a command line or evaluated.
HOSTILE = [
    "model.$(touch pwned).weight", "model.`touch pwned`.weight", "model.;touch pwned;.weight", "model.a b.weight",
    "model.'q'.weight", 'model."q".weight', "model.new\nline.weight", "model.*.weight", "model.~.weight",
    "model.-rf.weight", "model.back\\slash.weight", "model.\x1b[31m.weight", "model.|touch pwned.weight",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = [f"model.layers.{layer}.self_attn.{name}" for layer in range(2) for name in ("q_proj", "k_proj")]
    tensors = {f"{name}.weight": torch.ones(4, 4) for name in names} | {"model.norm.weight": torch.ones(4)}
    save_file(tensors, tmp_path / "deep.st")
    save_file(tensors | {name: torch.ones(1) for name in HOSTILE}, tmp_path / "evil.st")
    (tmp_path / "file $(touch pwned).st").write_bytes((tmp_path / "deep.st").read_bytes())
    command = tmp_path / "bin" / "leafwise"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m leafwise "$@"\n')
    command.chmod(0o755)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    sources = str(Path(lw.__file__).parents[1])
    paths = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": sources, "HOME": str(folder)}
    return {**os.environ, **paths, "TERM": "dumb", "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


BASH = """
eval "$(leafwise completion bash)"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_leafwise
printf '%s\\n' "${COMPREPLY[@]}"
"""
# zsh runs completion functions only in its line editor, so `compadd` and `_files` are replaced by printing.
ZSH = """
compdef() { : }
eval "$(leafwise completion zsh)"
compadd() { [[ $1 == -S ]] && shift 2; print -rl -- "${(@P)2}" }
_files() { print -rl -- ${words[CURRENT]}*(N) }
words=("$@"); CURRENT=$#
_leafwise
"""


def completed(shell: str, folder: Path, *words: str) -> list[str]:
    """What a shell offers for the last word of a command line."""
    if shell == "fish":
        line = " ".join([*words[:-1], words[-1]])
        command = ["fish", "-c", f"leafwise completion fish | source; complete -C {fish_quoted(line)}"]
    else:
        command = [shell, *(["--norc"] if shell == "bash" else ["-f"]), "-c", BASH if shell == "bash" else ZSH, shell]
        command += words
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return [line.partition("\t")[0] for line in done.stdout.splitlines() if line]


def fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_verbs_options_values_and_paths(shell: str, folder: Path) -> None:
    needs(shell)
    assert {"stats"} == set(completed(shell, folder, "leafwise", "stat"))
    assert {*VERBS, "deep.st"} <= set(completed(shell, folder, "leafwise", ""))
    assert "--depth" in completed(shell, folder, "leafwise", "show", "--de")
    assert set(completed(shell, folder, "leafwise", "show", "deep.st", "--by", "d")) == {"dtype", "depth", "device"}
    assert set(completed(shell, folder, "leafwise", "completion", "")) == set(SHELLS)
    assert "deep.st" in completed(shell, folder, "leafwise", "show", "de")
    below = {"model.layers", "model.norm"}
    assert set(completed(shell, folder, "leafwise", "show", "deep.st", "model.")) == below
    assert set(completed(shell, folder, "leafwise", "deep.st", "model.")) == below
    assert set(completed(shell, folder, "leafwise", "stats", "deep.st", "--where", "model.n")) == {"model.norm"}
    assert set(completed(shell, folder, "leafwise", "show", "deep.st", "q_")) == {"q_proj"}


@pytest.mark.parametrize("shell", SHELLS)
def test_names_from_a_file_cannot_reach_the_shell(shell: str, folder: Path) -> None:
    needs(shell)
    offered = completed(shell, folder, "leafwise", "show", "evil.st", "model.")
    assert set(offered) == {"model.layers", "model.norm"}
    completed(shell, folder, "leafwise", "")  # a file has a hostile name, too
    assert not (folder / "pwned").exists()


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_half_typed_or_wrong_line_is_no_error(shell: str, folder: Path) -> None:
    needs(shell)
    assert completed(shell, folder, "leafwise", "show", "nowhere.st", "model.") == []
    assert completed(shell, folder, "leafwise", "show", "https://localhost:1/x.st", "m") == []
    assert completed(shell, folder, "leafwise", "show", "evil:build", "m") == []
    assert completed(shell, folder, "leafwise", "verify", "deep.st", "m") == []


KEYS = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"], "fish": ["fish", "-N", "-i"]}
SETUP = {
    "bash": 'eval "$(leafwise completion bash)"',
    "zsh": 'autoload -U compinit; compinit -u -d .dump; eval "$(leafwise completion zsh)"',
    "fish": "leafwise completion fish | source",
}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_tab_key_inserts_the_path_in_the_line_editor(shell: str, folder: Path) -> None:
    needs(shell)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        KEYS[shell],
        cwd=folder,
        env=environment(folder),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        os.write(ours, f"{SETUP[shell]}; echo read''y\n".encode())
        screen(ours, "ready")
        os.write(ours, b"leafwise show evil.st model.n\t")
        assert "model.norm" in screen(ours, "model.norm")
        os.write(ours, b"\x15leafwise show evil.st model.\t\t")
        shown = screen(ours, "model.layers")
        assert "touch" not in shown
        assert not (folder / "pwned").exists()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def screen(terminal: int, wanted: str) -> str:
    """What a shell prints until it has printed the wanted text."""
    output, end = "", time.monotonic() + 300
    while wanted not in output.partition("read''y")[2 if "read''y" in output else 0]:
        ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
        if not ready:
            pytest.fail(f"{wanted!r} was not printed: {output!r}")
        output += os.read(terminal, 65536).decode(errors="replace")
    return output


# -- what leafwise answers, without a shell --------------------------------------------------------------------------


def test_the_answers_are_lines_that_only_name_plain_paths(folder: Path) -> None:
    evil = str(folder / "evil.st")
    assert candidates(["show", evil, ""]).words == ["model"]
    assert candidates(["show", evil, "model"]).words == ["model", "model.layers", "model.norm"]
    assert candidates(["show", evil, "model.$"]).words == []
    assert candidates(["read", evil, "q_"]).words == []  # read takes a path, or a part of one that only one leaf has
    assert candidates([evil, "--where", "model.norm"]).words == ["model.norm", "model.norm.weight"]


def test_options_take_their_values_with_a_space_or_an_equals_sign(folder: Path) -> None:
    deep = str(folder / "deep.st")
    assert candidates(["show", deep, "--by=de"]).words == ["--by=depth", "--by=device"]
    assert candidates(["show", deep, "--by", "=", "de"]).words == ["depth", "device"]  # as bash splits it
    assert candidates(["show", "--depth", "2", deep, "model.n"]).words == ["model.norm"]
    assert candidates(["show", "--json", deep, "model.n"]).words == ["model.norm"]
    assert candidates(["show", "--depth", ""]).words == []
    assert candidates(["convert", "a", "--dtype", "bf"]).words == ["bfloat16"]
    assert candidates(["check", "--fail-on", "w"]).words == ["warning"]
    assert candidates(["check", deep, "--against", "d"]) == ([], True, False)
    assert candidates(["edit", deep, "--drop", "model.n"]).words == ["model.norm"]
    assert candidates(["edit", deep, ""]) == ([], True, False)  # it takes several files


def test_a_quoted_file_name_is_read_as_the_shell_would_pass_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    (folder / "my file.st").write_bytes((folder / "deep.st").read_bytes())
    for spelled in (f"'{folder}/my file.st'", f'"{folder}/my file.st"', f"{folder}/my\\ file.st", "~/deep.st"):
        assert candidates(["show", spelled, "model.n"]).words == ["model.norm"]
    assert candidates(["show", "'unclosed", "m"]).words == []


def test_every_error_is_silent(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "broken.st").write_bytes(b"\xff" * 100)
    np.savez(folder / "a.npz", a=np.ones(2))
    for words in ([], ["show", str(folder / "broken.st"), "m"], ["nonsense", "x", "y"], ["show", "\x00", "m"]):
        assert main(["__complete", *words]) == 0
        assert capfd.readouterr().err == ""
    assert main(["__complete", "show", str(folder / "a.npz"), ""]) == 0
    assert capfd.readouterr().out.splitlines() == ["-", "a"]


def test_completing_imports_no_framework(folder: Path) -> None:
    code = (
        "import sys; from leafwise.cli import main; main(['__complete', 'show', sys.argv[1], 'model.']);"
        "assert not {'torch', 'numpy', 'jax'} & sys.modules.keys(), 'imported'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "deep.st")],
        capture_output=True,
        encoding="utf-8",
        env=environment(folder),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "model.norm" in done.stdout


def test_an_unknown_shell_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completion", "powershell"])
    assert "invalid choice" in capsys.readouterr().err
