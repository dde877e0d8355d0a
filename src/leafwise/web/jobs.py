"""Long computations in the background: one after another, with progress, and stopped when the viewer is closed."""

from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from leafwise.core.path import escape, without_secrets
from leafwise.core.work.progress import reported_to
from leafwise.errors import Error


class StoppedError(Exception):
    """Raised in a job when the viewer is closed."""


class Job:
    """A computation, and how far it is. It is `off` until it is started: `message` says why."""

    def __init__(self, run: Callable[["Job"], None], total: int, message: str | None) -> None:
        self._run = run
        self.state = "off"
        self.done, self.total, self.message = 0, total, message
        self._stop = Event()

    def json(self) -> dict[str, Any]:
        return {"state": self.state, "done": min(self.done, self.total), "total": self.total, "message": self.message}

    def heard(self, count: int, total: int | None) -> None:
        """Counts the bytes of a function that reports its progress. Raises if the job is to stop."""
        if total is not None:
            self.total = max(self.total, total)
        self.done += count
        self.check()

    def check(self) -> None:
        """Raises if the job is to stop."""
        if self._stop.is_set():
            raise StoppedError

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Runs it in this thread. An error becomes the message; it never ends the thread."""
        try:
            self.check()
            with reported_to(self.heard):
                self._run(self)
        except StoppedError:
            self.state, self.message = "off", "stopped"
        except (Error, OSError, MemoryError) as error:
            self.state, self.message = "failed", escape(without_secrets(str(error) or type(error).__name__))
        except Exception as error:
            self.state, self.message = "failed", escape(without_secrets(f"{type(error).__name__}: {error}"))
        else:
            self.state, self.message, self.done = "done", None, self.total


class Worker:
    """The thread in which jobs run, one after another."""

    def __init__(self, news: Callable[[], None]) -> None:
        self._news = news  # called when a job ends
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._known: list[Job] = []
        # With the context of this thread, in which limits for files may be set.
        self._thread = Thread(target=copy_context().run, args=(self._work,), name="leafwise-view", daemon=True)
        self._thread.start()

    def start(self, job: Job) -> None:
        """Starts a job that is off, or that has failed."""
        if job.state in ("off", "failed"):
            job.state, job.message, job.done = "running", None, 0
            self._known.append(job)
            self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            self._news()

    def close(self) -> None:
        """Stops the job that runs, and waits for a moment until it has stopped."""
        for job in self._known:
            job.stop()
        self._jobs.put(None)
        self._thread.join(timeout=5)
