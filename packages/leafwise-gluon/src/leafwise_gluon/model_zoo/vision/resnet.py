"""ResNet, version 1 (He et al., arXiv 1512.03385) and version 2 (arXiv 1603.05027)."""

from functools import partial
from typing import Any

import torch

from leafwise_gluon import nn
from leafwise_gluon.block import HybridBlock
from leafwise_gluon.model_zoo.vision.building import ROOT, ZooNet, loaded, scope, sequence, with_prefix

__all__ = [
    "BasicBlockV1",
    "BasicBlockV2",
    "BottleneckV1",
    "BottleneckV2",
    "ResNetV1",
    "ResNetV2",
    "get_resnet",
    *(f"resnet{layers}_v{version}" for version in (1, 2) for layers in (18, 34, 50, 101, 152)),
]


def _conv3x3(channels: int, stride: int, in_channels: int) -> Any:
    return nn.Conv2D(channels, kernel_size=3, strides=stride, padding=1, use_bias=False, in_channels=in_channels)


class _ResidualV1(HybridBlock):
    """The input is added to the output of `body`, then relu is applied."""

    body: Any
    downsample: Any

    def _add_shortcut(self, channels: int, stride: int, downsample: bool, in_channels: int) -> None:
        self.downsample = (
            sequence(
                nn.Conv2D(channels, kernel_size=1, strides=stride, use_bias=False, in_channels=in_channels),
                nn.BatchNorm(),
            )
            if downsample
            else None
        )

    def forward(self, x: Any) -> Any:
        inside = self.body(x)  # first: layers draw their initial values in the order in which they run
        return torch.relu((x if self.downsample is None else self.downsample(x)) + inside)


