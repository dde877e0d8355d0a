"""Functions that run commands or code, or write files, when a pickle calls them: one payload each.

In texts, MARKER is the path of the file that the payload creates.
"""

from collections.abc import Iterator
from typing import Any

from tools.payloads.pickle_code import Call, Kept, Name, Steps, at, attribute, call, list_of, name, partial

SHELL = "touch MARKER"
ARGV = ["touch", "MARKER"]
CODE = "open('MARKER', 'w').close()"
_TEXT = "/etc/hosts"  # a short file that every machine has


def _path(method: str, *args: Any, of: str = "pathlib:PosixPath") -> Call:
    return call(f"{of}.{method}", call("pathlib:PosixPath", "MARKER"), *args)


_SHELL_CALLS = [
    call("posix:system", SHELL), call("os:system", SHELL), call("os:popen", SHELL), call("os:execvp", "touch", ARGV),
    call("posix:execv", "/usr/bin/touch", ARGV), call("os:execlp", "touch", *ARGV),
    call("os:spawnlp", 0, "touch", *ARGV), call("os:spawnvp", 0, "touch", ARGV),
    call("posix:posix_spawn", "/usr/bin/touch", ARGV, {}), call("os:posix_spawnp", "touch", ARGV, {}),
    call("pty:spawn", ARGV), call("subprocess:run", ARGV), call("subprocess:call", ARGV),
    call("subprocess:check_call", ARGV), call("subprocess:check_output", ARGV), call("subprocess:Popen", ARGV),
    call("subprocess:getoutput", SHELL), call("subprocess:getstatusoutput", SHELL),
    call("uuid:_get_command_stdout", *ARGV), call("asyncio:run", call("asyncio:create_subprocess_shell", SHELL)),
    call("asyncio.runners:run", call("asyncio.subprocess:create_subprocess_exec", *ARGV)),
    call("multiprocessing.util:spawnv_passfds", b"/usr/bin/touch", [b"touch", "MARKER"], []),
    call("webbrowser:GenericBrowser.open", call("webbrowser:GenericBrowser", ["touch", "%s"]), "MARKER"),
    call("webbrowser:BackgroundBrowser.open", call("webbrowser:BackgroundBrowser", ["touch", "%s"]), "MARKER"),
    call("pydoc:pipepager", "", SHELL), call("pydoc:tempfilepager", "", "touch MARKER; true"),
    call("distutils.spawn:spawn", ARGV), call("setuptools._distutils.spawn:spawn", ARGV),
    call("numpy.distutils.exec_command:exec_command", SHELL), call("numpy.testing._private.utils:runstring", CODE, {}),
    call("torch.utils.collect_env:run", SHELL),
    call("torch.utils.collect_env:run_and_read_all", name("torch.utils.collect_env:run"), SHELL),
    call("torch.utils.hipify.hipify_python:os.system", SHELL),
    call(call("ctypes:CDLL.__getitem__", call("ctypes:CDLL", None), "system"), b"touch MARKER"),
    call("test.support.script_helper:assert_python_ok", "-c", CODE),
    call("test.support.script_helper:spawn_python", "-c", CODE), call("IPython.utils.process:system", SHELL),
    call("IPython.utils._process_posix:getoutput", SHELL),
    call("joblib.externals.loky.backend.fork_exec:fork_exec", ["/usr/bin/touch", "MARKER"], [], {}),
    call("tqdm.utils:os.system", SHELL), call("mailcap:findmatch", {"a/b": [{"view": "cat", "test": SHELL}]}, "a/b"),
    call("imaplib:IMAP4_stream", SHELL), call("torch._inductor.cpp_builder:_run_compile_cmd", SHELL, "/tmp"),
    call("torch.utils._get_clean_triton:subprocess.run", ARGV), call("pandas.io.clipboard:subprocess.Popen", ARGV),
    call("transformers.utils.import_utils:subprocess.run", ARGV),
    call("lightning.fabric.plugins.environments.slurm:os.system", SHELL),
]  # fmt: skip

