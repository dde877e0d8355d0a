"""Pickles that are files of their own, as `pickle.dump` and joblib write them. Arrays in them stay in the file."""

from leafwise.files.pickles.numpy_objects import JOBLIB_TABLE
from leafwise.files.pickles.pickle_objects import TruncatedPickleError
from leafwise.files.pickles.torch_objects import TABLE
from leafwise.files.pickles.unpickler import Unpickler, truncated_pickle
from leafwise.files.sources.source import Source
from leafwise.files.stored_file import StoredFile

_TABLE = {**TABLE, **JOBLIB_TABLE}


def read(source: Source) -> StoredFile:
    """Opens the file; the bytes of long arrays are not read. Several pickles in one file are shown as a list."""
    machine = Unpickler(source, _TABLE, None, source.error, source.limits, names=source.pickle_names)
    contents = []
    try:
        while machine.at < source.size:
            contents.append(machine.run())
    except TruncatedPickleError:
        raise truncated_pickle(source, source.size) from None
    joblib = any(module.startswith("joblib.") for module, _ in source.pickle_names)
    content = contents[0] if len(contents) == 1 else contents
    return StoredFile(source, "joblib" if joblib else "pickle", content)
