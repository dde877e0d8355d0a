"""`Block.summary`: a table of the layers, their output shapes and their numbers of parameters."""

from typing import Any

from leafwise_gluon.arrays.values import ArrayValues

_ROW = "{:>20}  {:>42} {:>15}"


class LayerRows:
    """The rows of the table, in the order in which the layers were called."""

    def __init__(self, inputs: Any) -> None:
        self._rows: list[tuple[str, str, int]] = [("Input", shape_text(inputs), 0)]
        self._trainable = self._shared = 0
        self._seen: set[int] = set()

    def add(self, block: Any, inputs: Any, output: Any) -> None:
        """A forward hook: adds the row of a layer that was called."""
        total = 0
        for parameter in block.params.values():
            size = parameter.data().size
            total += size
            self._trainable += 0 if parameter.grad_req == "null" else size
            self._shared += size if id(parameter) in self._seen else 0
            self._seen.add(id(parameter))
        self._rows.append((f"{type(block).__name__}-{len(self._rows)}", shape_text(output), total))

    def text(self) -> str:
        total = sum(count for _, _, count in self._rows)
        lines = [
            "-" * 80,
            _ROW.format("Layer (type)", "Output Shape", "Param #"),
            "=" * 80,
            *(_ROW.format(*row) for row in self._rows),
            "=" * 80,
            "Parameters in forward computation graph, duplicate included",
            f"   Total params: {total}",
            f"   Trainable params: {self._trainable}",
            f"   Non-trainable params: {total - self._trainable}",
            f"Shared params in forward computation graph: {self._shared}",
            f"Unique parameters in model: {total - self._shared}",
            "-" * 80,
        ]
        return "\n".join(lines)


def shape_text(value: Any) -> str:
    """The shapes of arrays in nested lists; the outermost brackets are left out."""
    shapes = _shapes(value)
    text = str(shapes)[1:-1] if isinstance(shapes, list) else str(shapes)
    return text.replace("L", "")  # MXNet does so, because of Python 2


def _shapes(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_shapes(entry) for entry in value]
    return value.shape if isinstance(value, ArrayValues) else value