_CODE_CALLS = [
    call("builtins:exec", CODE), call("builtins:eval", CODE), call("__builtin__:eval", CODE),
    call("builtins:exec", call("builtins:compile", CODE, "x", "exec")),
    call(call("types:FunctionType", call("builtins:compile", CODE, "x", "exec"), {})),
    call(call("types:LambdaType", call("builtins:compile", CODE, "x", "exec"), {})),
    call("code:InteractiveInterpreter.runsource", call("code:InteractiveInterpreter"), CODE),
    call("code:InteractiveInterpreter.runcode", call("code:InteractiveInterpreter"), CODE),
    call("code:InteractiveConsole.push", call("code:InteractiveConsole"), CODE), call("timeit:timeit", "pass", CODE),
    call("timeit:repeat", "pass", CODE), call("timeit:main", ["-n1", "-r1", CODE]),
    call("timeit:Timer.timeit", call("timeit:Timer", CODE), 1), call("runpy:_run_code", CODE, {}),
    call("bdb:Bdb.run", call("bdb:Bdb"), CODE), call("bdb:Bdb.runeval", call("bdb:Bdb"), CODE),
    call("pdb:Pdb.run", call("pdb:Pdb", "tab", call("io:StringIO", "c\n"), call("io:StringIO")), CODE),
    call("cProfile:run", CODE), call("cProfile:runctx", CODE, {}, {}), call("profile:run", CODE),
    call("profile:runctx", CODE, {}, {}), call("cProfile:Profile.run", call("cProfile:Profile"), CODE),
    call("trace:Trace.run", call("trace:Trace"), CODE), call("trace:Trace.runctx", call("trace:Trace"), CODE),
    call("doctest:run_docstring_examples", f">>> {CODE}\n", {}), call("idlelib.calltip:get_entity", CODE),
    call("idlelib.autocomplete:AutoComplete.get_entity", None, CODE),
    call("lib2to3.pgen2.grammar:Grammar.loads", call("lib2to3.pgen2.grammar:Grammar"),
        b"cposix\nsystem\n(Vtouch MARKER\ntR."), call("torch.jit.unsupported_tensor_ops:execWrapper", CODE, {}, {}),
    call("torch.fx.graph_module:_exec_with_source", CODE, {}),
    call("torch.fx.graph_module:_forward_from_src", CODE, {}), call("torch._inductor.codecache:PyCodeCache.load", CODE),
    call("torch._inductor.compile_worker.utils:os.system", SHELL), call("numpy.f2py.crackfortran:myeval", CODE),
    call("numpy.f2py.crackfortran:param_eval", CODE, {}, {}), call("numpy.f2py.crackfortran:_eval_scalar", CODE, {}),
    call("numpy.testing._private.utils:measure", CODE, 1), call("numpy.testing:runstring", CODE, {}),
    call("numpy.testing:measure", CODE), call("sympy:sympify", "open('MARKER', 'w')"),
    call("sympy.core.sympify:sympify", "open('MARKER', 'w')"),
    call("sympy.parsing.sympy_parser:parse_expr", "open('MARKER', 'w')"),
    call("sympy.parsing.sympy_parser:eval_expr", CODE, {}, {}),
    call("jinja2:Template.render", call("jinja2:Template",
        "{{ self.__init__.__globals__.__builtins__.open('MARKER', 'w') }}")),
    call(call("dataclasses:_create_fn", "f", (), (CODE,))),
    call("typing:_eval_type", call("typing:ForwardRef", CODE), {}, {}),
    call("typing:ForwardRef._evaluate", call("typing:ForwardRef", "open('MARKER', 'w')"), {}, {},
        call("builtins:frozenset")), call("enum:bltns.eval", CODE),
    call("IPython.core.interactiveshell:InteractiveShell.run_cell",
        call("IPython.core.interactiveshell:InteractiveShell"), CODE),
    call("yaml:unsafe_load", '!!python/object/apply:os.system ["touch MARKER"]'),
    call("yaml:load", '!!python/object/apply:os.system ["touch MARKER"]', name("yaml:UnsafeLoader")),
    call("cloudpickle:loads", b"cposix\nsystem\n(Vtouch MARKER\ntR."),
    call("pickle:loads", b"cposix\nsystem\n(Vtouch MARKER\ntR."),
    call("_pickle:loads", b"cposix\nsystem\n(Vtouch MARKER\ntR."),
    call("cPickle:loads", b"cposix\nsystem\n(Vtouch MARKER\ntR."),
    call("pickle:_loads", b"cposix\nsystem\n(Vtouch MARKER\ntR."),
    call("pickle:Unpickler.load", call("pickle:Unpickler", call("io:BytesIO", b"cposix\nsystem\n(Vtouch MARKER\ntR."))),
    call("pandas.compat.pickle_compat:Unpickler.load", call("pandas.compat.pickle_compat:Unpickler", call("io:BytesIO",
        b"cposix\nsystem\n(Vtouch MARKER\ntR."))),
    call("pandas.compat.pickle_compat:loads", b"cposix\nsystem\n(Vtouch MARKER\ntR."),
    call("joblib.numpy_pickle:NumpyUnpickler.load", call("joblib.numpy_pickle:NumpyUnpickler", "x", call("io:BytesIO",
        b"cposix\nsystem\n(Vtouch MARKER\ntR."), False)),
    call("joblib:load", call("io:BytesIO", b"\x80\x02cposix\nsystem\n(Vtouch MARKER\ntR.")),
    call("joblib.numpy_pickle:load", call("io:BytesIO", b"\x80\x02cposix\nsystem\n(Vtouch MARKER\ntR.")),
    call("torch.serialization:_legacy_load", call("io:BytesIO", b"\x80\x02cposix\nsystem\n(Vtouch MARKER\ntR."), "cpu",
        name("torch.serialization:pickle")),
    call("torch.distributed.checkpoint.filesystem:pickle.loads", b"cposix\nsystem\n(Vtouch MARKER\ntR."),
    call("multiprocessing.reduction:ForkingPickler.loads", b"cposix\nsystem\n(Vtouch MARKER\ntR."),
    call("multiprocessing.connection:_ForkingPickler.loads", b"cposix\nsystem\n(Vtouch MARKER\ntR."),
    call("pandas:read_pickle", call("io:BytesIO", b"\x80\x02cposix\nsystem\n(Vtouch MARKER\ntR.")),
    call("torch.storage:_load_from_bytes", b"\x80\x02cposix\nsystem\n(Vtouch MARKER\ntR."),
    call("numpy:load", call("io:BytesIO", b"\x80\x02cposix\nsystem\n(Vtouch MARKER\ntR."), None, True),
    call("numpy.lib._npyio_impl:load", call("io:BytesIO", b"\x80\x02cposix\nsystem\n(Vtouch MARKER\ntR."), None, True),
    call("numpy.lib._format_impl:pickle.loads", b"cposix\nsystem\n(Vtouch MARKER\ntR."),
    call("logging.handlers:pickle.loads", b"cposix\nsystem\n(Vtouch MARKER\ntR."),
    call("logging.config:dictConfig", {"version": 1, "formatters": {"a": {"()": "os.system", "command": SHELL}}}),
    call("logging.config:dictConfig", {"version": 1, "handlers": { "a": {"class": "logging.FileHandler",
        "filename": "MARKER"}}}),
]  # fmt: skip

