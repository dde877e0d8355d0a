"""Runs one of the other scanners over files, for tools/compare_scanners.py, in the environment of these scanners.

    build/scanners/bin/python -I tools/other_scanners.py NAME LIST

Imports nothing of this repository, because `-I` leaves out its folder. LIST is a JSON list of paths. Prints one JSON
row for each: what the scanner reports, and its first message. A report is one of

- "highest": at least one finding at the scanner's highest level;
- "lower": findings of lower levels only;
- "unread": no finding, but an error, or an exit status that says that the file was not scanned;
- "": nothing.
"""

import contextlib
import functools
import io
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterable
from typing import Any

LIMIT = 120  # seconds for a file
OLDER_NUMPY = os.path.join(sys.prefix, "older_numpy")
Report = tuple[str, str]
_ORDER = ("highest", "lower", "unread", "")
_PICKLES, _TORCH = (".pkl", ".pickle", ".joblib", ".dill", ".dat", ".data"), (".bin", ".pt", ".pth", ".ckpt")


class TooSlow(BaseException):
    """Not an Exception, which scanners catch."""


def _worst(reports: Iterable[Report]) -> Report:
    return min(reports, key=lambda report: _ORDER.index(report[0]), default=("", ""))


def _files(path: str) -> list[str]:
    """The files of a folder, such as a distributed checkpoint."""
    if os.path.isfile(path):
        return [path]
    return sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)


class _Records(logging.Handler):
    """Keeps the messages of a logger."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def picklescan(path: str) -> Report:
    """The highest level is "dangerous", the other is "suspicious". It only logs that it cannot read something, and its
    exit status is then 0; that counts, too."""
    from picklescan.scanner import scan_file_path

    log, records = logging.getLogger("picklescan"), _Records()
    log.handlers, log.propagate = [records], False
    reports = []
    for file in _files(path):
        try:
            found = scan_file_path(file)
        except Exception as error:
            reports.append(("unread", f"{type(error).__name__}: {error}"))
            continue
        names = [f"{one.safety.value} {one.module}.{one.name}" for one in found.globals]
        if found.issues_count:
            reports.append(("highest", next(name for name in names if name.startswith("dangerous"))))
        if found.suspicious_count:
            reports.append(("lower", next(name for name in names if name.startswith("suspicious"))))
        if found.scan_err:
            reports.append(("unread", "scan_err"))
    reports += [("unread", text) for text in records.messages if "could not parse" in text or "Invalid file" in text]
    return _worst(reports)


def fickling(path: str) -> Report:
    """As `fickling --huggingface` does: the pickles of a zip with `scan_zip_archive`, other files with `scan_file`, and
    a zip that begins with something else with both. "Likely overtly malicious" and "overtly malicious" count as the
    highest level, the others above "likely safe" as lower. An `.npy` with a pickle, which it says that it does not
    support, is unread."""
    from fickling.analysis import Severity
    from fickling.loader import scan_file, scan_zip_archive

    reports = []
    for file in _files(path):
        if array := _array(file):
            reports += [("unread", "NumPy is not supported")] if array == "objects" else []
            continue
        is_zip = zipfile.is_zipfile(file)
        found = list(scan_zip_archive(file, graceful=True).values()) if is_zip else []
        if not is_zip or not _starts_with(file, b"PK"):
            found.append(scan_file(file, graceful=True))
        for one in found:
            why = one.errors or [str(result.to_string()) for result in one.results if result.severity == one.severity]
            if one.severity >= Severity.LIKELY_OVERTLY_MALICIOUS:
                reports.append(("highest", why[0] if why else ""))
            elif one.severity > Severity.LIKELY_SAFE:
                reports.append(("unread" if one.errors else "lower", why[0] if why else ""))
    return _worst(reports)


def _starts_with(path: str, prefix: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(prefix)) == prefix


def _array(path: str) -> str:
    """Whether a file is an `.npy`, and has Python objects."""
    import numpy as np

    if not _starts_with(path, np.lib.format.MAGIC_PREFIX):
        return ""
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        return "objects" if read(file)[2].hasobject else "numbers"


def modelscan(path: str) -> Report:
    """The highest level is "critical". Files with suffixes that it does not know get one that it knows. Unread is what
    its command line ends with 2 (errors) or 3 (nothing was scanned). It reads `.npy` with a NumPy before 2.3 only."""
    sys.path.insert(0, OLDER_NUMPY)
    from modelscan.modelscan import ModelScan

    logging.disable(logging.CRITICAL)
    reports = []
    with tempfile.TemporaryDirectory() as folder:
        for file in _files(path):
            name, suffix = os.path.basename(file), os.path.splitext(file)[1]
            if suffix not in (*_PICKLES, *_TORCH, ".npy", ".npz", ".zip"):
                name += ".pt" if zipfile.is_zipfile(file) else ".pkl"
            renamed = shutil.copy(file, os.path.join(folder, name))
            scan = ModelScan()
            scan.scan(renamed)
            for issue in scan.issues.all_issues:
                level = "highest" if issue.severity.name == "CRITICAL" else "lower"
                reports.append((level, f"{issue.details.module}.{issue.details.operator}"))
            if scan.errors:
                reports.append(("unread", str(scan.errors[0])))
            elif not scan.scanned:
                reports.append(("unread", "; ".join(str(one.message) for one in scan.skipped)))
    return _worst(reports)


def modelaudit(path: str) -> Report:
    """The highest level is "critical", the other is "warning". Unread is what its command line ends with 2."""
    os.environ["PROMPTFOO_DISABLE_TELEMETRY"] = "1"
    from modelaudit.core import determine_exit_code, scan_model_directory_or_file

    logging.disable(logging.CRITICAL)
    found = scan_model_directory_or_file(path, timeout=LIMIT, cache_enabled=False, skip_file_types=False)
    levels = {"critical": "highest", "warning": "lower"}
    reports = [(levels.get(one.severity.value, ""), one.message) for one in found.issues]
    if determine_exit_code(found) == 2:
        reports.append(("unread", next((one.message for one in found.issues), "exit status 2")))
    elif determine_exit_code(found) == 1:
        reports.append(("lower", "exit status 1"))
    return _worst(reports)


SCANNERS: dict[str, Callable[[str], Report]] = {
    "picklescan": picklescan,
    "fickling": fickling,
    "modelscan": modelscan,
    "modelaudit": modelaudit,
}


def _too_slow(*_: Any) -> None:
    raise TooSlow


def reported(scan: Callable[[str], Report], path: str) -> Report:
    signal.alarm(LIMIT)
    try:
        return scan(path)
    except TooSlow:
        return "unread", f"more than {LIMIT} seconds"
    except Exception as error:
        return "unread", f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


def main(name: str, paths: str) -> None:
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _too_slow)
    with open(paths, encoding="utf-8") as file:
        rows = json.load(file)
    show = functools.partial(print, file=sys.stdout, flush=True)
    for path in rows:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            report, why = reported(SCANNERS[name], path)
        show(json.dumps({"path": path, "report": report, "why": why[:300]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
