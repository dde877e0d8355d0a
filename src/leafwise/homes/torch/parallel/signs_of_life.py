"""Which ranks are alive, by the store of `torch.distributed`, with which processes find each other.

A process group does not notice every dead rank: gloo does only in the neighbors of the dead one, and only if its
connections end. So, while leafwise uses a process group or sends messages, a thread of each rank counts up a number in
the store. A rank whose number stands still has died. A rank that could not finish a collective leaves a note for those
that still wait in it.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from torch import distributed
from torch.distributed import distributed_c10d

from leafwise.errors import RankError

T = TypeVar("T")
PATIENCE = 60.0  # seconds after which a rank that gives no sign of life counts as dead
_REST = 10.0  # seconds after the last collective, after which a rank gives no more signs of life
_RESTING = b"-"  # in place of a number
_BUSY = 1.0  # seconds that a collective may take until the store is asked about the other ranks
_ASKED_PER_SECOND = 1_000  # ranks; one process answers all of them
_WATCHED = 8  # ranks that each rank watches
_FIRST_PAUSE, _LONGEST_PAUSE = 0.00005, 0.05  # seconds between two looks at a collective


class Store:
    """The store, asked by a thread of its own: a store whose process was stopped does not answer, and has no limit."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self._questions: SimpleQueue[tuple[str, tuple[Any, ...], SimpleQueue[Any]]] = SimpleQueue()
        self._lock = threading.Lock()
        threading.Thread(target=self._answer, name="leafwise store", daemon=True).start()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the store. Raises `RankError` if it does not answer, or cannot be reached."""
        answers: SimpleQueue[Any] = SimpleQueue()
        self._questions.put((method, arguments, answers))
        try:
            answer = answers.get(timeout=PATIENCE)
        except Exception as error:
            text = f"the store of torch.distributed has not answered for {PATIENCE:.0f} seconds"
            raise RankError(f"{text}; see the output of rank 0, and of the process that started it") from error
        if isinstance(answer, Exception):
            reason = str(answer).partition("\n")[0].rstrip(".")
            raise RankError(
                f"cannot reach the store of torch.distributed: {reason}; see the output of the other ranks"
            ) from answer
        return answer

    def _answer(self) -> None:
        while True:
            method, arguments, answers = self._questions.get()
            try:
                answers.put(getattr(self.store, method)(*arguments))
            except Exception as error:
                answers.put(error)


class SignsOfLife:
    """Those of this rank, and what it knows about the other ranks."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._rank = distributed.get_rank()
        self._lock = threading.Lock()
        self._is_beating = False
        self._holders, self._used = 0, 0.0  # calls that last, and when the last collective began
        self._collectives: dict[tuple[int, ...], int] = {}  # by ranks, how many there were
        self._seen: dict[int, tuple[bytes, float]] = {}  # by rank, the last sign of life, and when it was new

    def begin(self, ranks: tuple[int, ...]) -> int:
        """Notes that a collective of these ranks begins. Returns its number, which is the same on each of them."""
        self._beat()
        self._collectives[ranks] = self._collectives.get(ranks, 0) + 1
        return self._collectives[ranks]

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context in which this rank gives signs of life, whatever it does."""
        with self._lock:
            self._holders += 1
        try:
            self._beat()
            yield
        finally:
            with self._lock:
                self._holders -= 1

    def wait(self, work: Any, ranks: tuple[int, ...], number: int) -> None:
        """Waits for a collective. Raises `RankError` if one of the ranks has died, or has given it up."""
        pause, began, asked = _FIRST_PAUSE, time.monotonic(), 0.0
        between = max(min(_BUSY, PATIENCE / 10), len(ranks) / _ASKED_PER_SECOND)
        while not work.is_completed():
            time.sleep(pause)
            pause = min(1.1 * pause, _LONGEST_PAUSE)
            now = time.monotonic()
            if now - began > _BUSY and now - asked > between:
                asked = now
                self._check_note(ranks, number)
                # Each rank watches the next ones, and leaves a note for all if one of them has died.
                after = ranks.index(self._rank) + 1
                for rank in (*ranks[after:], *ranks[: after - 1])[:_WATCHED]:
                    self.check_alive(rank)
        work.wait()

    def give_up(self, ranks: tuple[int, ...], number: int, error: RankError) -> None:
        """Leaves a note for ranks that wait in a collective which cannot end any more."""
        rank = "" if error.rank is None else str(error.rank)
        with suppress(RankError):
            self.store.ask("set", _note_key(ranks), f"{number} {rank} {error}".encode())

    def _check_note(self, ranks: tuple[int, ...], number: int) -> None:
        key = _note_key(ranks)
        if self.store.ask("check", [key]):
            of, rank, text = bytes(self.store.ask("get", key)).decode(errors="replace").split(" ", 2)
            if int(of) >= number:  # and not that of an earlier call
                raise RankError(text, int(rank) if rank else None)

    def check_alive(self, rank: int, is_taking_part: bool = False) -> None:
        """Raises if a rank has given no sign of life for too long. One that has not begun, or that rests, may just be
        slow, unless it `is_taking_part`."""
        now, key = time.monotonic(), _beat_key(rank)
        beat = bytes(self.store.ask("get", key)) if self.store.ask("check", [key]) else _RESTING
        last, since = self._seen.get(rank, (None, now))
        if beat != last or (beat == _RESTING and not is_taking_part):
            self._seen[rank] = beat, now
        elif now - since > PATIENCE:
            silent = f"rank {rank} has given no sign of life for {now - since:.0f} seconds"
            raise RankError(f"{silent}; see the output of that rank", rank)

    def _beat(self) -> None:
        with self._lock:
            self._used = time.monotonic()
            if self._is_beating:
                return
            self._is_beating = True
        self.store.ask("set", _beat_key(self._rank), str(time.time()).encode())
        threading.Thread(target=self._go_on, name="leafwise signs of life", daemon=True).start()

    def _go_on(self) -> None:
        rests = False
        while not rests:
            time.sleep(PATIENCE / 10)
            with self._lock:
                rests = not self._holders and time.monotonic() - self._used > _REST
                self._is_beating = not rests
            with suppress(RankError):  # the store is slow, or gone, which other calls report
                self.store.ask("set", _beat_key(self._rank), _RESTING if rests else str(time.time()).encode())


def _beat_key(rank: int) -> str:
    return f"leafwise/alive/{rank}"


def _note_key(ranks: Sequence[int]) -> str:
    return f"leafwise/given up/{','.join(map(str, ranks))}"


_current: SignsOfLife | None = None


def signs_of_life() -> SignsOfLife:
    """Those for the current store, which is another one after the process group was made anew."""
    global _current
    store = distributed_c10d._get_default_store()
    if store is None:
        raise RankError("cannot reach other ranks: torch.distributed was initialized without a store")
    if _current is None or _current.store.store is not store:
        _current = SignsOfLife(Store(store))
    return _current
