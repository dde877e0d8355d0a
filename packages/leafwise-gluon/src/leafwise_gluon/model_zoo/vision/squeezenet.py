"""SqueezeNet (Iandola et al., arXiv 1602.07360)."""

from functools import partial
from typing import Any

from leafwise_gluon import nn
from leafwise_gluon.model_zoo.vision.building import ROOT, ZooNet, loaded, scope, sequence, side_by_side

__all__ = ["SqueezeNet", "get_squeezenet", "squeezenet1_0", "squeezenet1_1"]

# The layers after the first convolution: the width of a fire module, or None for a pooling layer.
_FIRES = {
    "1.0": [None, 16, 16, 32, None, 32, 48, 48, 64, None, 64],
    "1.1": [None, 16, 16, None, 32, 32, None, 48, 48, 64, 64],
}


def _conv_relu(channels: int, kernel_size: int, **facts: Any) -> list[Any]:
    return [nn.Conv2D(channels, kernel_size, **facts), nn.Activation("relu")]


def _fire(width: int) -> Any:
    """Squeezes to a few channels, then expands with two kernel sizes side by side."""
    squeeze = sequence(*_conv_relu(width, 1))
    small = sequence(*_conv_relu(4 * width, 1))
    large = sequence(*_conv_relu(4 * width, 3, padding=1))
    return sequence(squeeze, side_by_side(small, large))


class SqueezeNet(ZooNet):
    def __init__(self, version: str, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        assert version in _FIRES, f"Unsupported SqueezeNet version {version}:1.0 or 1.1 expected"
        with scope(self):
            first = _conv_relu(96, 7, strides=2) if version == "1.0" else _conv_relu(64, 3, strides=2)
            self.features = sequence(*first)
            for width in _FIRES[version]:
                pool = None if width else nn.MaxPool2D(pool_size=3, strides=2, ceil_mode=True)
                self.features.add(pool or _fire(width or 0))
            self.features.add(nn.Dropout(0.5))
            self.output = sequence(*_conv_relu(classes, 1), nn.AvgPool2D(13), nn.Flatten())


def get_squeezenet(
    version: str, pretrained: bool = False, ctx: Any = None, root: str = ROOT, device: Any = None, **kwargs: Any
) -> SqueezeNet:
    net = SqueezeNet(version, **kwargs)
    return loaded(net, f"squeezenet{version}", pretrained, ctx or device, root)  # type: ignore[no-any-return]


squeezenet1_0, squeezenet1_1 = (partial(get_squeezenet, version) for version in _FIRES)