_WRITING_CALLS = [
    call("builtins:open", "MARKER", "w"), call("io:open", "MARKER", "w"), call("_io:open", "MARKER", "w"),
    call("_io:FileIO", "MARKER", "w"), call("io:FileIO", "MARKER", "w"), call("_pyio:open", "MARKER", "w"),
    call("_pyio:FileIO", "MARKER", "w"), call("codecs:open", "MARKER", "w"), call("os:mkdir", "MARKER"),
    call("os:makedirs", "MARKER"), call("posix:mkdir", "MARKER"), call("posix:open", "MARKER", 66),
    call("os:mknod", "MARKER"), call("os:mkfifo", "MARKER"), call("os:symlink", _TEXT, "MARKER"),
    call("shutil:copyfile", _TEXT, "MARKER"), call("shutil:copy", _TEXT, "MARKER"),
    call("shutil:make_archive", "MARKER", "tar", "."), call("tempfile:mkdtemp", "", "MARKER"),
    call("tempfile:mkstemp", "", "MARKER"),
    call("tempfile:NamedTemporaryFile", "w", -1, None, None, "", "MARKER", None, False), _path("touch"),
    _path("write_text", "x"), _path("write_bytes", b"x"), _path("mkdir"), _path("open", "w"),
    _path("symlink_to", _TEXT), _path("touch", of="pathlib:Path"), _path("write_text", "x", of="pathlib:Path"),
    _path("open", "w", of="pathlib:Path"), call(attribute(call("pathlib:PosixPath", "MARKER"), "touch")),
    call(attribute(call("pathlib:PosixPath", "MARKER"), "write_text"), "x"),
    call(attribute(call("pathlib:Path", "MARKER"), "mkdir")),
    call(attribute(name("pathlib:Path"), "touch"), call("pathlib:Path", "MARKER")), call("gzip:open", "MARKER", "wb"),
    call("gzip:GzipFile", "MARKER", "wb"), call("bz2:open", "MARKER", "wb"), call("bz2:BZ2File", "MARKER", "wb"),
    call("lzma:open", "MARKER", "wb"), call("lzma:LZMAFile", "MARKER", "wb"),
    call("_compression:io.open", "MARKER", "w"), call("tarfile:open", "MARKER", "w"),
    call("tarfile:TarFile", "MARKER", "w"), call("zipfile:ZipFile", "MARKER", "w"),
    call("zipfile:PyZipFile", "MARKER", "w"), call("shelve:open", "MARKER"), call("dbm.dumb:open", "MARKER"),
    call("sqlite3:connect", "MARKER"), call("_sqlite3:connect", "MARKER"), call("logging:FileHandler", "MARKER"),
    call("logging.handlers:RotatingFileHandler", "MARKER"), call("logging.handlers:WatchedFileHandler", "MARKER"),
    call("logging.handlers:TimedRotatingFileHandler", "MARKER"), call("mailbox:Maildir", "MARKER"),
    call("mailbox:mbox", "MARKER"), call("mailbox:MH", "MARKER"), call("wave:open", "MARKER", "wb"),
    call("aifc:open", "MARKER", "wb"), call("sunau:open", "MARKER", "wb"), call("wave:Wave_write", "MARKER"),
    call("tracemalloc:Snapshot.dump", [1], "MARKER"), call("cProfile:run", "1", "MARKER"),
    call("distutils.file_util:write_file", "MARKER", ["x"]), call("distutils.dir_util:mkpath", "MARKER"),
    call("distutils.file_util:copy_file", _TEXT, "MARKER"), call("ensurepip:os.mkdir", "MARKER"),
    call("venv:EnvBuilder.ensure_directories", call("venv:EnvBuilder"), "MARKER"),
    call("lib2to3.pgen2.grammar:Grammar.dump", call("lib2to3.pgen2.grammar:Grammar"), "MARKER"),
    call("faulthandler:enable", call("builtins:open", "MARKER", "w")),
    call("pip._internal.utils.misc:ensure_dir", "MARKER"), call("setuptools._path:ensure_directory", "MARKER/x"),
    call("xml.etree.ElementTree:ElementTree.write", call("xml.etree.ElementTree:ElementTree",
        call("xml.etree.ElementTree:Element", "a")), "MARKER"),
    call("http.cookiejar:LWPCookieJar.save", call("http.cookiejar:LWPCookieJar"), "MARKER"),
    call("http.cookiejar:MozillaCookieJar.save", call("http.cookiejar:MozillaCookieJar"), "MARKER"),
    call("readline:write_history_file", "MARKER"), call("urllib.request:urlretrieve", "file:///etc/hosts", "MARKER"),
    call("random:_os.mkdir", "MARKER"), call("pathlib:os.mkdir", "MARKER"), call("torch:save", [1], "MARKER"),
    call("torch.serialization:save", [1], "MARKER"), call("torch:from_file", "MARKER", True, 4),
    call("torch:UntypedStorage.from_file", "MARKER", True, 4),
    call("torch.storage:UntypedStorage.from_file", "MARKER", True, 4),
    call("torch:FloatStorage.from_file", "MARKER", True, 4), call("torch._C:PyTorchFileWriter", "MARKER"),
    call("torch.utils.file_baton:FileBaton.try_acquire", call("torch.utils.file_baton:FileBaton", "MARKER")),
    call("torch.serialization:_open_zipfile_writer_file", "MARKER"),
    call("torch.serialization:_open_file", "MARKER", "w"), call("torch.serialization:_open_zipfile_writer", "MARKER"),
    call("torch.serialization:os.mkdir", "MARKER"), call("torch.package:PackageExporter", "MARKER"),
    call("torch.profiler:ExecutionTraceObserver.register_callback", call("torch.profiler:ExecutionTraceObserver"),
        "MARKER"),
    call("torch.distributed.checkpoint.filesystem:FileSystem.mkdir",
        call("torch.distributed.checkpoint.filesystem:FileSystem"), call("pathlib:PosixPath", "MARKER")),
    call("torch.utils.data.datapipes.utils.common:os.mkdir", "MARKER"),
    call("torch._inductor.codecache:write_atomic", "MARKER", "x"),
    call("torch._inductor.runtime.cache_dir_utils:os.makedirs", "MARKER"),
    call("torch._dynamo.debug_utils:os.makedirs", "MARKER"),
    call("torch.utils._content_store:ContentStoreWriter.write_tensor",
        call("torch.utils._content_store:ContentStoreWriter", "MARKER"), "a", call("torch:ones", 1)),
    call("torch.nn.modules.module:torch.save", [1], "MARKER"), call("torch.optim.optimizer:torch.save", [1], "MARKER"),
    call("torch.nn.modules.activation:F.torch.save", [1], "MARKER"),
    call("torch.jit._serialization:os.mkdir", "MARKER"),
    call("torch.cuda.memory:pickle.dump", [1], call("pathlib:Path.open", call("pathlib:Path", "MARKER"), "wb")),
    call("numpy:save", "MARKER", [1]), call("numpy:savez", "MARKER", [1]), call("numpy:savez_compressed", "MARKER"),
    call("numpy:savetxt", "MARKER", [1]), call("numpy:memmap", "MARKER", "uint8", "w+", 0, (4,)),
    call("numpy.lib._npyio_impl:save", "MARKER", [1]),
    call("numpy.lib.format:open_memmap", "MARKER", "w+", name("numpy:int8"), (4,)),
    call("numpy:ndarray.tofile", call("numpy:arange", 3), "MARKER"),
    call("numpy:ndarray.dump", call("numpy:arange", 3), "MARKER"),
    call(attribute(call("numpy:arange", 3), "tofile"), "MARKER"),
    call("numpy._core.memmap:memmap", "MARKER", "uint8", "w+", 0, (4,)),
    call("numpy._core.records:recarray.tofile", call("numpy:arange", 3), "MARKER"),
    call("numpy:matrix.tofile", call("numpy:arange", 3), "MARKER"),
    call("numpy:ndarray.dump", call("numpy:matrix", [1]), "MARKER"), call("numpy.f2py:os.mkdir", "MARKER"),
    call("joblib:dump", [1], "MARKER"), call("joblib.numpy_pickle:dump", [1], "MARKER"),
    call("joblib:Memory", "MARKER"), call("joblib.disk:mkdirp", "MARKER"),
    call("joblib._store_backends:FileSystemStoreBackend.create_location", None, "MARKER"),
    call("joblib._store_backends:mkdirp", "MARKER"), call("joblib.externals.loky.backend:os.mkdir", "MARKER"),
    call("joblib.compressor:BinaryGzipFile", "MARKER", "wb"), call("joblib.compressor:BinaryZlibFile", "MARKER", "wb"),
    call("joblib.numpy_pickle_utils:_write_fileobject", "MARKER"),
    call("pandas:DataFrame.to_csv", call("pandas:DataFrame", {"a": [1]}), "MARKER"),
    call("pandas:DataFrame.to_pickle", call("pandas:DataFrame", {"a": [1]}), "MARKER"),
    call("pandas:Series.to_json", call("pandas:Series", [1]), "MARKER"),
    call(attribute(call("pandas:DataFrame", {"a": [1]}), "to_csv"), "MARKER"), call("pandas:to_pickle", [1], "MARKER"),
    call("pandas.io.pickle:to_pickle", [1], "MARKER"), call("safetensors.torch:save_file", {}, "MARKER"),
    call("safetensors:serialize_file", {}, "MARKER"), call("safetensors.numpy:save_file", {}, "MARKER"),
    call("transformers:PretrainedConfig.save_pretrained", call("transformers:PretrainedConfig"), "MARKER"),
    call("transformers.configuration_utils:os.makedirs", "MARKER"),
    call("transformers.utils.hub:os.makedirs", "MARKER"),
    call("omegaconf:OmegaConf.save", call("omegaconf:OmegaConf.create", {"a": 1}), "MARKER"),
    call("lightning.fabric.utilities.cloud_io:_atomic_save", {}, "MARKER"),
    call("lightning.pytorch.core.saving:save_hparams_to_yaml", "MARKER", {}),
    call("lightning_fabric.utilities.cloud_io:_atomic_save", {}, "MARKER"),
    call("fsspec.implementations.local:LocalFileSystem.mkdir", call("fsspec.implementations.local:LocalFileSystem"),
        "MARKER"), call("fsspec.implementations.local:LocalFileOpener", "MARKER", "wb"),
    call("fsspec.core:OpenFile.open", call("fsspec.core:OpenFile",
        call("fsspec.implementations.local:LocalFileSystem"), "MARKER", "wb")),
    call("PIL.Image:Image.save", call("PIL.Image:new", "L", (1, 1)), "MARKER.png"),
    call("networkx:write_adjlist", call("networkx:Graph"), "MARKER"),
    call("filelock:FileLock.acquire", call("filelock:FileLock", "MARKER")),
    call("requests.sessions:os.mkdir", "MARKER"), call("click:open_file", "MARKER", "w"),
    call("_pytest.pathlib:Path.touch", call("pathlib:PosixPath", "MARKER")),
]  # fmt: skip

