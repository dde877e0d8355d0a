"""Listing a very large file, listing a `.pt` and converting it, compared with the tools that people use.

    python benchmarks/bench_files.py [FOLDER]

Needs about 7 GB in FOLDER (a temporary one by default). Every task runs in a separate process. Bytecode is compiled
before anything is timed, as it is when pip installs a package.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from common import interleaved, machine, peak_memory, run
from figures import exit_status, report

TENSORS = 46_848
GIB = 1 << 30


def sparse_safetensors(path: Path) -> None:
    """46,848 tensors in 1.4 TB, of which only the header is written."""
    header, at = {}, 0
    for number in range(TENSORS):
        shape = [(4400 if number % 3 else 2200) - number % 7, 4096]
        header[f"model.layers.{number // 768}.experts.{number % 768 // 3}.{'uvw'[number % 3]}.weight"] = {
            "dtype": "BF16",
            "shape": shape,
            "data_offsets": [at, at + shape[0] * 8192],
        }
        at += shape[0] * 8192
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)


def expert_tensors(path: Path, tensors: int, scales: bool = False) -> None:
    """Tensors of experts. With `scales`, each has a second one, and they are sorted by dtype, as safetensors does: all
    scales come first, so that neighbors in the tree are far apart in the file."""
    layers = [f"model.layers.{n // 768}.mlp.experts.{n % 768 // 3}.{'uvw'[n % 3]}_proj" for n in range(tensors)]
    header, at = {}, 0
    for dtype, shape, nbytes, end in [("F32", [16, 56], 3584, "weight_scale_inv")] * scales + [
        ("F8_E4M3", [2048, 7168], 2048 * 7168, "weight")
    ]:
        for layer in layers:
            header[f"{layer}.{end}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
            at += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)


LIST_WITH_SAFETENSORS = """
import sys
from safetensors import safe_open
with safe_open(sys.argv[1], framework="np") as file:
    rows = [(name, file.get_slice(name).get_shape()) for name in file.keys()]
print(len(rows))
"""

LIST_WITH_TORCH = """
import sys, torch
state = torch.load(sys.argv[1], mmap=True)
print(len([(name, value.shape) for name, value in state.items()]))
"""


def listing_ratio(leafwise: list[str], path: Path, tensors: int, rounds: int) -> float:
    """The time of `leafwise show`, divided by that of a script that lists names and shapes with safetensors."""
    script = [sys.executable, "-c", LIST_WITH_SAFETENSORS, str(path)]
    assert int(run(*script)) == tensors
    assert json.loads(run(*leafwise, "show", str(path), "--json"))["counts"]["leaves"] == tensors
    times = interleaved(rounds, ours=lambda: run(*leafwise, "show", str(path)), theirs=lambda: run(*script))
    return times["ours"] / times["theirs"]


COPY_WITH_FSYNC = """
import os, shutil, sys
shutil.copyfile(sys.argv[1], sys.argv[2])
with open(sys.argv[2], "rb") as file:
    os.fsync(file.fileno())
"""


def main() -> int:
    machine()
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        folder = Path(name)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        leafwise = [str(Path(sys.executable).with_name("leafwise"))]

        huge = folder / "huge.safetensors"
        sparse_safetensors(huge)
        there = os.stat(huge).st_blocks * 512
        print(f"# {TENSORS:,} tensors, {huge.stat().st_size / 1e12:.1f} TB, of which {there:,} bytes are on disk")
        good = report("leafwise show / safetensors, names and shapes", listing_ratio(leafwise, huge, TENSORS, 7), 1.0)
        for what, tensors, scales in [("300", 300, False), ("150,000", 150_000, False), ("2 × 23,424", 23_424, True)]:
            other = folder / "other.safetensors"
            expert_tensors(other, tensors, scales)
            ratio = listing_ratio(leafwise, other, tensors * (1 + scales), 5)
            good &= report(f"leafwise show / safetensors, {what} tensors", ratio, 1.0)
        good &= report(
            "peak memory of leafwise show, MB / 150 MB", peak_memory(*leafwise, "show", str(huge)) / 150e6, 1.0
        )

        import torch

        model = folder / "model.pt"
        torch.manual_seed(0)
        state = {f"layers.{n}.weight": torch.randn(4096, 4096).to(torch.bfloat16) for n in range(64)}
        torch.save(state, model)
        print(f"# a .pt of {model.stat().st_size / GIB:.2f} GiB, {len(state)} tensors")
        listed = json.loads(run(*leafwise, "show", str(model), "--json"))["leaves"]
        assert {leaf["path"]: tuple(leaf["shape"]) for leaf in listed} == {k: tuple(v.shape) for k, v in state.items()}
        times = interleaved(
            5,
            ours=lambda: run(*leafwise, "show", str(model)),
            theirs=lambda: run(sys.executable, "-c", LIST_WITH_TORCH, str(model)),
        )
        good &= report("leafwise show / torch.load(mmap=True), listing", times["ours"] / times["theirs"], 1 / 20)

        out, copied = folder / "out.safetensors", folder / "copied.pt"
        run(*leafwise, "convert", str(model), str(out))
        from safetensors.torch import load_file

        loaded = load_file(out)
        assert all(
            torch.equal(loaded[name].view(torch.int16), value.view(torch.int16)) for name, value in state.items()
        )
        del loaded, state

        def convert() -> None:
            out.unlink(missing_ok=True)
            run(*leafwise, "convert", str(model), str(out))

        def copy() -> None:
            copied.unlink(missing_ok=True)
            run(sys.executable, "-c", COPY_WITH_FSYNC, str(model), str(copied))

        times = interleaved(5, ours=convert, theirs=copy)
        good &= report("leafwise convert .pt → safetensors / copy with fsync", times["ours"] / times["theirs"], 1.1)
        memory = peak_memory(*leafwise, "convert", str(model), str(out))
        good &= report("peak memory of leafwise convert, MB / 200 MB", memory / 200e6, 1.0)
    return exit_status([good])


if __name__ == "__main__":
    sys.exit(main())
