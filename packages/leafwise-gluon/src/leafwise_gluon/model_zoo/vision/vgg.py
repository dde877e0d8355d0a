"""VGG, with and without batch normalization."""

from functools import partial
from typing import Any

from leafwise_gluon import nn
from leafwise_gluon.init import Xavier
from leafwise_gluon.model_zoo.vision.building import ROOT, ZooNet, loaded, scope, sequence

__all__ = ["VGG", "get_vgg", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn"]

_FILTERS = [64, 128, 256, 512, 512]
vgg_spec = {
    11: ([1, 1, 2, 2, 2], _FILTERS),
    13: ([2, 2, 2, 2, 2], _FILTERS),
    16: ([2, 2, 3, 3, 3], _FILTERS),
    19: ([2, 2, 4, 4, 4], _FILTERS),
}


class VGG(ZooNet):
    def __init__(
        self, layers: list[int], filters: list[int], classes: int = 1000, batch_norm: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        dense = partial(nn.Dense, weight_initializer="normal", bias_initializer="zeros")
        with scope(self):
            blocks: list[Any] = []
            for count, channels in zip(layers, filters, strict=True):
                for _ in range(count):
                    start = Xavier(rnd_type="gaussian", factor_type="out", magnitude=2)
                    blocks.append(
                        nn.Conv2D(
                            channels, kernel_size=3, padding=1, weight_initializer=start, bias_initializer="zeros"
                        )
                    )
                    blocks += [nn.BatchNorm()] if batch_norm else []
                    blocks.append(nn.Activation("relu"))
                blocks.append(nn.MaxPool2D(strides=2))
            for _ in range(2):
                blocks += [dense(4096, activation="relu"), nn.Dropout(rate=0.5)]
            self.features = sequence(*blocks)
            self.output = dense(classes)


def get_vgg(
    num_layers: int, pretrained: bool = False, ctx: Any = None, root: str = ROOT, device: Any = None, **kwargs: Any
) -> VGG:
    net = VGG(*vgg_spec[num_layers], **kwargs)
    suffix = "_bn" if kwargs.get("batch_norm") else ""
    return loaded(net, f"vgg{num_layers}{suffix}", pretrained, ctx or device, root)  # type: ignore[no-any-return]


vgg11, vgg13, vgg16, vgg19 = (partial(get_vgg, layers) for layers in vgg_spec)
vgg11_bn, vgg13_bn, vgg16_bn, vgg19_bn = (partial(get_vgg, layers, batch_norm=True) for layers in vgg_spec)
