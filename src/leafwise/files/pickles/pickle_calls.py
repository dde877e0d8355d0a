"""What the names in a pickle would do if somebody loaded it with `torch.load(weights_only=False)` or `pickle.load`.

docs/check.md lists these names for users.
"""

import re
import sys
from collections.abc import Container, Iterable
from typing import Any

from leafwise.core.capabilities.vetting import Danger
from leafwise.core.opaque import Opaque
from leafwise.core.path import escape, listed
from leafwise.files.pickles.pickle_objects import Usage, looks_like_class


def _words(text: str, prefix: str = "") -> list[str]:
    return [prefix + word for word in text.split()]


# Modules that run commands or code, import or build code, or reach the network, the file system or other processes.
DANGEROUS_MODULES = frozenset(
    _words(
        """
        _posixsubprocess _pyrepl aiohttp asyncio bdb cProfile cffi code codeop commands concurrent ctypes
        distutils doctest ensurepip fcntl fileinput ftplib http httplib httpx imp importlib ipykernel IPython
        linecache mmap multiprocessing nt os paramiko pdb pip pkg_resources pkgutil platform popen2 nturl2path
        posix posixpath ntpath genericpath profile pty pydoc requests resource runpy sched select selectors
        setuptools shelve shutil signal site smtplib socket socketserver sqlite3 ssl subprocess sys sysconfig
        telnetlib tempfile test threading timeit trace urllib urllib2 urllib3 venv webbrowser wsgiref xmlrpc
        zipimport zipapp cloudpickle cPickle dill jsonpickle marshal pickle _pickle pickletools logging.config
        lib2to3 frozen_importlib frozen_importlib_external huggingface_hub torch.hub torch.package
        torch.utils.cpp_extension torch.utils.collect_env torch.distributed.run torch.distributed.launch
        torch.distributed.elastic torch.distributed.rpc torch.multiprocessing torch._inductor
        torch._dynamo.guards torch.utils.model_zoo torch._ops torch.ops torch.jit torch.fx torch.onnx
        torch.classes torch.library torch.testing torch.utils.bottleneck torch._dynamo.repro torch._dynamo.debug_utils
        unittest idlelib tarfile zipfile gzip bz2 lzma numpy.f2py numpy.testing numpy.distutils numpy.ctypeslib
        sympy jinja2 hydra._internal numpy.lib.npyio numpy.lib._npyio_impl numpy.lib.format numpy.lib._format_impl
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
        operator.attrgetter operator.methodcaller operator.call functools.reduce types.FunctionType
        types.CodeType types.LambdaType types.ModuleType io.open _io.open _io.FileIO io.FileIO codecs.open
        pathlib.Path.open torch.load torch.save torch.serialization.load torch.serialization.save
        torch.compile torch.export.load torch.from_file torch.storage.UntypedStorage.from_file numpy.load
        numpy.save numpy.fromfile numpy.memmap numpy.core.memmap.memmap numpy._core.memmap.memmap
        numpy.loadtxt numpy.genfromtxt numpy.savetxt joblib.load joblib.numpy_pickle.load
        sklearn.externals.joblib.load uuid._get_command_stdout _pyio.open _pyio.FileIO
        pandas.read_pickle pandas.eval pandas.io.pickle.read_pickle yaml.load
        yaml.unsafe_load atexit.register gc.get_objects inspect.getsource typing._eval_type
        typing.get_type_hints torch._C.PyTorchFileWriter hydra.utils.instantiate
        lightning.pytorch.cli.instantiate_class pytorch_lightning.cli.instantiate_class
        """
    )
)
# Names of such modules, and of others, that PyTorch itself writes into files, and that only store values.
_EXPECTED_NAMES = frozenset(
    _words("_StorageInfo StorageInfo", "torch.distributed.checkpoint.filesystem.")
    + _words(
        "Metadata MetadataIndex TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata TensorProperties "
        "StorageMeta _MEM_FORMAT_ENCODING",
        "torch.distributed.checkpoint.metadata.",
    )
    + _words(
        "build_intlist build_doublelist build_boollist build_tensorlist build_complexdoublelist restore_type_tag",
        "torch.jit._pickle.",
    )
)
# Modules of the standard library whose other names are unknown. Those of all further modules of it are dangerous: most
# write files, start processes, run or import code.
_QUIET_MODULES = frozenset(
    _words(
        """
        abc argparse array base64 binascii bisect builtins calendar cmath codecs collections colorsys copy copyreg
        dataclasses datetime decimal enum fractions functools hashlib heapq html io ipaddress itertools json keyword
        logging math numbers operator pathlib pprint queue random re reprlib statistics string struct textwrap time
        token types typing unicodedata uuid weakref zlib zoneinfo
        """
    )
)
# What functions do that are called like this.
_ACTS = re.compile(
    r"(?:^|_)(?:acquire|call|compile|create|delete|download|dump|eval|exec|export|file|fork|import|load|makedirs|open|"
    r"parse|popen|remove|rename|render|run|save|serialize|shell|spawn|system|touch|unlink|upload|write)|^(?:to|read)_|"
    r"sympif|mkdir|tofile|attr$|File(?:[A-Z]|$)|(?:Handler|Memory|Opener|Writer)$"
)

