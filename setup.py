"""The part of the build that pyproject.toml cannot say: a library of C, without which the package works too."""

import platform
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNELS = "src/leafwise/kernels/c"
HEADERS = (
    "instruction_sets", "lanes", "pairs", "weighted", "chunk",
    "combining", "comparing", "hashing", "listing", "reading", "tensors",
)  # fmt: skip
# The same bits everywhere: a product is rounded before it is added, unless the code says otherwise.
OPTIONS = ["-O3", "-ffp-contract=off", "-fno-strict-aliasing", "-pthread", "-Wno-psabi"]
if platform.machine() in ("i386", "i686"):
    OPTIONS += ["-msse2", "-mfpmath=sse"]  # the older arithmetic of these machines rounds twice


class BuildLibrary(build_ext):
    """Builds a plain library, loaded by ctypes: it does not know of Python, and needs no headers of it. Its name must
    not look like that of a module."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".shared"))

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []


class AnyPython(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


commands: dict[str, Any] = {"build_ext": BuildLibrary, "bdist_wheel": AnyPython}
setup(
    cmdclass=commands,
    ext_modules=[
        Extension(
            "leafwise.kernels._cpu",
            [f"{KERNELS}/cpu.c"],
            depends=[f"{KERNELS}/{name}.h" for name in HEADERS],
            extra_compile_args=OPTIONS,
            extra_link_args=["-pthread"],
            libraries=["m"],
            optional=True,  # without a compiler, NumPy does it
        )
    ],
)
