"""Builds the C code with other compilers and for other processors, and checks that it gives the same bits as here.

    python -m tools.kernel_matrix

Compilers and emulators are Debian's (see PACKAGES). Builds whose tools are not installed are reported as not run.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tests.kernels.cases import cases

from leafwise.kernels import comparing, cpu

HERE = Path(__file__).parent
KERNELS = Path(cpu.__file__).with_name("c")
PACKAGES = (
    "gcc gcc-11 clang-14 clang-16 clang-19 musl-tools qemu-user gcc-aarch64-linux-gnu gcc-arm-linux-gnueabihf "
    "gcc-i686-linux-gnu gcc-powerpc64le-linux-gnu gcc-riscv64-linux-gnu"
)
_OPTIONS = ["-O3", "-ffp-contract=off", "-fno-strict-aliasing", "-pthread", "-Wno-psabi"]  # as in setup.py


class Build(NamedTuple):
    """A compiler, and the emulator that runs its programs, if any."""

    name: str
    compiler: str
    emulator: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    sets: int = 0  # how many instruction sets it must run; 0: those of this machine, or one in an emulator

    def missing(self) -> str:
        return " ".join(tool for tool in (self.compiler, *self.emulator[:1]) if shutil.which(tool) is None)


def _qemu(processor: str, model: str = "") -> tuple[str, ...]:
    return (f"qemu-{processor}", *(("-cpu", model) if model else ()))


BUILDS = [
    Build("gcc", "gcc"),
    Build("gcc, -O1", "gcc", options=("-O1",)),
    Build("gcc, -march=native", "gcc", options=("-march=native",)),
    Build("gcc, undefined behavior and addresses checked", "gcc", options=(
        "-O1", "-g", "-fsanitize=undefined,address", "-fno-sanitize-recover=all"
    )),
    Build("gcc 11", "gcc-11"),
    Build("clang 14", "clang-14"),
    Build("clang 16", "clang-16"),
    Build("clang 19", "clang-19"),
    Build("gcc with musl", "musl-gcc"),
    # An emulated processor has only the instructions of its model: code for newer ones must not be called.
    Build("gcc on an emulated Opteron (SSE3)", "gcc", _qemu("x86_64", "Opteron_G1")),
    Build("gcc on an emulated EPYC (AVX2)", "gcc", _qemu("x86_64", "EPYC"), sets=2),
    Build("gcc for 32-bit x86", "i686-linux-gnu-gcc", _qemu("i386"), ("-msse2", "-mfpmath=sse")),
    Build("gcc for 64-bit ARM", "aarch64-linux-gnu-gcc", _qemu("aarch64")),
    Build("gcc for 32-bit ARM", "arm-linux-gnueabihf-gcc", _qemu("arm")),
    Build("gcc for RISC-V", "riscv64-linux-gnu-gcc", _qemu("riscv64")),
    Build("gcc for POWER (little-endian)", "powerpc64le-linux-gnu-gcc", _qemu("ppc64le")),
]  # fmt: skip


def arrays() -> list[tuple[Any, Any]]:
    """Arrays, each with a second one to compare with; two are longer than a chunk, and than what is read at a time."""
    rng = np.random.default_rng(17)
    found = [array for array in cases().values() if array.size]
    long = rng.normal(size=cpu.CHUNK + 70_001) * 0.02
    found += [long.astype(cpu.numpy_dtype(dtype)) for dtype in ("float32", "bfloat16")]
    pairs = []
    for array in found:
        other = np.roll(array, 3)
        other[::2] = array[::2]
        pairs.append((array, other))
    return pairs


def content(pairs: list[tuple[Any, Any]]) -> bytes:
    """The file that kernel_driver.c reads."""
    kinds, tables_of, tables, tiny = cpu.of_dtypes([array.dtype.name for array, _ in pairs])
    sizes = np.array([array.size for array, _ in pairs], np.int64)
    first_chunks = np.zeros(len(pairs) + 1, np.int64)
    np.cumsum((sizes + cpu.CHUNK - 1) // cpu.CHUNK, out=first_chunks[1:])
    head = np.array([len(pairs), cpu.CHUNK, len(tables), first_chunks[-1]], np.int64)
    facts = b"".join(_padded(part) for part in (kinds, tables_of, tables, tiny))
    at = head.nbytes + 3 * sizes.nbytes + first_chunks.nbytes + len(facts)
    offsets: tuple[list[int], list[int]] = ([], [])
    data = []
    for pair in pairs:
        for side, array in enumerate(pair):
            offsets[side].append(at)
            data.append(_padded(array))
            at += len(data[-1])
    numbers = (head, np.array(offsets[0], np.int64), np.array(offsets[1], np.int64), sizes, first_chunks)
    return b"".join((*(part.tobytes() for part in numbers), facts, *data))


def _padded(array: Any) -> bytes:
    raw: bytes = array.tobytes()
    return raw + b"\0" * (-len(raw) % 8)


def parsed(output: bytes, arrays: int, chunks: int) -> list[tuple[Any, Any, Any]]:
    """The results, histograms and comparisons of each run."""
    sizes = [chunks * cpu._RESULT.itemsize, arrays * 256 * 8, chunks * comparing._RESULT.itemsize]
    if not output or len(output) % sum(sizes):
        raise ValueError(f"wrote {len(output)} bytes, but a multiple of {sum(sizes)} was expected")
    found = []
    for start in range(0, len(output), sum(sizes)):
        parts = [output[start + sum(sizes[:n]) : start + sum(sizes[: n + 1])] for n in range(3)]
        dtypes = (cpu._RESULT, np.dtype(np.int64), comparing._RESULT)
        found.append(tuple(np.frombuffer(part, dtype) for part, dtype in zip(parts, dtypes, strict=True)))
    return found


def same(one: tuple[Any, Any, Any], other: tuple[Any, Any, Any]) -> bool:
    """Whether all numbers are the same; the signs of zero and NaN are ignored."""
    for a, b in zip(one, other, strict=True):
        for x, y in [(a[name], b[name]) for name in a.dtype.names] if a.dtype.names else [(a, b)]:
            if not ((x == y) | ((x != x) & (y != y))).all():
                return False
    return True


def here(path: Path, pairs: list[tuple[Any, Any]]) -> tuple[Any, Any, Any]:
    """The results of the installed library, with the widest instruction set of this machine. tests/kernels compares
    these with the reference."""
    library = cpu.loaded()
    if library is None:
        raise SystemExit("leafwise was installed without its C code, so there is nothing to compare with")
    raw = content(pairs)
    path.write_bytes(raw)
    memory = np.frombuffer(raw, np.uint8)
    count, chunk, tables, chunks = np.frombuffer(raw, np.int64, 4).tolist()
    at = 32
    columns = []
    for length, dtype in (
        (count, np.int64), (count, np.int64), (count, np.int64), (count + 1, np.int64), (count, np.int32),
        (count, np.int32), (tables * 256, np.float32), (count, np.float32),
    ):  # fmt: skip
        columns.append(np.frombuffer(raw, dtype, length, at))
        at += (columns[-1].nbytes + 7) // 8 * 8
    offsets, others, sizes, first_chunks, kinds, tables_of, values, tiny = columns
    base = memory.__array_interface__["data"][0]
    addresses, other_addresses = offsets + base, others + base
    results, histograms = np.empty(chunks, cpu._RESULT), np.zeros(count * 256, np.int64)
    comparisons, in_memory = np.empty(chunks, comparing._RESULT), np.full(count, -1, np.int32)
    widest = library.leafwise_instruction_sets() - 1
    given = (addresses, sizes, first_chunks, None, kinds, tables_of, values, tiny, results, histograms)
    pointers = [None if array is None else array.ctypes.data for array in given]
    assert not library.leafwise_measure(count, chunk, *pointers, 2, widest)
    given = (addresses, other_addresses, sizes, first_chunks, in_memory, in_memory, kinds, tables_of, values)
    pointers = [array.ctypes.data for array in (*given, comparisons)]
    assert not library.leafwise_compare(count, chunk, *pointers, 1, 2, widest)
    return results, histograms, comparisons


def tried(build: Build, folder: Path, data: Path, right: tuple[Any, Any, Any]) -> str:
    """What is wrong with a build; empty if every bit is the same."""
    error, output = built_and_run(build, folder, data)
    return error or difference(build, output, right)


def built_and_run(build: Build, folder: Path, data: Path) -> tuple[str, bytes]:
    """What went wrong, or empty, and what the program wrote."""
    program = folder / "driver"
    static = ["-static"] if build.emulator else []  # the shared libraries of an emulated processor are not installed
    command = [build.compiler, *_OPTIONS, *static, *build.options, f"-I{KERNELS}", str(HERE / "kernel_driver.c")]
    done = subprocess.run([*command, "-o", str(program), "-lm"], capture_output=True, encoding="utf-8")
    if done.returncode:
        return f"does not compile: {done.stderr.strip()[-300:]}", b""
    run = subprocess.run([*build.emulator, str(program), str(data)], capture_output=True, timeout=1800)
    if run.returncode:
        return f"exit status {run.returncode}: {run.stderr.decode(errors='replace')[-300:]}", b""
    return "", run.stdout


def difference(build: Build, output: bytes, right: tuple[Any, Any, Any]) -> str:
    """What is wrong with the output of a build; empty if every bit is the same."""
    try:
        found = parsed(output, len(right[1]) // 256, len(right[0]))
    except ValueError as error:
        return str(error)
    sets = build.sets or (1 if build.emulator else cpu.instruction_sets())
    if len(found) != 2 * sets:
        return f"ran {len(found) // 2} instruction sets instead of {sets}"
    wrong = sum(not same(one, right) for one in found)
    return f"{wrong} of {len(found)} runs gave different results" if wrong else ""


def main() -> list[tuple[str, str]]:
    """Prints and returns a line for each build: its name and its result."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "cases")
        right = here(data, arrays())
        for build in BUILDS:
            if missing := build.missing():
                result = f"not run: {missing} is not installed"
            else:
                result = tried(build, Path(folder), data, right) or "the same bits"
            print(f"{build.name}: {result}", flush=True)
            lines.append((build.name, result))
    return lines


if __name__ == "__main__":
    sys.exit(any(result != "the same bits" and not result.startswith("not run") for _, result in main()))
