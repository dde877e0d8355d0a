"""What the names in a pickle would do if somebody loaded it with `torch.load(weights_only=False)` or `pickle.load`.

docs/check.md lists these names for users.
"""

from collections.abc import Container, Iterable

from leafwise.core.capabilities.vetting import Danger
from leafwise.core.path import escape


def _words(text: str, prefix: str = "") -> list[str]:
    return [prefix + word for word in text.split()]


# Modules that run commands or code, import or build code, or reach the network, the file system or other processes.
DANGEROUS_MODULES = frozenset(
    _words(
        """
        _posixsubprocess _pyrepl aiohttp asyncio bdb cProfile cffi code codeop commands concurrent ctypes distutils
        doctest ensurepip fcntl fileinput ftplib http httplib httpx imp importlib ipykernel IPython linecache mmap
        multiprocessing nt os paramiko pdb pip pkg_resources pkgutil platform popen2 posix profile pty pydoc requests
        resource runpy sched select selectors setuptools shelve shutil signal site smtplib socket socketserver sqlite3
        ssl subprocess sys sysconfig telnetlib tempfile test threading timeit trace urllib urllib2 urllib3 venv
        webbrowser wsgiref xmlrpc zipimport zipapp
        cloudpickle cPickle dill jsonpickle marshal pickle _pickle pickletools
        logging.config lib2to3 torch.hub torch.package torch.utils.cpp_extension torch.utils.collect_env
        torch.distributed.run torch.distributed.launch torch.distributed.elastic torch.distributed.rpc
        torch.multiprocessing torch._inductor torch._dynamo torch._ops torch.ops torch.jit torch.fx torch.onnx
        torch.classes torch.library torch.testing
        numpy.f2py numpy.testing numpy.distutils numpy.ctypeslib numpy.lib.npyio numpy.lib.format
        """
    )
)
# Names in modules that also contain harmless ones.
DANGEROUS_NAMES = frozenset(
    _words(
        "eval exec compile open input breakpoint __import__ globals locals vars setattr delattr execfile file reload "
        "memoryview apply",
        "builtins.",
    )
    + _words(
        """
        operator.attrgetter operator.methodcaller functools.reduce types.FunctionType types.CodeType types.LambdaType
        types.ModuleType io.open _io.open _io.FileIO io.FileIO codecs.open pathlib.Path.open
        torch.load torch.save torch.serialization.load torch.serialization.save torch.compile torch.export.load
        torch.from_file torch.storage.UntypedStorage.from_file
        numpy.load numpy.save numpy.fromfile numpy.memmap numpy.core.memmap.memmap numpy._core.memmap.memmap
        numpy.loadtxt numpy.genfromtxt numpy.savetxt joblib.load joblib.numpy_pickle.load sklearn.externals.joblib.load
        pandas.read_pickle pandas.eval pandas.io.pickle.read_pickle yaml.load yaml.unsafe_load
        atexit.register gc.get_objects inspect.getsource
        """
    )
)
# Functions of such modules that PyTorch itself writes into files, and that only make lists.
_EXPECTED_MODULES = ("torch.jit._pickle",)

# Modules whose classes only store values, or compute with them.
HARMLESS_MODULES = frozenset(
    _words(
        """
        array calendar collections copyreg datetime decimal enum fractions ipaddress numbers numpy.random omegaconf
        pathlib random re statistics torch.nn torch.optim torch.amp torch.cuda.amp typing uuid zoneinfo
        """
    )
)
HARMLESS_NAMES = frozenset(
    _words(
        "int float bool str bytes bytearray tuple list dict set frozenset complex range slice object type print len "
        "sum min max abs round",
        "builtins.",
    )
    + _words(
        "ndarray dtype float64 float32 float16 int64 int32 int16 int8 uint8 bool_ bool str_ datetime64 timedelta64 "
        "matrix ma.core._mareconstruct ma.core.MaskedArray",
        "numpy.",
    )
    + _words(
        """
        argparse.Namespace types.SimpleNamespace functools.partial operator.itemgetter _io.BytesIO io.BytesIO
        _io.StringIO io.StringIO torch.torch_version.TorchVersion torch.Generator _codecs.encode
        pytorch_lightning.utilities.parsing.AttributeDict lightning.pytorch.utilities.parsing.AttributeDict
        lightning.fabric.utilities.data.AttributeDict lightning_fabric.utilities.data.AttributeDict
        """
    )
)


def danger(name: str, expected: Container[str] = ()) -> Danger | None:
    """What loading a pickle with this name would do; None for names that every checkpoint contains. `expected` are the
    names that leafwise replaces by its own.

    >>> [danger(name) for name in ("os.system", "datetime.datetime", "my_package.Model")]
    ['dangerous', 'harmless', 'unknown']
    """
    parts = name.split(".")
    modules = {".".join(parts[:count]) for count in range(1, len(parts))}
    if any(name.startswith(f"{module}.") for module in _EXPECTED_MODULES) or parts[0] == "__torch__":
        return None  # TorchScript classes are not Python
    if any(part.startswith("__") and part.endswith("__") for part in parts[1:]) and name not in expected:
        return "dangerous"  # an attribute such as __globals__ or __subclasses__ leads anywhere
    if name in expected:
        return None
    if name in DANGEROUS_NAMES or modules & DANGEROUS_MODULES:
        return "dangerous"
    return "harmless" if name in HARMLESS_NAMES or modules & HARMLESS_MODULES else "unknown"


def warning_text(names: Iterable[str]) -> str:
    """What to add to an error about a pickle that cannot be read; empty if no name in it is dangerous."""
    found = [escape(name[:100]) for name in names if danger(name) == "dangerous"]
    more = f" and {len(found) - 3:,} more" if len(found) > 3 else ""
    return f"; do not load it with other programs: it would call {', '.join(found[:3])}{more}" if found else ""
