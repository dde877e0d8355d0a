"""Messages between ranks through the store of `torch.distributed`, with which processes find each other.

Unlike a process group, the store can be used by any thread, and does not wait forever. While a rank takes part, a
thread of it counts up a number in the store. A rank whose number stands still has died.
"""

import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch.distributed import distributed_c10d

from leafwise.core.capabilities.sharding import Messages, Team
from leafwise.errors import RankError

PATIENCE = 60.0  # seconds after which a rank that gives no sign of life counts as dead
_BEAT = 0.5  # seconds between signs of life
_PART = 4 << 20  # bytes of a value; the store does not take much longer ones
_SHORTEST_WAIT, _LONGEST_WAIT = 0.002, 0.2  # seconds between two looks at the store
_MANY_RANKS = 1_000  # if there are more, each of them calls the store less often, because one process answers all
_DATA, _FAILURE = b"d", b"f"


class StoreMessages(Messages):
    def __init__(self, team: Team, name: str) -> None:
        store: Any = distributed_c10d._get_default_store()
        if store is None:
            raise RankError("cannot send messages between ranks: torch.distributed was initialized without a store")
        self._team, self._name, self._store = team, name, store
        self._step = 0
        self._seen: dict[int, tuple[bytes, float]] = {}  # by position, the last sign of life and when it was new
        self._slower = max(1.0, team.size / _MANY_RANKS)
        self._stopped = threading.Event()
        self._failed = False
        self._beats = threading.Thread(target=self._beat, name="leafwise signs of life", daemon=True)
        self._put(f"beat/{team.rank}", b"0")
        self._beats.start()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._stopped.set()
        self._beats.join()
        with suppress(RuntimeError):  # the others will notice that it gives no sign of life
            if error is not None and not self._failed:  # the others must not wait for this rank
                self._put(f"left/{self._team.rank}", str(error).encode())
                self._store.add(self._key("left"), 1)
            elif error is None:
                self._store.delete_key(self._key(f"beat/{self._team.rank}"))

    def meet(self, data: bytes, answer: Callable[[list[bytes]], list[bytes]]) -> bytes:
        self._step += 1
        try:
            if self._team.rank == 0:
                return self._lead(data, answer)
            self._put(f"{self._step}/to/{self._team.rank}", data)
            self._store.add(self._key(f"{self._step}/count"), 1)
            return self._reply()
        except RankError:
            self._failed = True
            raise
        except RuntimeError as error:  # of the store
            self._failed = True
            reason = str(error).partition("\n")[0].rstrip(".")
            raise RankError(
                f"cannot reach the store of torch.distributed: {reason}; see the output of the other ranks"
            ) from error

    # -- the first rank ------------------------------------------------------------------------------------

    def _lead(self, data: bytes, answer: Callable[[list[bytes]], list[bytes]]) -> bytes:
        others = range(1, self._team.size)
        try:
            self._wait(
                lambda: self._store.add(self._key(f"{self._step}/count"), 0) >= len(others),
                lambda: [rank for rank in others if not self._has(f"{self._step}/to/{rank}")],
            )
            self._store.delete_key(self._key(f"{self._step}/count"))
            replies = answer([data, *(self._take(f"{self._step}/to/{rank}") for rank in others)])
        except Exception as error:
            self._failed = True
            dead = error.rank if isinstance(error, RankError) and error.rank is not None else self._team.ranks[0]
            text = str(error) if isinstance(error, RankError) else f"rank {dead} failed: {error}"
            for rank in others:
                self._put(f"{self._step}/from/{rank}", _FAILURE + f"{dead} {text}".encode())
            raise
        for rank in others:
            self._put(f"{self._step}/from/{rank}", _DATA + replies[rank])
        return replies[0]

    # -- the others ----------------------------------------------------------------------------------------

    def _reply(self) -> bytes:
        key = f"{self._step}/from/{self._team.rank}"
        self._wait(lambda: self._has(key), lambda: [0])
        reply = self._take(key)
        if reply[:1] == _FAILURE:
            number, _, text = reply[1:].decode().partition(" ")
            raise RankError(text, int(number))
        return reply[1:]

    # -- waiting -------------------------------------------------------------------------------------------

    def _wait(self, is_there: Callable[[], bool], missing: Callable[[], list[int]]) -> None:
        """Waits for something. Raises if one of the `missing` ranks, given by position, has died or left."""
        pause = _SHORTEST_WAIT
        looked = time.monotonic()
        while not is_there():
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_WAIT * self._slower)
            now = time.monotonic()
            if self._store.add(self._key("left"), 0) or now - looked > PATIENCE / 10:
                looked = now
                positions = missing()
                if is_there() or not positions:  # without a position, everything is there, although not yet counted
                    return
                for position in positions:
                    self._check_alive(position)

    def _check_alive(self, position: int) -> None:
        rank, now = self._team.ranks[position], time.monotonic()
        if self._has(f"left/{position}"):
            reason = self._get(f"left/{position}").decode(errors="replace")
            raise RankError(f"rank {rank} failed: {reason or 'it was interrupted'}", rank)
        beat = self._get(f"beat/{position}") if self._has(f"beat/{position}") else b""
        last, since = self._seen.get(position, (None, now))
        if beat != last:
            self._seen[position] = beat, now
        elif now - since > PATIENCE:
            silent = f"rank {rank} has given no sign of life for {now - since:.0f} seconds"
            raise RankError(f"{silent}; see the output of that rank", rank)

    def _beat(self) -> None:
        number = 0
        while not self._stopped.wait(min(_BEAT * self._slower, PATIENCE / 10)):
            number += 1
            try:
                self._put(f"beat/{self._team.rank}", str(number).encode())
            except RuntimeError:
                return  # the store is gone, which `meet` reports

    # -- the store -----------------------------------------------------------------------------------------

    def _key(self, name: str) -> str:
        return f"{self._name}/{name}"

    def _has(self, name: str) -> bool:
        return bool(self._store.check([self._key(name)]))

    def _put(self, name: str, data: bytes) -> None:
        packed = zlib.compress(data, 1)
        parts = [packed[start : start + _PART] for start in range(0, len(packed), _PART)]
        for number, part in enumerate(parts[1:], 1):
            self._store.set(self._key(f"{name}/{number}"), part)
        # Last: a reader finds all of them.
        self._store.set(self._key(name), len(parts).to_bytes(4, "big") + parts[0])

    def _get(self, name: str) -> bytes:
        first = bytes(self._store.get(self._key(name)))
        further = [bytes(self._store.get(self._key(f"{name}/{n}"))) for n in range(1, _parts_of(first))]
        return zlib.decompress(b"".join([first[4:], *further]))

    def _take(self, name: str) -> bytes:
        """Gets a value that only this rank reads, and removes it."""
        data = self._get(name)
        parts = _parts_of(bytes(self._store.get(self._key(name))))
        for key in [name, *(f"{name}/{number}" for number in range(1, parts))]:
            self._store.delete_key(self._key(key))
        return data


def _parts_of(first: bytes) -> int:
    return int.from_bytes(first[:4], "big")