_CALLERS = [
    list_of(call("builtins:map", name("posix:system"), [SHELL])),
    list_of(call("builtins:filter", name("posix:system"), [SHELL])),
    list_of(call("__builtin__:map", name("posix:system"), [SHELL])),
    call("collections:deque", call("builtins:map", name("os:mkdir"), ["MARKER"])),
    call("builtins:dict", call("builtins:zip", [1], call("builtins:map", name("os:mkdir"), ["MARKER"]))),
    call("builtins:set", call("itertools:starmap", name("os:mkdir"), [("MARKER",)])),
    call("builtins:tuple", call("itertools:takewhile", name("os:mkdir"), ["MARKER"])),
    call("builtins:any", call("itertools:dropwhile", name("os:mkdir"), ["MARKER"])),
    call("builtins:all", call("itertools:filterfalse", name("os:mkdir"), ["MARKER"])),
    call("builtins:max", call("itertools:accumulate", ["MARKER", 511], name("os:mkdir"))),
    list_of(call("itertools:groupby", ["MARKER"], name("os:mkdir"))),
    call("builtins:bytes", call("builtins:map", name("os:mkdir"), ["MARKER"])),
    call("builtins:bytearray", call("builtins:map", name("os:mkdir"), ["MARKER"])),
    call("functools:reduce", name("os:mkdir"), ["MARKER", 511]),
    call("_functools:reduce", name("os:mkdir"), ["MARKER", 511]), call(partial("os:mkdir", "MARKER")),
    call(partial(partial("os:mkdir"), "MARKER")), call(partial("builtins:sorted", ["MARKER"], key=name("os:mkdir"))),
    call(partial("builtins:max", ["MARKER"], key=name("os:mkdir"))),
    call(partial("builtins:min", ["MARKER", "MARKER"], key=name("os:mkdir"))),
    call(partial("builtins:print", file=call("logging:FileHandler", "MARKER"))),
    call(partial("os:mkdir", path="MARKER")), call("functools:partial.__call__", partial("os:mkdir", "MARKER")),
    call(call("operator:methodcaller", "touch"), call("pathlib:PosixPath", "MARKER")),
    call(call("_operator:methodcaller", "write_text", "x"), call("pathlib:PosixPath", "MARKER")),
    call(call("operator:methodcaller", "system", SHELL), call("builtins:__import__", "os")),
    call(call(call("operator:attrgetter", "system"), call("builtins:__import__", "os")), SHELL),
    call(call(call("operator:attrgetter", "touch"), call("pathlib:PosixPath", "MARKER"))),
    call("operator:call", name("os:mkdir"), "MARKER"), call("_operator:call", name("os:mkdir"), "MARKER"),
    at(call("collections:defaultdict", partial("os:mkdir", "MARKER")), "x"),
    call("operator:getitem", call("collections:defaultdict", partial("os:mkdir", "MARKER")), "x"),
    call("collections:defaultdict.__missing__", call("collections:defaultdict", partial("os:mkdir", "MARKER")), "x"),
    call(attribute(call("collections:defaultdict", partial("os:mkdir", "MARKER")), "__missing__"), "x"),
    call(attribute(call("builtins:__import__", "os"), "system"), SHELL),
    call(attribute(call("importlib:import_module", "os"), "system"), SHELL),
    call(attribute(call("importlib._bootstrap:_gcd_import", "os"), "system"), SHELL),
    call("importlib._bootstrap:_call_with_frames_removed", name("os:mkdir"), "MARKER"),
    call("_frozen_importlib:_call_with_frames_removed", name("os:mkdir"), "MARKER"),
    call(call("pydoc:locate", "os.system"), SHELL), call(call("pkgutil:resolve_name", "os:system"), SHELL),
    call(call("logging.config:_resolve", "os.system"), SHELL),
    call(at(at(attribute(name("copyreg:__newobj__"), "__globals__"), "__builtins__"), "eval"), CODE),
    call(at(name("os:__dict__"), "system"), SHELL),
    call(at(call("builtins:vars", name("random:_os")), "system"), SHELL),
    call(attribute(at(name("sys:modules"), "os"), "system"), SHELL),
    call(attribute(name("random:_os"), "system"), SHELL), call(attribute(name("random:_os"), "mkdir"), "MARKER"),
    call(attribute(name("enum:bltns"), "eval"), CODE), call(attribute(name("pathlib:os"), "mkdir"), "MARKER"),
    call(attribute(name("torch.serialization:shutil"), "copyfile"), _TEXT, "MARKER"),
    call(attribute(name("tempfile:_os"), "mkdir"), "MARKER"),
    call("concurrent.futures.process:_process_chunk", name("os:mkdir"), [("MARKER",)]),
    call("multiprocessing.pool:mapstar", (name("os:mkdir"), ["MARKER"])),
    call("multiprocessing.pool:starmapstar", (name("os:mkdir"), [("MARKER",)])),
    call("threading:Thread.run", call("threading:Thread", None, name("os:mkdir"), None, ("MARKER",))),
    call("threading:Thread.start", call("threading:Thread", None, name("os:mkdir"), None, ("MARKER",))),
    call("threading:Timer.run", call("threading:Timer", 0, name("os:mkdir"), ("MARKER",))),
    call("contextvars:Context.run", call("contextvars:Context"), name("os:mkdir"), "MARKER"),
    call("contextlib:ExitStack.close", Steps((Kept(9, call("contextlib:ExitStack")),
        call("contextlib:ExitStack.callback", Kept(9), name("os:mkdir"), "MARKER"), Kept(9)))),
    call("weakref:finalize.__call__", call("weakref:finalize", name("argparse:Namespace"), name("os:mkdir"), "MARKER")),
    call("atexit:register", name("os:mkdir"), "MARKER"),
    call("bdb:Bdb.runcall", call("bdb:Bdb"), name("os:mkdir"), "MARKER"),
    call("cProfile:Profile.runcall", call("cProfile:Profile"), name("os:mkdir"), "MARKER"),
    call("trace:Trace.runfunc", call("trace:Trace"), name("os:mkdir"), "MARKER"),
    call("sched:scheduler.run", Steps((Kept(9, call("sched:scheduler")), call("sched:scheduler.enter", Kept(9), 0, 1,
        name("os:mkdir"), ("MARKER",)), Kept(9)))),
    call("asyncio:run", call("asyncio:to_thread", name("os:mkdir"), "MARKER")),
    call("builtins:property.__get__", call("builtins:property", name("os:mkdir")), "MARKER"),
    call(partial("heapq:nlargest", 2, ["MARKER", "x"], key=name("os:mkdir"))),
    call(partial("heapq:nsmallest", 1, ["MARKER"], key=name("os:mkdir"))),
    call(partial("bisect:bisect_left", ["MARKER"], "x", key=name("os:mkdir"))),
    call("statistics:fsum", call("builtins:map", name("os:mkdir"), ["MARKER"])),
    call(partial("json:dumps", call("pathlib:PosixPath", "MARKER"), default=name("posix:mkdir"))),
    call("copy:_reconstruct", None, None, name("os:mkdir"), ("MARKER",)),
    list_of(call("copyreg:__newobj__", name("builtins:map"), name("os:mkdir"), ["MARKER"])),
    list_of(Call(name("builtins:map"), (name("os:mkdir"), ["MARKER"]), "new")),
    list_of(Call(name("builtins:map"), (name("os:mkdir"), ["MARKER"]), "new_ex")),
    Call(name("zipfile:ZipFile"), ("MARKER", "w"), "obj"), Call(name("os:mkdir"), ("MARKER",), "inst"),
    call("numpy:vectorize.__call__", call("numpy:vectorize", name("os:mkdir")), ["MARKER"]),
    call("numpy:fromiter", call("builtins:map", name("os:mkdir"), ["MARKER"]), "int8"),
    call(call("numpy:frompyfunc", name("os:mkdir"), 1, 1), "MARKER"),
    call("numpy:fromfunction", partial("os:mkdir", "MARKER"), ()),
    call("numpy.random._pickle:__generator_ctor", "MARKER", name("os:mkdir")),
    call("numpy.random._pickle:__randomstate_ctor", "MARKER", name("os:mkdir")),
    call("torch._tensor:_rebuild_from_type_v2", name("os:mkdir"), name("torch:Tensor"), ("MARKER",), None),
    call("torch._tensor:_rebuild_from_type", name("os:mkdir"), name("torch:Tensor"), ("MARKER",), None),
    call("torch.utils._pytree:tree_map", name("os:mkdir"), ["MARKER"]),
    call("torch.utils._pytree:tree_map_", name("os:mkdir"), ["MARKER"]),
    call("torch.utils.checkpoint:checkpoint", name("os:mkdir"), "MARKER"),
    list_of(call("torch.utils.data.datapipes.iter.callable:MapperIterDataPipe",
        call("torch.utils.data.datapipes.iter.utils:IterableWrapperIterDataPipe", ["MARKER"]), name("os:mkdir"))),
    call(call("torch.nn.modules.module:_WrappedHook", name("os:mkdir")), "MARKER"),
    call(call("torch.nn.modules.linear:Identity"), call("posix:mkdir", "MARKER")),
    call("torch.distributed.rpc.internal:_run_function", call("torch.distributed.rpc.internal:PythonUDF",
        name("os:mkdir"), ("MARKER",), {})),
    call("joblib.parallel:Parallel.__call__", call("joblib.parallel:Parallel", 1), [ (name("os:mkdir"), ("MARKER",),
        {})]),
    call("joblib.externals.loky.process_executor:_CallItem.__call__",
        call("joblib.externals.loky.process_executor:_CallItem", 1, name("os:mkdir"), ("MARKER",), {})),
    call("pandas:Series.map", call("pandas:Series", ["MARKER"]), name("os:mkdir")),
    call("pandas:Series.apply", call("pandas:Series", ["MARKER"]), name("os:mkdir")),
    call(attribute(call("pandas:Series", ["MARKER"]), "map"), name("os:mkdir")),
    call("pandas.core.common:pipe", "MARKER", name("os:mkdir")),
    list_of(call("tqdm.contrib:tmap", name("os:mkdir"), ["MARKER"])),
    call("sympy.utilities.iterables:sift", ["MARKER"], name("os:mkdir")),
    call("lightning.fabric.utilities.apply_func:apply_to_collection", ["MARKER"], name("builtins:str"),
        name("os:mkdir")),
    call("lightning_utilities.core.apply_func:apply_to_collection", ["MARKER"], name("builtins:str"), name("os:mkdir")),
]  # fmt: skip