# Classes and functions that only store values, or compute with them. They are listed one by one: a module also
# contains everything that it imports.
HARMLESS_NAMES = frozenset(
    _words(
        "int float bool str bytes bytearray tuple list dict set frozenset complex range slice object type print len "
        "sum min max abs round",
        "builtins.",
    )
    + _words(
        "ndarray dtype float64 float32 float16 int64 int32 int16 int8 uint8 bool_ bool str_ datetime64 timedelta64 "
        "matrix ma.core._mareconstruct ma.core.MaskedArray random._mt19937.MT19937 random._pcg64.PCG64 "
        "random._philox.Philox random._sfc64.SFC64 random.bit_generator.SeedSequence random.mtrand.RandomState "
        "random._generator.Generator random._pickle.__randomstate_ctor random._pickle.__generator_ctor "
        "random._pickle.__bit_generator_ctor random.bit_generator.__pyx_unpickle_SeedSequence",
        "numpy.",
    )
    + _words("date datetime time timedelta timezone", "datetime.")
    + _words("OrderedDict defaultdict Counter deque ChainMap UserDict UserList", "collections.")
    + _words("Any Union Optional List Dict Tuple Set Callable Sequence Mapping Iterable", "typing.")
    + _words("dictconfig.DictConfig listconfig.ListConfig base.Metadata base.ContainerMetadata", "omegaconf.")
    + _words(
        "AnyNode StringNode IntegerNode FloatNode BooleanNode BytesNode PathNode EnumNode InterpolationResultNode",
        "omegaconf.nodes.",
    )
    + _words(
        """
        json.loads json.dumps
        argparse.Namespace optparse.Values contextlib.nullcontext http.HTTPStatus types.SimpleNamespace
        functools.partial operator.itemgetter _io.BytesIO io.BytesIO
        _io.StringIO io.StringIO torch.torch_version.TorchVersion torch._C.Generator _codecs.encode
        decimal.Decimal fractions.Fraction joblib.numpy_pickle.NumpyArrayWrapper uuid.UUID uuid.SafeUUID
        zoneinfo.ZoneInfo._unpickle random.Random array._array_reconstructor pathlib.PosixPath
        pathlib.WindowsPath pathlib.PurePosixPath pathlib.PureWindowsPath re._compile copyreg._reconstructor
        copyreg.__newobj__ copyreg.__newobj_ex__ ipaddress.IPv4Address ipaddress.IPv6Address
        torch.amp.grad_scaler.GradScaler torch.cuda.amp.grad_scaler.GradScaler
        pytorch_lightning.utilities.parsing.AttributeDict lightning.pytorch.utilities.parsing.AttributeDict
        lightning.fabric.utilities.data.AttributeDict lightning_fabric.utilities.data.AttributeDict
        """
    )
)
# Classes of PyTorch's layers, optimizers and schedulers.
_LAYER = re.compile(r"torch\.(?:nn\.modules\.[a-z_]+|nn\.parameter|nn\.utils\.[a-z_]+|optim\.[a-z_]+)\.([A-Z]\w*)")
# What these modules import, and which is nothing of that kind: `Enum` makes classes.
_IMPORTED = frozenset(
    _words(
        """
        ABC Any Args BackwardHook Callable Counter DeviceDict DeviceDtypeDict DeviceLikeType Enum ExpandedWeight F
        Function GlobalOptimizerPostHook GlobalOptimizerPreHook Hashable Indices Iterable Iterator Kwargs Literal
        Mapping MutableMapping NamedMemberAccessor NamedTuple OpaqueBase Optional ParamSpec ParamsT Protocol
        RemovableHandle Self Sequence StateDict SupportsFloat TensorListList TypeAlias TypeVar TypedDict Union
        ConvPerSampleGrad EmbeddingPerSampleGrad GroupNormPerSampleGrad InstanceNormPerSampleGrad
        LayerNormPerSampleGrad LinearPerSampleGrad
        """
    )
)

