"""A progress bar for long operations, shown only in a terminal."""

import sys
import time
from typing import TextIO

from leafwise.render.phrases import bytes_text


class Progress:
    """Counts bytes, and shows the progress, the speed and the time left. Shows nothing without a terminal. `total` is
    None if it is not known.

    >>> bar = Progress(100, "reading", stream=None)
    >>> bar(50); bar.done()
    """

    def __init__(self, total: int | None, label: str, stream: TextIO | None = sys.stderr) -> None:
        self._total, self._label = None if total is None else max(total, 1), label
        self._at = 0
        self._started = self._shown = time.monotonic()
        try:
            self._stream = stream if stream is not None and stream.isatty() else None
        except ValueError:
            self._stream = None
        self._width = 0

    def __call__(self, count: int) -> None:
        self._at += count
        now = time.monotonic()
        if self._stream is not None and now - self._shown > 0.1:
            self._shown = now
            self._show(now)

    def _show(self, now: float) -> None:
        assert self._stream is not None
        speed = self._at / max(now - self._started, 1e-9)
        done, rate = bytes_text(self._at), f"{bytes_text(int(speed))}/s"
        if self._total is None:
            text = f"{self._label}  {done}  {rate}"
        else:
            share = min(self._at / self._total, 1.0)
            left = (self._total - self._at) / max(speed, 1e-9)
            filled = int(24 * share)
            text = (
                f"{self._label} [{'#' * filled}{'.' * (24 - filled)}] {share:4.0%}  "
                f"{done} of {bytes_text(self._total)}  {rate}  {left:,.0f} s left"
            )
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = len(text)

    def done(self) -> None:
        """Removes the bar."""
        if self._stream is not None and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
