"""Inception v3 (Szegedy et al., arXiv 1512.00567)."""

from typing import Any

from leafwise_gluon import nn
from leafwise_gluon.model_zoo.vision.building import ROOT, ZooNet, loaded, scope, sequence, side_by_side

__all__ = ["Inception3", "inception_v3"]

# A convolution: its channels, kernel size, strides and padding.
_Conv = tuple[Any, ...]
_ROW, _COLUMN = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))  # 1x7 and 7x1, which keep the size
_SPLIT = ((384, (1, 3), 1, (0, 1)), (384, (3, 1), 1, (1, 0)))


def _conv(channels: int, kernel_size: Any, strides: Any = 1, padding: Any = 0) -> Any:
    return sequence(
        nn.Conv2D(channels, kernel_size, strides, padding, use_bias=False),
        nn.BatchNorm(epsilon=0.001),
        nn.Activation("relu"),
    )


def _branch(*convs: _Conv, pool: Any = None) -> Any:
    return sequence(*([pool] if pool is not None else []), *(_conv(*facts) for facts in convs))


def _average() -> Any:
    return nn.AvgPool2D(pool_size=3, strides=1, padding=1)


def _maximum() -> Any:
    return nn.MaxPool2D(pool_size=3, strides=2)


def _in_scope(prefix: str, *branches: Any) -> Any:
    """Branches side by side; each is a function, so that it is made inside the scope and gets its name from it."""
    block = side_by_side(prefix=prefix)
    with scope(block):
        for branch in branches:
            block.add(branch())
    return block


def _block_a(pool_features: int, prefix: str) -> Any:
    return _in_scope(
        prefix,
        lambda: _branch((64, 1)),
        lambda: _branch((48, 1), (64, 5, 1, 2)),
        lambda: _branch((64, 1), (96, 3, 1, 1), (96, 3, 1, 1)),
        lambda: _branch((pool_features, 1), pool=_average()),
    )


def _block_b(prefix: str) -> Any:
    return _in_scope(
        prefix,
        lambda: _branch((384, 3, 2)),
        lambda: _branch((64, 1), (96, 3, 1, 1), (96, 3, 2)),
        lambda: _branch(pool=_maximum()),
    )


def _block_c(channels: int, prefix: str) -> Any:
    row, column = (channels, *_ROW), (channels, *_COLUMN)
    return _in_scope(
        prefix,
        lambda: _branch((192, 1)),
        lambda: _branch((channels, 1), row, (192, *_COLUMN)),
        lambda: _branch((channels, 1), column, row, column, (192, *_ROW)),
        lambda: _branch((192, 1), pool=_average()),
    )


def _block_d(prefix: str) -> Any:
    return _in_scope(
        prefix,
        lambda: _branch((192, 1), (320, 3, 2)),
        lambda: _branch((192, 1), (192, *_ROW), (192, *_COLUMN), (192, 3, 2)),
        lambda: _branch(pool=_maximum()),
    )


def _block_e(prefix: str) -> Any:
    return _in_scope(
        prefix,
        lambda: _branch((320, 1)),
        lambda: sequence(_branch((384, 1)), side_by_side(*(_branch(facts) for facts in _SPLIT))),
        lambda: sequence(_branch((448, 1), (384, 3, 1, 1)), side_by_side(*(_branch(facts) for facts in _SPLIT))),
        lambda: _branch((192, 1), pool=_average()),
    )


class Inception3(ZooNet):
    def __init__(self, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with scope(self):
            self.features = sequence(
                _conv(32, 3, 2),
                _conv(32, 3),
                _conv(64, 3, padding=1),
                _maximum(),
                _conv(80, 1),
                _conv(192, 3),
                _maximum(),
                *(_block_a(features, f"A{number}_") for number, features in enumerate((32, 64, 64), 1)),
                _block_b("B_"),
                *(_block_c(channels, f"C{number}_") for number, channels in enumerate((128, 160, 160, 192), 1)),
                _block_d("D_"),
                _block_e("E1_"),
                _block_e("E2_"),
                nn.AvgPool2D(pool_size=8),
                nn.Dropout(0.5),
            )
            self.output = nn.Dense(classes)


def inception_v3(
    pretrained: bool = False, ctx: Any = None, root: str = ROOT, device: Any = None, **kwargs: Any
) -> Inception3:
    return loaded(Inception3(**kwargs), "inceptionv3", pretrained, ctx or device, root)  # type: ignore[no-any-return]