_KINDS = {
    "functions that run commands": _SHELL_CALLS,
    "functions that run code": _CODE_CALLS,
    "functions that write files": _WRITING_CALLS,
    "functions that call others": _CALLERS,
}


def payloads() -> Iterator[tuple[str, str, Any]]:
    """The mechanism, the name and the expression of each payload."""
    for mechanism, values in _KINDS.items():
        for value in values:
            yield mechanism, label(value), value


def with_marker(value: Any, marker: str) -> Any:
    """The same expression with the path of the marker."""
    if isinstance(value, str):
        return value.replace("MARKER", marker)
    if isinstance(value, bytes):
        return value.replace(b"MARKER", marker.encode())
    if isinstance(value, dict):
        return {with_marker(key, marker): with_marker(held, marker) for key, held in value.items()}
    if isinstance(value, tuple | list):
        made = [with_marker(one, marker) for one in value]
        return value._make(made) if hasattr(value, "_make") else type(value)(made)  # type: ignore[union-attr]
    return value


def names(value: Any) -> Iterator[Name]:
    """The classes and functions in an expression."""
    if isinstance(value, Name):
        yield value
    elif isinstance(value, dict):
        yield from names(list(value.values()))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from names(one)


def label(value: Any) -> str:
    """The names in an expression, and the attributes that it looks up."""
    attributes = [one for one in _texts(value) if one in _ATTRIBUTES]
    return " ".join([*dict.fromkeys(f"{one.module}.{one.name}" for one in names(value)), *attributes])


_ATTRIBUTES = frozenset(
    ["system", "touch", "mkdir", "write_text", "eval", "open", "map", "__missing__", "to_csv", "tofile", "copyfile"]
)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list) and not isinstance(value, Name):
        for one in value:
            yield from _texts(one)


def protocols(value: Any) -> tuple[int, ...]:
    """The protocols that can write an expression so that it runs: only the later ones have names with dots."""
    if any("." in one.name for one in names(value)):
        return 4, 5
    return (2, 0, 1) if any(one.module in ("__builtin__", "cPickle") for one in names(value)) else (4, 2, 0, 5, 3, 1)
