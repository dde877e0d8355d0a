"""Initial values that depend on names: from a file, or by patterns."""

import importlib
import logging
import re
from typing import Any

from leafwise_gluon.class_names import shown_as
from leafwise_gluon.init.draws import write


@shown_as("Load")
class LoadedValues:
    """Takes values from a dict of arrays or from a file; for other names it calls `default_init`."""

    def __init__(self, param: Any, default_init: Any = None, verbose: bool = False) -> None:
        if isinstance(param, str):
            param = importlib.import_module("leafwise_gluon.nd").load(param)
        assert isinstance(param, dict)
        self.param = {name.removeprefix("arg:").removeprefix("aux:"): array for name, array in param.items()}
        self.default_init, self.verbose = default_init, verbose

    def __call__(self, name: str, arr: Any) -> None:
        if name in self.param:
            loaded = self.param[name]
            assert arr.shape == loaded.shape, (
                f"Parameter {name} cannot be initialized from loading. Shape mismatch, target {arr.shape} vs loaded "
                f"{loaded.shape}"
            )
            write(arr, loaded)
        else:
            assert self.default_init is not None, (
                f"Cannot Initialize {name}. Not found in loaded param and no default Initializer is provided."
            )
            self.default_init(name, arr)
        if self.verbose:
            logging.info("Initialized %s by %s", name, "loading" if name in self.param else "default")


class Mixed:
    """Calls the initializer of the first pattern that matches the name, from its start."""

    def __init__(self, patterns: list[str], initializers: list[Any]) -> None:
        assert len(patterns) == len(initializers)
        self.map = [(re.compile(pattern), init) for pattern, init in zip(patterns, initializers, strict=True)]

    def __call__(self, name: str, arr: Any) -> None:
        for pattern, init in self.map:
            if pattern.match(name):
                init(name, arr)
                return
        raise ValueError(
            f"Parameter name {name} did not match any pattern. Consider"
            'add a ".*" pattern at the and with default Initializer.'
        )


Load = LoadedValues