_SEEN = Usage()
_METHOD_OF_PATH = re.compile(r"pathlib\.(\w+\.)*\w*Path\.")  # most of them write


def danger(module: str, name: str, expected: Container[str] = (), use: Usage = _SEEN) -> Danger | None:
    """What loading a pickle with this name would do; None for names that every checkpoint contains. `expected` are the
    names that leafwise replaces by its own, and `use` is what the pickle does with this one.

    >>> [danger(*name) for name in (("os", "system"), ("datetime", "date"), ("my_package", "Model"))]
    ['dangerous', 'harmless', 'unknown']
    """
    full_name = f"{module}.{name}"
    *above, last = name.split(".")
    # An attribute of a module, such as `storage._load_from_bytes` of torch, is another name for what is listed below.
    if use.doubt or not all(map(looks_like_class, above)):
        return "dangerous"
    if full_name in expected or full_name in _EXPECTED_NAMES or module.startswith("__torch__"):
        return None  # TorchScript classes are not Python
    layer = _LAYER.fullmatch(full_name)
    if full_name in HARMLESS_NAMES or (layer is not None and layer[1] not in _IMPORTED):
        return "harmless"
    is_special = any(part.startswith("__") and part.endswith("__") for part in (*above, last))
    if is_special or _METHOD_OF_PATH.match(full_name):
        # An attribute such as __globals__ or __subclasses__ leads anywhere, and so does one of a module.
        return "dangerous"
    # The implementation of a module of the standard library has the same name with an underscore.
    spellings = {full_name, full_name.lstrip("_")}
    parts = module.split(".")
    modules = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    modules |= {module.lstrip("_") for module in modules}
    is_listed = spellings & DANGEROUS_NAMES or modules & DANGEROUS_MODULES
    is_of_python = parts[0] in sys.stdlib_module_names and parts[0].lstrip("_") not in _QUIET_MODULES
    acts = use.is_called and _ACTS.search(last) is not None
    return "dangerous" if is_listed or is_of_python or acts else "unknown"


# Those that get objects in pickles of Python, NumPy and PyTorch.
_GET_OBJECTS = ("datetime.", "functools.partial", "numpy.", "torch.nn.parameter.")


def doubt_of_call(full_name: str, args: Any) -> str:
    """Why a call of a harmless class could do more than store its arguments; empty if it could not."""
    if full_name == "builtins.type" and len(args) != 1:
        return "which makes a class, whose annotations other classes evaluate"
    if full_name.startswith("omegaconf.") and args:
        return "which evaluates the annotations of what it gets"
    module, _, name = full_name.rpartition(".")
    has_object = isinstance(args, tuple) and any(type(arg) is Opaque for arg in args)
    if has_object and not full_name.startswith(_GET_OBJECTS) and danger(module, name) == "harmless":
        return "which uses an object that the pickle makes"
    return ""


def warning_text(names: Iterable[tuple[str, str]]) -> str:
    """What to add to an error about a pickle that cannot be read; empty if no name in it is dangerous."""
    found = [escape(f"{module}.{name}"[:100]) for module, name in names if danger(module, name) == "dangerous"]
    return f"; do not load it with other programs: it would call {listed(found, 3)}" if found else ""
