"""Listing a very large file, listing a `.pt` and converting it, compared with the tools that people use.

    python benchmarks/bench_files.py [FOLDER]

Needs about 7 GB in FOLDER (a temporary one by default). Every task runs in a separate process.
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
        leafwise = [str(Path(sys.executable).with_name("leafwise"))]

        huge = folder / "huge.safetensors"
        sparse_safetensors(huge)
        there = os.stat(huge).st_blocks * 512
        print(f"# {TENSORS:,} tensors, {huge.stat().st_size / 1e12:.1f} TB, of which {there:,} bytes are on disk")
        assert int(run(sys.executable, "-c", LIST_WITH_SAFETENSORS, str(huge))) == TENSORS
        assert json.loads(run(*leafwise, "show", str(huge), "--json"))["counts"]["leaves"] == TENSORS
        times = interleaved(
            7,
            ours=lambda: run(*leafwise, "show", str(huge)),
            theirs=lambda: run(sys.executable, "-c", LIST_WITH_SAFETENSORS, str(huge)),
        )
        good = report("leafwise show / safetensors, names and shapes", times["ours"] / times["theirs"], 1.0)
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
