"""Saves to S3 of which any request fails, is lost, or is the last of its process: old or new, nothing else. The server
is real, on loopback, and behind a proxy.

`make test` tries every kind of fault at a request, `make faults` at sixty, and kills saves at each.
"""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import product
from typing import Any

import fsspec
import numpy as np
import pytest
from tests.files.object_store import Passed, Store, s3_options, s3_server, store_behind_proxy
from tests.files.remote_saves import NAME, PART, SHARD_SIZE, URL, Saver, content, generation_of
from tests.long import LONG, SEED, count

import leafwise as lw
from leafwise.files.folders.shard_names import own_shards
from leafwise.files.sources import multipart, remote
from leafwise.files.sources.s3 import S3Object
from leafwise.files.writing import remote_destination

INDEX = ".index.json"
# A save succeeds even if it cannot remove what it has replaced.
pytestmark = pytest.mark.filterwarnings("ignore:the new checkpoint is in place, but")


@pytest.fixture(scope="module")
def one_store() -> Iterator[Store]:
    with s3_server() as port, store_behind_proxy(port) as found:
        yield found


@pytest.fixture
def store(one_store: Store) -> Store:
    one_store.clear()
    return one_store


@pytest.fixture(autouse=True)
def small_parts_short_pauses_and_old_leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "PART", PART)
    monkeypatch.setattr(remote, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(remote_destination, "_ABANDONED", timedelta(seconds=-60))


class Case:
    """A save that replaces a checkpoint, if there is one."""

    def __init__(self, before: dict[str, Any] | None, after: dict[str, Any]) -> None:
        self.before, self.after = before, after

    def begin(self, store: Store) -> None:
        store.clear()
        if self.before is not None:
            _save(1, self.before)
        store.proxy.seen.clear()

    def save(self, generation: int = 2) -> str:
        return _save(generation, self.after)


def _save(generation: int, options: dict[str, Any]) -> str:
    return lw.save(content(generation, options["units"]), URL, shard_size=options["shard_size"])


SMALL: dict[str, Any] = {"units": 2, "shard_size": None}
PARTS: dict[str, Any] = {"units": 12, "shard_size": None}
SHARDS: dict[str, Any] = {"units": 12, "shard_size": SHARD_SIZE}
CASES = {
    "one request": Case(SMALL, SMALL),
    "parts": Case(PARTS, PARTS),
    "shards": Case(SHARDS, SHARDS),
    "to shards": Case(PARTS, SHARDS),
    "from shards": Case(SHARDS, PARTS),
    "the first": Case(None, SHARDS),
}


def visible(store: Store, was_there: bool) -> set[int]:
    """The generations that are visible under the name. Each is whole, and nothing else is there but shards, which only
    an index makes visible."""
    names = store.names()
    there = {name for name in names if name in (NAME, NAME + INDEX)}
    shards = {f"run/{name}" for name in own_shards("m.safetensors", [name.removeprefix("run/") for name in names])}
    assert set(names) == there | shards
    assert there or not was_there, names
    found = {generation_of(f"s3://bucket/{name}") for name in there}
    if there:
        assert generation_of("s3://bucket/run") in found
        assert generation_of(URL) in found
    return found


def check_after(case: Case, store: Store) -> set[int]:
    """What is visible after a fault, which must be the old or the new checkpoint; and the next save must work and
    remove everything else."""
    store.works_again()
    found = visible(store, case.before is not None)
    assert found <= {1, 2}
    case.save(3)
    assert visible(store, True) == {3}
    assert len(store.names()) == (3 if case.after["shard_size"] else 1), store.names()
    assert store.uploads() == []
    return found


# -- failing requests ----------------------------------------------------------------------------------------


def setting(**values: Any) -> Callable[[Passed], None]:
    def apply(passed: Passed) -> None:
        for name, value in values.items():
            setattr(passed, name, value)

    return apply


def succeed_in_name_only(passed: Passed) -> None:
    """The store answers 200, and an error in the body: it may do so after it has begun to answer."""
    if passed.is_completion:
        passed.refuse(200, "InternalError")
    else:
        passed.throttle()


# How many requests in a row fail, and how. Five attempts are made: four failures pass, five do not.
FOREVER = 1_000_000
FAULTS: dict[str, tuple[int, Callable[[Passed], None]]] = {
    "503 once": (1, Passed.throttle),
    "503 four times": (4, Passed.throttle),
    "503 five times": (5, Passed.throttle),
    "503 from then on": (FOREVER, Passed.throttle),
    "refused from then on": (FOREVER, lambda passed: passed.refuse(403, "AccessDenied")),
    "an error in a 200": (1, succeed_in_name_only),
    "cut off once": (1, setting(resets_before=True)),
    "reset from then on": (FOREVER, setting(resets_before=True, resets_hard=True)),
    "the answer is lost once": (1, setting(resets_after=True)),
    "five answers are lost": (5, setting(resets_after=True, resets_hard=True)),
    "all answers are lost from then on": (FOREVER, setting(resets_after=True)),
    "answers are cut short": (5, setting(cut_to=10)),
}


@pytest.fixture(scope="module")
def every_request(one_store: Store) -> list[tuple[str, int]]:
    """The requests of each case, by number."""
    numbered = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(multipart, "PART", PART)
        for name, case in CASES.items():
            case.begin(one_store)
            case.save()
            numbered += [(name, number) for number in range(len(one_store.proxy.seen))]
    count("requests of saves to S3", len(numbered))
    return numbered


def some(chosen: list[Any], number: int, name: str, most: int = 1_000) -> list[Any]:
    """A few in `make test`, `most` of them in `make faults`; another sample for each seed."""
    return random.Random(f"{SEED} {name}").sample(chosen, min(most if LONG else number, len(chosen)))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_request_leaves_the_old_or_the_new_checkpoint(
    store: Store, every_request: list[tuple[str, int]], fault: str
) -> None:
    number, apply = FAULTS[fault]
    for name, at in some(every_request, 1, fault, 60):
        case = CASES[name]
        case.begin(store)
        made, lock = [0], threading.Lock()
        hit: list[Passed] = []

        def fail(passed: Passed, at: int = at, made: Any = made, lock: Any = lock, hit: Any = hit) -> None:
            with lock:
                made[0] += 1
                is_hit = at < made[0] <= at + number
            if is_hit:
                hit.append(passed)
                apply(passed)

        store.proxy.fault = fail
        said, returned = None, ""
        try:
            returned = case.save()
        except lw.FileError as error:
            said = error
        store.works_again()
        where = (name, at, hit[0].method if hit else "", hit[0].path if hit else "", said)
        count("saves to S3 with failing requests")
        if returned:
            assert generation_of(returned) == 2, where
        else:
            assert hit, where
            assert "run/m" in str(said), where
            # What could not be removed is named, except what nobody knows of: an upload whose begin was not answered.
            extra = set(store.names()) - {NAME, NAME + INDEX}
            if case.before is SHARDS or 2 in visible(store, case.before is not None):
                extra = set()
            uploads = [] if "lost" in fault or "cut short" in fault else store.uploads()
            assert not (extra or uploads) or "could not be removed" in str(getattr(said, "__notes__", "")), where
        if fault in ("503 once", "503 four times", "cut off once", "the answer is lost once"):
            assert returned, where
        try:
            check_after(case, store)
        except Exception as error:
            error.add_note(str(where))
            raise


# -- saves that are killed -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saver(one_store: Store) -> Iterator[Saver]:
    process = Saver(s3_options(one_store.proxy.server_address[1]))
    yield process
    process.close()


@pytest.mark.slow
@pytest.mark.parametrize("handled", [False, True], ids=["before the store handles it", "before it is answered"])
def test_a_save_that_is_killed_at_any_request_leaves_the_old_or_the_new(
    store: Store, saver: Saver, every_request: list[tuple[str, int]], handled: bool
) -> None:
    found = set()
    for name, at in some(every_request, 2, f"killed {handled}"):
        case = CASES[name]
        case.begin(store)
        made, lock = [0], threading.Lock()

        def kill(passed: Passed, at: int = at, made: Any = made, lock: Any = lock) -> None:
            with lock:
                made[0] += 1
                is_hit = made[0] == at + 1
            if is_hit and handled:
                passed.once_handled, passed.resets_after = saver.kill, True
            elif is_hit:
                passed.resets_before = True
                saver.kill()

        store.proxy.fault = kill
        status = saver.save(2, case.after["units"], case.after["shard_size"])
        assert status in (-9, 0), (name, at)
        assert status == -9 or (name, at + 1) not in every_request, (name, at)  # it may make a request less
        count("saves to S3 killed", int(status == -9))
        try:
            found |= check_after(case, store)
        except Exception as error:
            error.add_note(f"{name}, request {at}")
            raise
    assert not LONG or found == {1, 2}


# -- time ----------------------------------------------------------------------------------------------------


class Clock:
    """A clock that only pauses move."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self._lock = threading.Lock()
        sleep = asyncio.sleep

        async def pause(seconds: float, *result: Any) -> Any:
            self.pause(seconds)
            return await sleep(0, *result)

        patched.setattr(remote, "time", self)
        patched.setattr(remote, "FIRST_PAUSE", 0.5)
        patched.setattr(asyncio, "sleep", pause)  # with which the client of S3 waits

    def monotonic(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        with self._lock:  # threads that pause at the same time pause one after the other: that is the longest time
            self.now += seconds

    sleep = pause


@pytest.fixture(params=["leafwise", "all"])
def clock(request: pytest.FixtureRequest, store: Store, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock, with and without the retries of the libraries below."""
    if request.param == "all":
        options = s3_options(store.proxy.server_address[1])
        options["config_kwargs"] = {"read_timeout": 300}
        monkeypatch.setattr(fsspec.config, "conf", {"s3": options})
        monkeypatch.setattr(type(store.direct), "retries", 5)
    return Clock(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [2, 60, 3_600])
def test_a_bucket_that_answers_503_for_a_time(
    store: Store, clock: Clock, every_request: list[tuple[str, int]], seconds: int
) -> None:
    for name, at in some(every_request, 1, f"503 for {seconds} s", 60):
        case = CASES[name]
        case.begin(store)
        made, began = [0], [0.0]

        def fail(passed: Passed, at: int = at, made: Any = made, began: Any = began) -> None:
            made[0] += 1
            if made[0] == at + 1:
                began[0] = clock.now
            if made[0] > at and clock.now < began[0] + seconds:
                passed.throttle()

        store.proxy.fault = fail
        returned, clock.now = "", 0.0
        with suppress(lw.FileError):
            returned = case.save()
        took = clock.now
        store.works_again()
        count("saves to a bucket that answers 503 for a time")
        if returned:
            assert generation_of(returned) == 2
        assert returned or seconds > 2, at
        assert took < 240, at
        check_after(case, store)


VERBS: dict[str, Callable[[], object]] = {
    "open": lambda: lw.open(URL),
    "open a folder": lambda: lw.open("s3://bucket/run"),
    "verify": lambda: lw.verify(URL),
    "stats": lambda: lw.stats(URL),
    "load": lambda: lw.load(content(0), URL),
    "diff": lambda: lw.diff(URL, content(0)),
    "edit": lambda: lw.edit(URL, "memory://edited.safetensors", cast={"**": "bfloat16"}),
    "save": lambda: lw.save(content(2), URL),
    "save in shards": lambda: lw.save(content(2), URL, shard_size=SHARD_SIZE),
    "save by way of a temporary file": lambda: lw.edit(content(2), "s3://bucket/run/m.npz"),
    "save in the background": lambda: lw.save(content(2), URL, background=True).wait(),
}
RESETS: dict[str, Callable[[Passed], None]] = {
    "cut off": setting(resets_before=True),
    "reset": setting(resets_before=True, resets_hard=True),
    "the answer is lost": setting(resets_after=True, resets_hard=True),
    "cut off after 100 bytes": setting(cut_to=100),
    "reset after 100 bytes": setting(cut_to=100, resets_hard=True),
}
# Which requests are the first that fail.
BEGINNINGS: dict[str, Callable[[Passed], bool]] = {
    "at once": lambda passed: True,
    "reads": lambda passed: passed.is_read,
    "the first upload": lambda passed: passed.method == "POST" and "uploads" in passed.path,
    "parts": lambda passed: passed.is_part,
    "completion": lambda passed: passed.is_completion,
    "other writes": lambda passed: passed.method == "PUT" and not passed.is_part,
    "aborts and removals": lambda passed: passed.method == "DELETE",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", RESETS)
def test_resets_without_an_end_end_every_verb(store: Store, clock: Clock, how: str) -> None:
    """Each request of leafwise is made five times within a minute; the client of S3 makes one up to ten times, or fifty
    times if s3fs repeats it, too. A save that fails cleans up, for which there are attempts of their own."""
    lw.save(content(1), URL)
    for verb, begin in some([*product(VERBS, BEGINNINGS)], 2, how):
        failing = threading.Event()
        made = [0]

        def fail(passed: Passed, begin: str = begin, failing: Any = failing, made: Any = made) -> None:
            if BEGINNINGS[begin](passed):
                failing.set()
            if failing.is_set():
                made[0] += 1
                RESETS[how](passed)

        clock.now = 0.0
        store.proxy.fault = fail
        error = None
        try:
            VERBS[verb]()
        except lw.Error as problem:
            error = problem
        store.works_again()
        count("verbs whose connections were reset without an end")
        assert error is None or "cannot" in str(error)
        assert clock.now < (120 if "save" not in verb else 300), (verb, begin, clock.now, made, error)
        assert made[0] <= 400, (verb, begin, made, error)
        with suppress(FileNotFoundError):
            fsspec.filesystem("memory").rm("/edited.safetensors")
        assert generation_of(URL) in (1, 2)


@pytest.mark.slow
def test_a_save_of_many_shards_that_fails_ends_as_soon(store: Store, clock: Clock) -> None:
    """Each shard that cannot be removed must not take a minute of its own."""
    arrays = {f"w{number:02}": np.full(3_000, number, np.float32) for number in range(20)}

    def fail(passed: Passed) -> None:
        if passed.method == "PUT" and INDEX in passed.path:
            store.proxy.fault = lambda passed: (
                passed.refuse(403, "AccessDenied") if _is_index(passed) else reset(passed)
            )
            passed.refuse(403, "AccessDenied")

    reset = setting(resets_before=True)
    store.proxy.fault = fail
    clock.now = 0.0
    with pytest.raises(lw.FileError, match="access is denied") as caught:
        lw.save(arrays, URL, shard_size="13KB")
    assert "could not be removed" in caught.value.__notes__[0]
    assert len(store.names()) == 20
    assert clock.now < 180


def _is_index(passed: Passed) -> bool:
    return passed.method == "PUT" and INDEX in passed.path


def test_a_list_of_uploads_that_never_ends_is_given_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that says again and again that there are more, after the same upload."""
    answer = {"Uploads": [], "IsTruncated": True, "NextKeyMarker": NAME, "NextUploadIdMarker": "1"}
    once, asked = S3Object.once, [0]

    def endless(self: S3Object, method: str, **arguments: Any) -> Any:
        if method != "list_multipart_uploads":
            return once(self, method, **arguments)
        asked[0] += 1
        if asked[0] > 50:
            raise AssertionError("the list was requested 50 times")
        return answer

    monkeypatch.setattr(S3Object, "once", endless)
    lw.save(content(1), URL)
    assert asked[0] < 10


# -- several writers -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("begins", ["at the same time", "when the first is placed"])
@pytest.mark.parametrize(
    "layouts", [*product([None, SHARD_SIZE], repeat=2)], ids=["files", "file, shards", "shards, file", "shards"]
)
def test_two_saves_at_the_same_time_leave_a_whole_checkpoint(
    store: Store, layouts: tuple[str | None, str | None], begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have placed their checkpoints before either removes what it has replaced."""
    monkeypatch.setattr(remote_destination, "_ABANDONED", timedelta(days=1))
    remove_earlier = remote_destination.RemoteDestination._remove_earlier
    for before in some([None, PARTS, SHARDS], 1, f"{layouts} {begins}"):
        store.clear()
        if before is not None:
            _save(1, before)
        wrong: list[BaseException] = []
        waiting, may_begin, may_go_on = [0], threading.Event(), threading.Event()

        def arrive(waiting: Any = waiting, may_begin: Any = may_begin, may_go_on: Any = may_go_on) -> None:
            waiting[0] += 1
            may_begin.set()
            if waiting[0] == 2:
                may_go_on.set()

        def wait_for_both(self: Any, in_shards: bool, arrive: Any = arrive, may_go_on: Any = may_go_on) -> None:
            arrive()
            assert may_go_on.wait(600)
            remove_earlier(self, in_shards)

        def save(number: int, arrive: Any = arrive, wrong: Any = wrong, may_begin: Any = may_begin) -> None:
            if number and begins == "when the first is placed":
                may_begin.wait(600)
            try:
                lw.save(content(2 + number), URL, shard_size=layouts[number])
            except BaseException as problem:
                wrong.append(problem)
                arrive()

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(remote_destination.RemoteDestination, "_remove_earlier", wait_for_both)
            threads = [threading.Thread(target=save, args=(number,)) for number in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        # The docs say that it is an error if another program has replaced a file before it was compared.
        assert all("at the same time, save again" in str(error) for error in wrong), wrong
        assert not wrong or (begins == "at the same time" and layouts[0] == layouts[1])
        count("saves to S3 at the same time", 2)
        assert visible(store, True) <= {2, 3}
        monkeypatch.setattr(remote_destination, "_ABANDONED", timedelta(seconds=-60))
        _save(4, PARTS)
        assert visible(store, True) == {4}
        assert store.names() == [NAME]
        monkeypatch.setattr(remote_destination, "_ABANDONED", timedelta(days=1))
