"""MobileNet (Howard et al., arXiv 1704.04861) and MobileNetV2 (Sandler et al., arXiv 1801.04381)."""

from functools import partial
from typing import Any

from leafwise_gluon import nn
from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.values import plain
from leafwise_gluon.block import HybridBlock
from leafwise_gluon.model_zoo.vision.building import ROOT, ZooNet, loaded, scope, sequence, with_prefix
from leafwise_gluon.ops import elementwise

__all__ = [
    "MobileNet",
    "MobileNetV2",
    "get_mobilenet",
    "get_mobilenet_v2",
    "mobilenet0_5",
    "mobilenet0_25",
    "mobilenet0_75",
    "mobilenet1_0",
    "mobilenet_v2_0_5",
    "mobilenet_v2_0_25",
    "mobilenet_v2_0_75",
    "mobilenet_v2_1_0",
]


class RELU6(HybridBlock):
    """Relu, with values above 6 cut off."""

    def forward(self, x: Any) -> Any:
        return wrap_like(x, elementwise.clipped(plain(x), 0, 6))


def _conv(
    channels: int, kernel: int = 1, stride: int = 1, pad: int = 0, groups: int = 1, active: Any = "relu"
) -> list[Any]:
    layers: list[Any] = [
        nn.Conv2D(channels, kernel, stride, pad, groups=groups, use_bias=False),
        nn.BatchNorm(scale=True),
    ]
    if active:
        layers.append(RELU6() if active == "relu6" else nn.Activation("relu"))
    return layers


class LinearBottleneck(HybridBlock):
    """Expands `t` times, convolves each channel by itself, and projects without an activation."""

    def __init__(self, in_channels: int, channels: int, t: int, stride: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.use_shortcut = stride == 1 and in_channels == channels
        with scope(self):
            wide = in_channels * t
            self.out = nn.HybridSequential()
            self.out.add(*_conv(wide, active="relu6"))
            self.out.add(*_conv(wide, 3, stride, 1, groups=wide, active="relu6"))
            self.out.add(*_conv(channels, active=None))

    def forward(self, x: Any) -> Any:
        return self.out(x) + x if self.use_shortcut else self.out(x)


class MobileNet(ZooNet):
    def __init__(self, multiplier: float = 1.0, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        channels = [int(c * multiplier) for c in [32, 64] + [128] * 2 + [256] * 2 + [512] * 6 + [1024] * 2]
        strides = [1, 2] * 3 + [1] * 5 + [2, 1]
        with scope(self):
            self.features = sequence(*_conv(channels[0], kernel=3, pad=1, stride=2))
            for before, after, stride in zip(channels[:-1], channels[1:], strides, strict=True):
                self.features.add(*_conv(before, 3, stride, 1, groups=before), *_conv(after))
            self.features.add(nn.GlobalAvgPool2D(), nn.Flatten())
            self.output = nn.Dense(classes)


class MobileNetV2(ZooNet):
    def __init__(self, multiplier: float = 1.0, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        widths = [32, 16] + [24] * 2 + [32] * 3 + [64] * 4 + [96] * 3 + [160] * 3 + [320]
        channels = [int(c * multiplier) for c in widths]
        expansions = [1] + [6] * 16
        strides = [1, 2] * 2 + [1, 1, 2] + [1] * 6 + [2] + [1] * 3
        with scope(self):
            self.features = nn.HybridSequential(**with_prefix("features_"))
            with scope(self.features):
                self.features.add(*_conv(channels[0], kernel=3, stride=2, pad=1, active="relu6"))
                for before, after, t, stride in zip(channels[:-1], channels[1:], expansions, strides, strict=True):
                    self.features.add(LinearBottleneck(in_channels=before, channels=after, t=t, stride=stride))
                last = int(1280 * multiplier) if multiplier > 1.0 else 1280
                self.features.add(*_conv(last, active="relu6"), nn.GlobalAvgPool2D())
            self.output = nn.HybridSequential(**with_prefix("output_"))
            with scope(self.output):
                self.output.add(nn.Conv2D(classes, 1, use_bias=False, **with_prefix("pred_")), nn.Flatten())


def _multiplier_text(multiplier: float) -> str:
    """As in the names of the files: 1.0, 0.75, 0.5, 0.25."""
    text = f"{multiplier:.2f}"
    return text[:-1] if text in ("1.00", "0.50") else text


def get_mobilenet(
    multiplier: float, pretrained: bool = False, ctx: Any = None, root: str = ROOT, device: Any = None, **kwargs: Any
) -> MobileNet:
    name = f"mobilenet{_multiplier_text(multiplier)}"
    return loaded(MobileNet(multiplier, **kwargs), name, pretrained, ctx or device, root)  # type: ignore[no-any-return]


def get_mobilenet_v2(
    multiplier: float, pretrained: bool = False, ctx: Any = None, root: str = ROOT, device: Any = None, **kwargs: Any
) -> MobileNetV2:
    name = f"mobilenetv2_{_multiplier_text(multiplier)}"
    return loaded(MobileNetV2(multiplier, **kwargs), name, pretrained, ctx or device, root)  # type: ignore[no-any-return]


_MULTIPLIERS = (1.0, 0.75, 0.5, 0.25)
mobilenet1_0, mobilenet0_75, mobilenet0_5, mobilenet0_25 = (partial(get_mobilenet, times) for times in _MULTIPLIERS)
mobilenet_v2_1_0, mobilenet_v2_0_75, mobilenet_v2_0_5, mobilenet_v2_0_25 = (
    partial(get_mobilenet_v2, times) for times in _MULTIPLIERS
)