class BasicBlockV1(_ResidualV1):
    def __init__(
        self, channels: int, stride: int, downsample: bool = False, in_channels: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.body = sequence(
            _conv3x3(channels, stride, in_channels),
            nn.BatchNorm(),
            nn.Activation("relu"),
            _conv3x3(channels, 1, channels),
            nn.BatchNorm(),
        )
        self._add_shortcut(channels, stride, downsample, in_channels)


class BottleneckV1(_ResidualV1):
    def __init__(
        self, channels: int, stride: int, downsample: bool = False, in_channels: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        inner = channels // 4
        self.body = sequence(
            nn.Conv2D(inner, kernel_size=1, strides=stride),
            nn.BatchNorm(),
            nn.Activation("relu"),
            _conv3x3(inner, 1, inner),
            nn.BatchNorm(),
            nn.Activation("relu"),
            nn.Conv2D(channels, kernel_size=1, strides=1),
            nn.BatchNorm(),
        )
        self._add_shortcut(channels, stride, downsample, in_channels)


class BasicBlockV2(HybridBlock):
    """Normalization and relu come before each convolution; the input is added at the end."""

    def __init__(
        self, channels: int, stride: int, downsample: bool = False, in_channels: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.bn1 = nn.BatchNorm()
        self.conv1 = _conv3x3(channels, stride, in_channels)
        self.bn2 = nn.BatchNorm()
        self.conv2 = _conv3x3(channels, 1, channels)
        self.downsample = _shortcut_v2(channels, stride, in_channels) if downsample else None

    def forward(self, x: Any) -> Any:
        first = torch.relu(self.bn1(x))
        shortcut = x if self.downsample is None else self.downsample(first)
        return self.conv2(torch.relu(self.bn2(self.conv1(first)))) + shortcut


class BottleneckV2(HybridBlock):
    def __init__(
        self, channels: int, stride: int, downsample: bool = False, in_channels: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        inner = channels // 4
        self.bn1 = nn.BatchNorm()
        self.conv1 = nn.Conv2D(inner, kernel_size=1, strides=1, use_bias=False)
        self.bn2 = nn.BatchNorm()
        self.conv2 = _conv3x3(inner, stride, inner)
        self.bn3 = nn.BatchNorm()
        self.conv3 = nn.Conv2D(channels, kernel_size=1, strides=1, use_bias=False)
        self.downsample = _shortcut_v2(channels, stride, in_channels) if downsample else None

    def forward(self, x: Any) -> Any:
        first = torch.relu(self.bn1(x))
        shortcut = x if self.downsample is None else self.downsample(first)
        inside = torch.relu(self.bn2(self.conv1(first)))
        return self.conv3(torch.relu(self.bn3(self.conv2(inside)))) + shortcut


def _shortcut_v2(channels: int, stride: int, in_channels: int) -> Any:
    return nn.Conv2D(channels, 1, stride, use_bias=False, in_channels=in_channels)


def _stem(channels: int, thumbnail: bool) -> list[Any]:
    """The first layers; for small pictures, a single convolution."""
    if thumbnail:
        return [_conv3x3(channels, 1, 0)]
    return [
        nn.Conv2D(channels, 7, 2, 3, use_bias=False),
        nn.BatchNorm(),
        nn.Activation("relu"),
        nn.MaxPool2D(3, 2, 1),
    ]


def _stages(block: Any, layers: list[int], channels: list[int]) -> list[Any]:
    stages = []
    for number, (count, before, after) in enumerate(zip(layers, channels[:-1], channels[1:], strict=True), 1):
        stage = nn.HybridSequential(**with_prefix(f"stage{number}_"))
        with scope(stage):
            stride = 1 if number == 1 else 2
            stage.add(block(after, stride, after != before, in_channels=before, **with_prefix("")))
            for _ in range(count - 1):
                stage.add(block(after, 1, False, in_channels=after, **with_prefix("")))
        stages.append(stage)
    return stages


class ResNetV1(ZooNet):
    def __init__(
        self,
        block: Any,
        layers: list[int],
        channels: list[int],
        classes: int = 1000,
        thumbnail: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        assert len(layers) == len(channels) - 1
        with scope(self):
            self.features = sequence(*_stem(channels[0], thumbnail), *_stages(block, layers, channels))
            self.features.add(nn.GlobalAvgPool2D())
            self.output = nn.Dense(classes, in_units=channels[-1])


class ResNetV2(ZooNet):
    def __init__(
        self,
        block: Any,
        layers: list[int],
        channels: list[int],
        classes: int = 1000,
        thumbnail: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        assert len(layers) == len(channels) - 1
        with scope(self):
            self.features = sequence(nn.BatchNorm(scale=False, center=False), *_stem(channels[0], thumbnail))
            self.features.add(*_stages(block, layers, channels))
            self.features.add(nn.BatchNorm(), nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Flatten())
            self.output = nn.Dense(classes, in_units=channels[-1])


_NARROW, _WIDE = [64, 64, 128, 256, 512], [64, 256, 512, 1024, 2048]
resnet_spec = {
    18: ("basic_block", [2, 2, 2, 2], _NARROW),
    34: ("basic_block", [3, 4, 6, 3], _NARROW),
    50: ("bottle_neck", [3, 4, 6, 3], _WIDE),
    101: ("bottle_neck", [3, 4, 23, 3], _WIDE),
    152: ("bottle_neck", [3, 8, 36, 3], _WIDE),
}
resnet_net_versions: list[Any] = [ResNetV1, ResNetV2]
resnet_block_versions: list[dict[str, Any]] = [
    {"basic_block": BasicBlockV1, "bottle_neck": BottleneckV1},
    {"basic_block": BasicBlockV2, "bottle_neck": BottleneckV2},
]


def get_resnet(
    version: int,
    num_layers: int,
    pretrained: bool = False,
    ctx: Any = None,
    root: str = ROOT,
    device: Any = None,
    **kwargs: Any,
) -> Any:
    assert num_layers in resnet_spec, f"Invalid number of layers: {num_layers}. Options are {resnet_spec.keys()}"
    assert version in (1, 2), f"Invalid resnet version: {version}. Options are 1 and 2."
    kind, layers, channels = resnet_spec[num_layers]
    net = resnet_net_versions[version - 1](resnet_block_versions[version - 1][kind], layers, channels, **kwargs)
    return loaded(net, f"resnet{num_layers}_v{version}", pretrained, ctx or device, root)


resnet18_v1, resnet34_v1, resnet50_v1, resnet101_v1, resnet152_v1 = (partial(get_resnet, 1, n) for n in resnet_spec)
resnet18_v2, resnet34_v2, resnet50_v2, resnet101_v2, resnet152_v2 = (partial(get_resnet, 2, n) for n in resnet_spec)
