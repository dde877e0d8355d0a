"""`mxnet.callback`: what a training loop calls after each batch, except checkpoints of `Module.fit`."""

import logging
import sys
import time
from typing import Any


class Speedometer:
    """Logs the samples per second and the metrics every `frequent` batches."""

    def __init__(self, batch_size: int, frequent: int = 50, auto_reset: bool = True) -> None:
        self.batch_size, self.frequent, self.auto_reset = batch_size, frequent, auto_reset
        self._since: float | None = None
        self._last = 0

    def __call__(self, param: Any) -> None:
        count = param.nbatch
        if self._last > count:
            self._since = None
        self._last = count
        if self._since is None:
            self._since = time.time()
            return
        if count % self.frequent:
            return
        seconds = time.time() - self._since
        speed = self.frequent * self.batch_size / seconds if seconds else float("inf")
        values = param.eval_metric.get_name_value() if param.eval_metric is not None else []
        if param.eval_metric is not None and self.auto_reset:
            param.eval_metric.reset()
        shown = "".join(f"\t{name}={value:f}" for name, value in values)
        logging.info("Epoch[%d] Batch [%d]\tSpeed: %.2f samples/sec%s", param.epoch, count, speed, shown)
        self._since = time.time()


class ProgressBar:
    """Prints a bar of `length` characters: how many of `total` batches are done."""

    def __init__(self, total: int, length: int = 80) -> None:
        self.total, self.bar_len = total, length

    def __call__(self, param: Any) -> None:
        share = param.nbatch / self.total
        filled = round(self.bar_len * share)
        sys.stdout.write(f"[{'=' * filled}{'-' * (self.bar_len - filled)}] {-(-100 * param.nbatch // self.total)}%\r")


def log_train_metric(period: int, auto_reset: bool = False) -> Any:
    """A callback that logs the metrics every `period` batches."""

    def log(param: Any) -> None:
        if param.nbatch % period == 0 and param.eval_metric is not None:
            for name, value in param.eval_metric.get_name_value():
                logging.info("Iter[%d] Batch[%d] Train-%s=%f", param.epoch, param.nbatch, name, value)
            if auto_reset:
                param.eval_metric.reset()

    return log
