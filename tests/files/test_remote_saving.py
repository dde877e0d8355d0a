"""Checkpoints that are written behind URLs: old or new, never neither, whatever the store does. The S3 server is real,
on loopback."""

import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from tests.files.object_store import Passed, Store, s3_options, s3_server, store_behind_proxy

import leafwise as lw
from leafwise.cli import main
from leafwise.core.work.threads import THREADS
from leafwise.files.sources import multipart, remote
from leafwise.files.sources.s3 import S3Object
from leafwise.files.writing import remote_destination
from leafwise.files.writing.remote_writer import StagedUpload

UNIT = 10_240  # bytes
PART = 5 * UNIT
NAME = "run/m.safetensors"
URL = f"s3://bucket/{NAME}"


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture(scope="module")
def one_store(server: int) -> Iterator[Store]:
    with store_behind_proxy(server) as found:
        yield found


@pytest.fixture
def store(one_store: Store) -> Store:
    one_store.clear()
    return one_store


@pytest.fixture(autouse=True)
def small_parts_and_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "PART", PART)
    monkeypatch.setattr(remote, "FIRST_PAUSE", 0.001)


def state(generation: float = 1.0, units: int = 12) -> dict[str, Any]:
    torch.manual_seed(int(generation * 7))
    weight = torch.randn(units, UNIT // 4) * generation
    return {"w": weight, "b": torch.full((5,), float(generation)), "generation": float(generation)}


def generation(url: str = URL) -> float:
    """Which generation is stored; every checksum is compared."""
    assert lw.verify(url).ok
    with lw.open(url) as tree:
        assert tree["b"].numpy().tolist() == [tree["generation"]] * 5
        return float(tree["generation"])


def is_write(passed: Passed) -> bool:
    return passed.method in ("PUT", "POST", "DELETE")


def times(number: int, what: Callable[[Passed], bool], fault: Callable[[Passed], None]) -> Callable[[Passed], None]:
    """A fault for the first requests of a kind."""
    left = [number]
    lock = threading.Lock()

    def apply(passed: Passed) -> None:
        if what(passed):
            with lock:
                left[0] -= 1
                is_due = left[0] >= 0
            if is_due:
                fault(passed)

    return apply


# -- what is written -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("units", [0, 4, 5, 12])
def test_what_is_written_to_s3_has_the_bytes_of_a_local_file(store: Store, tmp_path: Path, units: int) -> None:
    content = state(units=units)
    assert lw.save(content, URL) == URL
    lw.save(content, tmp_path / "m.safetensors")
    assert store.read(NAME) == (tmp_path / "m.safetensors").read_bytes()
    assert store.names() == [NAME]
    assert store.uploads() == []
    loaded = lw.load({"w": torch.zeros_like(content["w"]), "b": torch.zeros(5), "generation": 0.0}, URL)
    assert torch.equal(loaded["w"], content["w"])


@pytest.mark.slow
def test_the_part_with_the_header_is_sent_last_and_nothing_is_visible_before(store: Store) -> None:
    visible = []
    store.proxy.fault = lambda passed: visible.append(NAME in store.names()) if is_write(passed) else None
    lw.save(state(), URL)
    parts = [int(passed.path.rpartition("=")[2]) for passed in store.proxy.seen if passed.is_part]
    assert sorted(parts) == [1, 2, 3]
    assert len(visible) >= 5
    assert not any(visible)
    sizes = [len(passed.body) for passed in store.proxy.seen if passed.is_part]
    assert sorted(sizes)[1:] == [PART, PART]


def test_a_file_of_many_parts_has_larger_ones(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "MOST_PARTS", 2)
    lw.save(state(), URL)
    assert len([passed for passed in store.proxy.seen if passed.is_part]) == 2
    assert generation() == 1


@pytest.mark.slow
def test_shards_replace_a_file_and_a_file_replaces_shards(store: Store) -> None:
    lw.save(state(1), URL)
    assert lw.save(state(2), URL, shard_size="110KB") == URL + ".index.json"
    assert len(store.names()) == 3
    assert NAME not in store.names()
    assert generation() == generation(URL + ".index.json") == generation("s3://bucket/run") == 2
    before = store.names()
    lw.save(state(3), URL, shard_size="110KB")
    assert len(store.names()) == 3
    assert len(set(before) & set(store.names())) == 1
    assert generation() == 3
    lw.save(state(4), URL)
    assert store.names() == [NAME]
    assert generation() == 4


@pytest.mark.slow
def test_shards_whose_index_cannot_be_removed_stay(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "s3://bucket/kept/m.safetensors"
    lw.save({"a": torch.ones(1000), "b": torch.ones(1000)}, url, shard_size=5000)
    remove = remote_destination.remove

    def refused(path: str, *arguments: Any) -> None:
        if path.endswith(".index.json"):
            raise lw.FileError(f"cannot write {path}: SlowDown")
        remove(path, *arguments)

    monkeypatch.setattr(remote_destination, "remove", refused)
    with pytest.warns(UserWarning, match="its name may still open the earlier one"):
        lw.save({"a": torch.zeros(1000)}, url)
    assert lw.verify(f"{url}.index.json").ok
    with lw.open(url) as saved:
        assert not saved["a"].numpy().any()


def test_shards_of_other_checkpoints_stay(store: Store) -> None:
    lw.save(state(1), URL, shard_size="110KB")
    other = URL.replace("/m.", "/m2.")
    lw.save(state(2), other, shard_size="110KB")
    copied = store.read(NAME + ".index.json")
    store.direct.pipe_file("bucket/run/copy.safetensors.index.json", copied)
    lw.save(state(3), URL, shard_size="110KB")
    assert (generation(), generation(other), generation("s3://bucket/run/copy.safetensors")) == (3, 2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3://bucket", "memory://folder"])
def test_every_way_to_write_works_remotely(
    scheme: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(300, 50)
            self.head = torch.nn.Linear(50, 300, bias=False)
            self.head.weight = self.embed.weight

    model = Net()
    here = lw.save(model, tmp_path / "a.safetensors")
    copies = lw.save(model, f"{scheme}/copies.safetensors", ties="copy")
    assert lw.verify(copies).leaves == 2
    saving = lw.save(model, f"{scheme}/background.safetensors", background=True)
    assert saving.wait() == f"{scheme}/background.safetensors"
    edited = lw.edit(here, f"{scheme}/edited.safetensors", cast={"**": "bfloat16"}, shard_size="20KB").path
    assert main(["convert", f"{scheme}/background.safetensors", f"{scheme}/c.npz"]) == 0
    assert main(["convert", f"{scheme}/c.npz", f"{scheme}/d.safetensors"]) == 0
    assert main(["edit", here, "-o", f"{scheme}/e.safetensors", "--drop", "head.weight"]) == 0
    assert main(["verify", f"{scheme}/e.safetensors"]) == 0
    assert f"wrote {scheme}/e.safetensors" in capsys.readouterr().out
    for url in (copies, saving.path, f"{scheme}/c.npz", f"{scheme}/d.safetensors"):
        assert np.array_equal(lw.open(url)["embed.weight"].numpy(), model.embed.weight.detach().numpy()), url
        assert lw.verify(url).ok
    assert lw.open(edited)["embed.weight"].dtype == "bfloat16"
    other = Net()
    lw.load(other, f"{scheme}/background.safetensors")
    assert torch.equal(other.head.weight, model.head.weight)
    with pytest.raises(lw.FileError, match=r"it is also a source"):
        lw.edit(copies, copies, drop="head.weight")


@pytest.mark.slow
def test_a_store_has_several_names_and_shards_are_sources(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3a", fsspec.config.conf["s3"])
    lw.save(state(1), URL, shard_size="110KB")
    shard = next(name for name in store.names() if "00001-of" in name)
    with pytest.raises(lw.FileError, match="it is also a source"):
        lw.edit(URL, URL.replace("s3:", "s3a:"))
    with pytest.raises(lw.FileError, match="is a shard of a checkpoint of that name, and would be removed"):
        lw.edit(f"s3://bucket/{shard}", URL)
    assert generation() == 1
    lw.save(state(2), "s3://bucket/new.safetensors")
    edit = lw.edit("s3://bucket/new.safetensors", URL)
    assert f"replaces the checkpoint of '{URL}.index.json', an index of shards" in edit.notes
    assert generation() == 2


def test_a_folder_and_a_bucket_get_the_usual_name(store: Store) -> None:
    small = {"a": np.ones(3)}
    assert lw.save(small, "s3://bucket") == "s3://bucket/model.safetensors"
    assert lw.save(small, "s3://bucket/new/") == "s3://bucket/new/model.safetensors"
    assert lw.save(small, "s3://bucket/new") == "s3://bucket/new/model.safetensors"
    assert lw.save(small, "s3://bucket/plain.safetensors.index.json") == "s3://bucket/plain.safetensors"
    assert len(store.names()) == 3


def test_a_url_of_this_machine_is_written_durably(tmp_path: Path) -> None:
    assert lw.save({"a": np.ones(3)}, f"file://{tmp_path}/m.safetensors") == f"{tmp_path}/m.safetensors"
    assert lw.save({"a": np.ones(3)}, f"file://{tmp_path}") == f"{tmp_path}/model.safetensors"
    with pytest.raises(lw.FileError, match="there is no such folder"):
        lw.save({"a": np.ones(3)}, f"file://{tmp_path}/none/")


@pytest.mark.parametrize("url", [URL, "memory://counted/m.safetensors"])
def test_progress_counts_every_byte_once(url: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.checkpoint.saving import save

    counted: list[int] = []
    totals: list[int | None] = []

    class Bar:
        def __init__(self, total: int | None, *_: Any) -> None:
            totals.append(total)

        def __enter__(self) -> Callable[[int], None]:
            return counted.append

        def __exit__(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(save, "bar", Bar)
    store.proxy.fault = times(2, lambda passed: passed.is_part, Passed.throttle)
    lw.save(state(), url, progress=True)
    assert totals == [12 * UNIT + 20]
    # What is sent through fsspec has a header.
    assert totals[0] <= sum(counted) <= totals[0] + (2_000 if url.startswith("memory") else 0)


def test_memory_is_bounded_by_the_parts(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = lw.save(state(units=100), tmp_path / "a.safetensors")
    monkeypatch.setattr(multipart, "SENDING", 2)
    alive, most, lock = [0], [0], threading.Lock()

    class Counted(multipart._PartMemory):
        def __init__(self, length: int) -> None:
            super().__init__(length)
            with lock:
                alive[0] += 1
                most[0] = max(most[0], alive[0])

        def __del__(self) -> None:
            with lock:
                alive[0] -= 1

    monkeypatch.setattr(multipart, "_PartMemory", Counted)
    lw.edit(source, URL, cast={"w": "float16"})
    lw.edit(source, URL)
    # One has the header, two are sent, and each thread fills or waits with at most three.
    assert 3 <= most[0] <= 3 + 3 * THREADS
    assert most[0] < 20
    assert generation() == 1


# -- old or new ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("shard_size", [None, "110KB"], ids=["one file", "shards"])
def test_whichever_request_is_refused_the_old_or_the_new_checkpoint_is_whole(
    store: Store, shard_size: str | None
) -> None:
    lw.save(state(1), URL, shard_size=shard_size)
    store.proxy.seen.clear()
    lw.save(state(2), URL, shard_size=shard_size)
    requests = [number for number, passed in enumerate(store.proxy.seen) if is_write(passed) or number % 4 == 0]
    assert len(requests) > 5
    outcomes = set()
    is_old = False
    for number in requests:
        if not is_old:  # otherwise the last save has changed nothing
            store.clear()
            lw.save(state(1), URL, shard_size=shard_size)
            names = store.names()
        counted = iter(range(10_000))
        refused: list[Passed] = []

        def refuse(passed: Passed, number: int = number, counted: Any = counted, refused: Any = refused) -> None:
            if next(counted) == number:
                passed.refuse(403, "AccessDenied")
                refused.append(passed)

        store.proxy.fault = refuse
        failed = True
        with suppress(lw.FileError):
            lw.save(state(2), URL, shard_size=shard_size)
            failed = False
        store.proxy.fault = lambda passed: None
        found = generation()
        outcomes.add((failed, found))
        assert found == 2 or failed
        assert store.uploads() == [], refused[0].path
        is_old = found == 1
        if is_old:
            assert store.names() == names, refused[0].path
    assert {(True, 1.0), (False, 2.0)} <= outcomes


@pytest.mark.slow
@pytest.mark.parametrize("how", ["resets_before", "resets_after"])
def test_an_index_whose_response_is_lost_keeps_the_old_or_the_new_shards(store: Store, how: str) -> None:
    """If nobody knows whether the index has arrived, the shards must stay."""
    lw.save(state(1), URL, shard_size="110KB")
    before = store.names()
    is_index = lambda passed: passed.method == "PUT" and "index.json" in passed.path  # noqa: E731
    store.proxy.fault = times(10_000, is_index, lambda passed: setattr(passed, how, True))
    if how == "resets_after":
        lw.save(state(2), URL, shard_size="110KB")
        assert len(store.names()) == 3
    else:
        with pytest.raises(lw.FileError, match="the connection was cut off") as caught:
            lw.save(state(2), URL, shard_size="110KB")
        assert "could not be removed; the next save there removes it after a day" in caught.value.__notes__[0]
        assert len(store.names()) == len(before) + 2
    store.proxy.fault = lambda passed: None
    assert generation() == (2 if how == "resets_after" else 1)


def test_a_shard_that_is_completed_after_an_interrupt_is_removed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may still handle a request that was interrupted."""
    complete = S3Object.complete
    late: list[threading.Thread] = []

    def interrupted(self: S3Object, *args: Any) -> None:
        late.append(threading.Thread(target=complete, args=(self, *args)))
        raise KeyboardInterrupt

    def aborted(self: S3Object, method: str, **arguments: Any) -> Any:
        if method == "abort_multipart_upload" and not late[0].ident:
            late[0].start()
            late[0].join()
        return write(self, method, **arguments)

    write = S3Object.write
    monkeypatch.setattr(S3Object, "complete", interrupted)
    monkeypatch.setattr(S3Object, "write", aborted)
    with pytest.raises(KeyboardInterrupt):
        lw.save(state(1), URL, shard_size="110KB")
    assert store.names() == []
    assert store.uploads() == []


@pytest.mark.parametrize("units", [1, 12], ids=["one request", "parts"])
def test_what_is_not_what_was_sent_after_a_save_is_an_error(store: Store, units: int) -> None:
    """Another program replaces the object after the last request that writes it, and before it is compared."""
    lw.save(state(1, units), URL)
    placed = threading.Event()

    def replace(passed: Passed) -> None:
        if passed.method == "HEAD" and placed.is_set():
            store.direct.pipe_file(f"bucket/{NAME}", b"something else")
        elif passed.is_completion or (passed.method == "PUT" and not passed.is_part):
            placed.set()

    store.proxy.fault = replace
    with pytest.raises(
        lw.FileError, match=rf"'{URL}' was written, but is not what was sent: it should have .* has 14;"
    ):
        lw.save(state(2, units), URL)


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_the_old_checkpoint(store: Store) -> None:
    lw.save(state(1), URL, shard_size="110KB")
    names = store.names()
    port = store.proxy.server_address[1]
    script = f"""
import sys, fsspec, numpy as np
from leafwise.files.sources import multipart
multipart.PART = {PART}
fsspec.config.conf["s3"] = {s3_options(port)!r}
import leafwise as lw
lw.save({{name: np.ones((12, {UNIT // 4}), "f4") for name in "abc"}}, {URL!r}, shard_size="110KB")
"""
    process: list[subprocess.Popen[bytes]] = []

    def kill(passed: Passed) -> None:
        if "partNumber=2" in passed.path and "00002-of" in passed.path:
            process[0].kill()

    store.proxy.fault = kill
    process.append(subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE))
    _, said = process[0].communicate(timeout=600)
    assert process[0].returncode == -9, said
    store.proxy.fault = lambda passed: None
    assert generation() == 1
    assert len(store.names()) > len(names)
    assert store.uploads()


def test_what_was_left_behind_is_removed_after_a_day(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(passed: Passed) -> None:
        if passed.method == "DELETE" or passed.is_completion:
            passed.refuse(403, "AccessDenied")

    lw.save(state(1), URL)
    store.proxy.fault = refuse
    with pytest.raises(lw.FileError, match="access is denied") as caught:
        lw.save(state(2), URL)
    notes = " ".join(caught.value.__notes__)
    assert notes == f"what was uploaded of '{URL}' could not be removed; the next save there removes it after a day"
    store.proxy.fault = lambda passed: None
    assert len(store.uploads()) == 1
    store.direct.pipe_file(f"bucket/{NAME.replace('m.safe', 'm-5696f39f00000000-00001-of-00002.safe')}", b"left")
    other = f"bucket/{NAME.replace('m.safe', 'mine.safe')}"
    store.direct.call_s3("create_multipart_upload", Bucket="bucket", Key=other.removeprefix("bucket/"))
    uploads = S3Object.uploads

    def just_begun(self: S3Object, prefix: str) -> Iterator[dict[str, Any]]:  # moto always says 2010
        return ({**upload, "Initiated": datetime.now(UTC)} for upload in uploads(self, prefix))

    with monkeypatch.context() as patched:
        patched.setattr(S3Object, "uploads", just_begun)
        lw.save(state(3), URL)
    assert len(store.uploads()) == 2
    assert len(store.names()) == 2
    monkeypatch.setattr(remote_destination, "_ABANDONED", timedelta(seconds=-60))
    lw.save(state(4), URL)
    assert [upload["Key"] for upload in store.uploads()] == [other.removeprefix("bucket/")]
    assert store.names() == [NAME]
    assert generation() == 4


def test_memory_that_changes_during_a_save_gets_checksums_that_match(store: Store) -> None:
    content = state(1, 24)

    def change(passed: Passed) -> None:
        if passed.is_part:
            content["w"].add_(1)

    store.proxy.fault = change
    lw.save(content, URL)
    assert lw.verify(URL).ok


def test_an_interrupt_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lw.save(state(1), URL)
    send = multipart.MultipartUpload._send

    def interrupted(self: Any, number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt
        send(self, number)

    monkeypatch.setattr(multipart.MultipartUpload, "_send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lw.save(state(2), URL)
    assert store.uploads() == []
    assert generation() == 1


# -- failures that pass, and those that do not ---------------------------------------------------------------


def faults() -> dict[str, Callable[[Passed], None]]:
    def set_(name: str, value: Any) -> Callable[[Passed], None]:
        return lambda passed: setattr(passed, name, value)

    def flip(passed: Passed) -> None:
        passed.body = passed.body[:-1] + bytes([passed.body[-1] ^ 1])

    return {
        "throttled": Passed.throttle,
        "internal error": lambda passed: passed.refuse(500, "InternalError"),
        "reset before": set_("resets_before", True),
        "reset after": set_("resets_after", True),
        "flipped": flip,
    }


@pytest.mark.slow
@pytest.mark.parametrize("fault", faults())
def test_parts_that_fail_are_sent_again_and_given_up_in_the_end(store: Store, fault: str) -> None:
    lw.save(state(1), URL)
    store.proxy.fault = times(4, lambda passed: passed.is_part, faults()[fault])
    lw.save(state(2), URL)
    assert generation() == 2
    store.proxy.fault = times(10_000, lambda passed: passed.is_part, faults()[fault])
    said = {
        "throttled": "the store asks for fewer requests (SlowDown); try again later",
        "internal error": "the server has a problem (500); try again later (InternalError)",
        "flipped": "the store has received other bytes than were sent; check the network",
    }.get(fault, "the connection was cut off; try again")
    with pytest.raises(lw.FileError) as caught:
        lw.save(state(3), URL)
    assert str(caught.value) == f"cannot write '{URL}': {said} (5 attempts failed)"
    store.proxy.fault = lambda passed: None
    assert generation() == 2
    assert store.uploads() == []
    assert store.names() == [NAME]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["throttled", "internal error", "reset before", "reset after"])
@pytest.mark.parametrize("request_kind", ["uploads", "completion", "small", "head", "list"])
def test_every_kind_of_request_is_repeated(store: Store, fault: str, request_kind: str) -> None:
    kinds: dict[str, Callable[[Passed], bool]] = {
        "uploads": lambda passed: passed.method == "POST" and "uploads" in passed.path,
        "completion": lambda passed: passed.is_completion,
        "small": lambda passed: passed.method == "PUT" and "uploadId" not in passed.path,
        "head": lambda passed: passed.method == "HEAD",
        "list": lambda passed: passed.method == "GET" and "list-type" in passed.path,
    }
    seen: list[Passed] = []

    def apply(passed: Passed) -> None:
        seen.append(passed)
        faults()[fault](passed)

    store.proxy.fault = times(2, kinds[request_kind], apply)
    lw.save(state(2), URL, shard_size="110KB")
    assert len(seen) == 2
    store.proxy.fault = lambda passed: None
    assert generation() == 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut_to", "shortened_to"])
def test_responses_that_are_cut_off_are_requested_again(store: Store, how: str) -> None:
    content = state(1)
    lw.save(content, URL)
    is_long = lambda passed: passed.is_read and passed.headers["Range"] != "bytes=0-4095"  # noqa: E731
    store.proxy.fault = times(3, is_long, lambda passed: setattr(passed, how, 100))
    assert np.array_equal(lw.open(URL)["w"].numpy(), content["w"].numpy())
    store.proxy.fault = times(10_000, is_long, lambda passed: setattr(passed, how, 100))
    expected = "the connection was cut off; try again" if how == "cut_to" else r"100 of the [\d,]+ bytes from byte"
    for read in (lambda: lw.stats(URL), lambda: lw.verify(URL), lambda: lw.load(state(2), URL)):
        with pytest.raises(lw.FileError, match=rf"cannot read '{URL}': {expected}.*5 attempts failed"):
            read()


@pytest.mark.slow
def test_throttled_reads_are_repeated_and_given_up_in_the_end(store: Store) -> None:
    lw.save(state(1), URL)
    store.proxy.fault = times(4, lambda passed: passed.method in ("GET", "HEAD"), Passed.throttle)
    assert lw.verify(URL).ok
    store.proxy.fault = Passed.throttle
    with pytest.raises(lw.FileError, match=rf"cannot read '{URL}': .*SlowDown.*try again later .5 attempts failed."):
        lw.open(URL)


def test_patience_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PATIENCE", 0)
    store.proxy.fault = Passed.throttle
    with pytest.raises(lw.FileError, match="SlowDown") as caught:
        lw.save(state(1), URL)
    assert "attempts" not in str(caught.value)


def test_a_file_that_is_replaced_while_it_is_read_is_an_error_that_names_it(store: Store) -> None:
    lw.save(state(1), URL)
    model = {"w": torch.zeros(12, UNIT // 4), "b": torch.zeros(5), "generation": 0.0}
    with lw.open(URL) as tree:
        lw.save(state(2), URL)
        for read in (lambda: tree["w"].numpy(), lambda: lw.load(model, tree), lambda: lw.stats(tree)):
            with pytest.raises(lw.FileError, match=rf"'{URL}' at byte .*: the file in the store was replaced since"):
                read()
    assert not model["w"].any()
    assert model["generation"] == 0
    lw.save(state(1), "memory://replaced/m.safetensors")
    with lw.open("memory://replaced/m.safetensors") as tree:
        lw.save(state(2), "memory://replaced/m.safetensors")
        with pytest.raises(lw.FileError, match="was changed while it was being read"):
            lw.stats(tree)


def test_a_shard_that_is_missing_or_from_another_save_is_named(store: Store) -> None:
    lw.save(state(1), URL, shard_size="110KB")
    first = {name: store.read(name) for name in store.names()}
    shard = next(name for name in first if "00001-of" in name)
    lw.save(state(2), URL.replace("run", "other"), shard_size="110KB")
    foreign = next(name for name in store.names() if "other/" in name and "00001-of" in name)
    store.direct.pipe_file(f"bucket/{shard}", store.read(foreign))
    with pytest.raises(lw.ChecksumError, match=rf"{shard}' is not the shard that the index was written with"):
        lw.open(URL)
    store.direct.rm_file(f"bucket/{shard}")
    with pytest.raises(lw.FileError, match=rf"1 of 2 shards is missing: '{os.path.basename(shard)}'"):
        lw.open(URL)


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "AccessDenied", "access is denied; check your permissions and credentials"),
        (403, "InvalidAccessKeyId", "the store does not know this access key; check the credentials in"),
        (403, "SignatureDoesNotMatch", "the secret key does not belong to the access key; check"),
        (400, "ExpiredToken", "the credentials have expired; check the credentials"),
        (403, "RequestTimeTooSkewed", "the clock of this machine differs from that of the store; set the clock"),
        (404, "NoSuchBucket", "there is no such bucket; check the address and the endpoint"),
        (400, "EntityTooLarge", "the file is larger than the store allows; use shard_size="),
        (409, "Weird", "the server refuses the request (409); check the address (Weird)"),
    ],
)
def test_each_refusal_of_a_store_has_its_own_message(store: Store, status: int, code: str, said: str) -> None:
    store.proxy.fault = lambda passed: passed.refuse(status, code) if is_write(passed) else None
    for units in (0, 12):  # one request, and several
        with pytest.raises(lw.FileError) as caught:
            lw.save(state(units=units), URL)
        assert str(caught.value).startswith(f"cannot write '{URL}': {said}")
    assert sum(map(is_write, store.proxy.seen)) == 2  # such a refusal does not pass


def test_a_store_without_credentials_or_bucket_or_server(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(lw.FileError, match=r"cannot write 's3://none/m.safetensors': there is no such bucket"):
        lw.save(state(), "s3://none/m.safetensors")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    options = s3_options(store.proxy.server_address[1])
    without = {key: value for key, value in options.items() if key not in ("key", "secret")}
    monkeypatch.setattr(fsspec.config, "conf", {"s3": without})
    with pytest.raises(lw.FileError, match=rf"cannot write '{URL}': there are no credentials for this store; check"):
        lw.save(state(), URL)
    monkeypatch.setattr(fsspec.config, "conf", {"s3": s3_options(9)})
    with pytest.raises(lw.FileError, match=rf"cannot write '{URL}': the server cannot be reached; check the endpoint"):
        lw.save(state(), URL)


@pytest.mark.parametrize("shard_size", [None, "110KB"], ids=["one file", "shards"])
def test_a_name_that_is_empty_is_refused(store: Store, shard_size: str | None) -> None:
    with pytest.raises(lw.FileError, match=r"'s3://bucket/run//m.safetensors': there is an empty name between two"):
        lw.save(state(1), "s3://bucket/run//m.safetensors", shard_size=shard_size)
    assert store.names() == []


def test_web_servers_and_unknown_file_systems_are_refused() -> None:
    with pytest.raises(lw.FileError, match=r"cannot write 'https://\*\*\*@h/m.safetensors\?t=\*\*\*': web servers are"):
        lw.save({"a": np.ones(1)}, "https://me:pw@h/m.safetensors?t=s")
    with pytest.raises(lw.FileError, match=r"'nonsense://x/y.safetensors'"):
        lw.save({"a": np.ones(1)}, "nonsense://x/y.safetensors")


@pytest.mark.slow
def test_a_save_in_the_background_survives_the_end_of_the_program(store: Store) -> None:
    options = s3_options(store.proxy.server_address[1])
    options["client_kwargs"]["endpoint_url"] = f"http://localhost:{store.proxy.server_address[1]}"  # to be resolved
    script = f"""
import fsspec, numpy as np
from leafwise.files.sources import multipart
multipart.PART, multipart.SENDING = {PART}, 1
fsspec.config.conf["s3"] = {options!r}
import leafwise as lw
lw.save({{"w": np.ones((200, {UNIT // 4}), "f4"), "b": np.ones(5), "generation": 1.0}}, {URL!r}, background=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, b"")
    assert generation() == 1


# -- other file systems --------------------------------------------------------------------------------------


class FailingFiles(MemoryFileSystem):
    """Files in memory, behind calls that fail."""

    protocol = "failing"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    cachable = False
    problem: Callable[[str, str], BaseException | None] = staticmethod(lambda call, path: None)
    keeps: Callable[[bytes], bytes] = staticmethod(lambda data: data)
    calls: list[str] = []  # noqa: RUF012

    def _step(self, call: str, path: str) -> None:
        FailingFiles.calls.append(call)
        problem = FailingFiles.problem(call, path)
        if problem is not None:
            raise problem

    def put_file(self, lpath: str, rpath: str, callback: Any = None, **_: Any) -> None:
        data = Path(lpath).read_bytes()
        half = self._strip_protocol(rpath)
        self.pipe_file(half, data[: len(data) // 2])  # what a connection that breaks leaves behind
        self._step("put", rpath)
        self.pipe_file(half, FailingFiles.keeps(data))
        callback.relative_update(len(data))

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        self._step("mv", path2)
        super().mv(path1, path2)

    def rm_file(self, path: str) -> None:
        self._step("rm", path)
        super().rm_file(path)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FailingFiles]]:
    fsspec.register_implementation("failing", FailingFiles, clobber=True)
    FailingFiles.store.clear()
    monkeypatch.setattr(FailingFiles, "problem", staticmethod(lambda call, path: None))
    monkeypatch.setattr(FailingFiles, "keeps", staticmethod(lambda data: data))
    FailingFiles.calls.clear()
    return FailingFiles


OTHER = "failing://run/m.safetensors"


@pytest.mark.parametrize("shard_size", [None, 300], ids=["one file", "shards"])
@pytest.mark.parametrize("call", ["put", "mv", "rm"])
def test_another_file_system_that_fails_keeps_the_old_checkpoint(
    failing: type[FailingFiles], call: str, shard_size: int | None
) -> None:
    def content(generation: float) -> dict[str, Any]:
        return {"w": np.full(100, generation), "b": np.full(5, generation), "generation": generation}

    for number in range(4):
        failing.store.clear()
        failing.problem = staticmethod(lambda call, path: None)
        lw.save(content(1), OTHER, shard_size=shard_size)
        names = sorted(failing.store)
        counted = iter(range(1_000))

        def fail(made: str, path: str, number: int = number, counted: Any = counted) -> BaseException | None:
            return PermissionError(path) if made == call and next(counted) == number else None

        failing.problem = staticmethod(fail)
        failed = True
        with suppress(lw.FileError):
            lw.save(content(2), OTHER, shard_size=shard_size)
            failed = False
        assert generation(OTHER) == (1 if failed else 2)
        assert not failed or sorted(failing.store) == names


def test_another_file_system_is_retried_and_its_sizes_are_compared(failing: type[FailingFiles]) -> None:
    content = {"w": np.ones(100)}
    problems = iter([ConnectionResetError("x"), TimeoutError("y")])
    failing.problem = staticmethod(lambda call, path: next(problems, None))
    lw.save(content, OTHER)
    assert lw.verify(OTHER).ok
    assert failing.calls.count("put") == 3
    failing.keeps = staticmethod(lambda data: data[:-3])
    with pytest.raises(lw.FileError, match=rf"cannot write '{OTHER}': the connection was cut off.*5 attempts failed"):
        lw.save({"w": np.zeros(100)}, OTHER)
    assert lw.verify(OTHER).ok
    assert list(failing.store) == ["failing://run/m.safetensors"]
    assert lw.open(OTHER)["w"].numpy().all()


@pytest.mark.parametrize(
    "url", ["memory://r*/m.safetensors", "memory://r[1]/m.safetensors", "memory://r?/m.safetensors"]
)
@pytest.mark.parametrize("shard_size", [None, 300], ids=["one file", "shards"])
def test_names_with_the_signs_of_patterns_are_names(url: str, shard_size: int | None) -> None:
    """fsspec's own way to move a file takes its name for a pattern."""
    for generation_ in (1.0, 2.0):
        content = {"w": np.full(100, generation_), "b": np.full(5, generation_), "generation": generation_}
        lw.save(content, url, shard_size=shard_size)
        assert generation(url) == generation_
    folder = url.removeprefix("memory:/").rpartition("/")[0]
    assert len(fsspec.filesystem("memory").ls(folder)) == (1 if shard_size is None else 3)


def test_a_file_that_is_moved_to_another_place_is_an_error(
    failing: type[FailingFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing, "mv", lambda self, path1, path2: self.cp_file(path1, f"{path2}/{path1}"))
    with pytest.raises(lw.FileError, match=rf"'{OTHER}' was written, but is not what was sent: it should be a file of"):
        lw.save({"w": np.zeros(100)}, OTHER)


def test_a_read_only_file_system_is_an_error(failing: type[FailingFiles]) -> None:
    failing.problem = staticmethod(lambda call, path: NotImplementedError())
    with pytest.raises(lw.FileError, match="this kind of file system cannot do that"):
        lw.save({"w": np.zeros(100)}, OTHER)


def test_the_folder_for_temporary_files_stays_private_and_empty(
    failing: type[FailingFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    modes: list[int] = []

    def look(call: str, path: str) -> BaseException | None:
        modes.extend(file.stat().st_mode & 0o777 for file in tmp_path.iterdir())
        return OSError(5, "no") if call == "put" and len(modes) > 1 else None

    failing.problem = staticmethod(look)
    lw.save({"w": np.zeros(100)}, OTHER)
    assert modes[:1] == [0o600]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(lw.FileError, match="cannot write"):
        lw.save({"w": np.zeros(100)}, OTHER)
    assert list(tmp_path.iterdir()) == []
    left = StagedUpload(OTHER, fsspec.filesystem("failing"), "/run/m.safetensors")
    assert len(list(tmp_path.iterdir())) == 1
    failing.problem = staticmethod(lambda call, path: None)
    lw.save({"w": np.zeros(100)}, OTHER)
    assert len(list(tmp_path.iterdir())) == 1  # it is locked: somebody is still writing it
    left.discard()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(lw.FileError, match="set TMPDIR to a folder with more room, or use shard_size="):
        lw.save({"w": np.zeros(100)}, OTHER)


def test_the_secrets_of_a_url_to_write_to_are_shown_nowhere(
    failing: type[FailingFiles], capsys: pytest.CaptureFixture[str]
) -> None:
    url = "failing://me:s3cr3t@host/m.safetensors"
    failing.problem = staticmethod(lambda call, path: OSError(f"no {path} for me:s3cr3t"))
    with pytest.raises(lw.FileError) as caught:
        lw.save({"w": np.zeros(100)}, url)
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))
    failing.problem = staticmethod(lambda call, path: None)
    saving = lw.save({"w": np.zeros(100)}, url, background=True)
    assert "s3cr3t" not in repr(saving)
    saving.wait()
    assert main(["convert", url, url.replace("/m.", "/n.")]) == 0
    assert main(["edit", url, "-o", url.replace("/m.", "/o."), "--rename", "w=v"]) in (0, 1)
    output = capsys.readouterr()
    assert "s3cr3t" not in output.out + output.err
