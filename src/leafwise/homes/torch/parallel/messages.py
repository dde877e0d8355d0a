"""Messages between ranks through the store of `torch.distributed`.

Unlike a process group, the store can be used by any thread, and does not wait forever.
"""

import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack, suppress

from leafwise.core.capabilities.sharding import Messages, Team
from leafwise.errors import RankError
from leafwise.homes.torch.parallel import signs_of_life

_PART = 4 << 20  # bytes of a value; the store does not take much longer ones
_SHORTEST_WAIT, _LONGEST_WAIT = 0.002, 0.2  # seconds between two looks at the store
_MANY_RANKS = 1_000  # if there are more, each of them calls the store less often, because one process answers all
_DATA, _FAILURE = b"d", b"f"


class StoreMessages(Messages):
    def __init__(self, team: Team, name: str) -> None:
        self._team, self._name = team, name
        self._signs = signs_of_life.signs_of_life()
        self._ask = self._signs.store.ask
        self._step = 0
        self._slower = max(1.0, team.size / _MANY_RANKS)
        self._failed = False
        self._stack = ExitStack()
        self._stack.enter_context(self._signs.held())

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._stack.close()
        with suppress(RankError):  # the others will notice that it gives no sign of life
            if error is not None and not self._failed:  # the others must not wait for this rank
                self._put(f"left/{self._team.rank}", self._failure(error))
                self._ask("add", self._key("left"), 1)

    def meet(self, data: bytes, answer: Callable[[list[bytes]], list[bytes]]) -> bytes:
        self._step += 1
        try:
            if self._team.rank == 0:
                return self._lead(data, answer)
            self._put(f"{self._step}/to/{self._team.rank}", data)
            self._ask("add", self._key(f"{self._step}/count"), 1)
            return self._reply()
        except RankError:
            self._failed = True
            raise

    # -- the first rank ------------------------------------------------------------------------------------

    def _lead(self, data: bytes, answer: Callable[[list[bytes]], list[bytes]]) -> bytes:
        others = range(1, self._team.size)
        try:
            self._wait(
                lambda: self._ask("add", self._key(f"{self._step}/count"), 0) >= len(others),
                lambda: [rank for rank in others if not self._has(f"{self._step}/to/{rank}")],
            )
            self._ask("delete_key", self._key(f"{self._step}/count"))
            replies = answer([data, *(self._take(f"{self._step}/to/{rank}") for rank in others)])
        except Exception as error:
            self._failed = True
            for rank in others:
                self._put(f"{self._step}/from/{rank}", _FAILURE + self._failure(error))
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
            raise _failure_of(reply[1:])
        return reply[1:]

    def _failure(self, error: object) -> bytes:
        """What the other ranks get to know about an error: the rank that failed, and the text."""
        own = self._team.ranks[self._team.rank]
        if isinstance(error, RankError):
            return f"{own if error.rank is None else error.rank} {error}".encode()
        return f"{own} rank {own} failed: {str(error) or 'it was interrupted'}".encode()

    # -- waiting -------------------------------------------------------------------------------------------

    def _wait(self, is_there: Callable[[], bool], missing: Callable[[], list[int]]) -> None:
        """Waits for something. Raises if one of the `missing` ranks, given by position, has died or left."""
        pause = _SHORTEST_WAIT
        looked = time.monotonic()
        while not is_there():
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_WAIT * self._slower)
            now = time.monotonic()
            if self._ask("add", self._key("left"), 0) or now - looked > signs_of_life.PATIENCE / 10:
                looked = now
                positions = missing()
                if is_there() or not positions:  # without a position, everything is there, although not yet counted
                    return
                for position in positions:
                    self._check_alive(position)

    def _check_alive(self, position: int) -> None:
        rank = self._team.ranks[position]
        if self._has(f"left/{position}"):
            raise _failure_of(self._get(f"left/{position}"))
        self._signs.check_alive(rank, is_taking_part=True)

    # -- the store -----------------------------------------------------------------------------------------

    def _key(self, name: str) -> str:
        return f"{self._name}/{name}"

    def _has(self, name: str) -> bool:
        return bool(self._ask("check", [self._key(name)]))

    def _put(self, name: str, data: bytes) -> None:
        packed = zlib.compress(data, 1)
        parts = [packed[start : start + _PART] for start in range(0, len(packed), _PART)]
        for number, part in enumerate(parts[1:], 1):
            self._ask("set", self._key(f"{name}/{number}"), part)
        # Last: a reader finds all of them.
        self._ask("set", self._key(name), len(parts).to_bytes(4, "big") + parts[0])

    def _get(self, name: str) -> bytes:
        first = bytes(self._ask("get", self._key(name)))
        further = [bytes(self._ask("get", self._key(f"{name}/{n}"))) for n in range(1, _parts_of(first))]
        return zlib.decompress(b"".join([first[4:], *further]))

    def _take(self, name: str) -> bytes:
        """Gets a value that only this rank reads, and removes it."""
        data = self._get(name)
        parts = _parts_of(bytes(self._ask("get", self._key(name))))
        for key in [name, *(f"{name}/{number}" for number in range(1, parts))]:
            self._ask("delete_key", self._key(key))
        return data


def _failure_of(data: bytes) -> RankError:
    number, _, text = data.decode(errors="replace").partition(" ")
    return RankError(text, int(number))


def _parts_of(first: bytes) -> int:
    return int.from_bytes(first[:4], "big")
