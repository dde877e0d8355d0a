"""DenseNet (Huang et al., arXiv 1608.06993)."""

from functools import partial
from typing import Any

from leafwise_gluon import dialect, nn
from leafwise_gluon.model_zoo.vision.building import (
    ROOT,
    ZooNet,
    loaded,
    scope,
    sequence,
    side_by_side,
    with_prefix,
)

__all__ = ["DenseNet", "densenet121", "densenet161", "densenet169", "densenet201", "get_densenet"]

densenet_spec = {
    121: (64, 32, [6, 12, 24, 16]),
    161: (96, 48, [6, 12, 36, 24]),
    169: (64, 32, [6, 12, 32, 32]),
    201: (64, 32, [6, 12, 48, 32]),
}


def _norm_relu() -> list[Any]:
    return [nn.BatchNorm(), nn.Activation("relu")]


def _identity() -> Any:
    if dialect.is_v1():
        from leafwise_gluon.contrib.nn import Identity

        return Identity()
    return nn.Identity()


def _dense_layer(growth_rate: int, bn_size: int, dropout: float) -> Any:
    """Adds channels to its input."""
    new = sequence(*_norm_relu(), nn.Conv2D(bn_size * growth_rate, kernel_size=1, use_bias=False))
    new.add(*_norm_relu(), nn.Conv2D(growth_rate, kernel_size=3, padding=1, use_bias=False))
    if dropout:
        new.add(nn.Dropout(dropout))
    return side_by_side(_identity(), new)


def _dense_block(count: int, bn_size: int, growth_rate: int, dropout: float, number: int) -> Any:
    block = nn.HybridSequential(**with_prefix(f"stage{number}_"))
    with scope(block):
        for _ in range(count):
            block.add(_dense_layer(growth_rate, bn_size, dropout))
    return block


class DenseNet(ZooNet):
    def __init__(
        self,
        num_init_features: int,
        growth_rate: int,
        block_config: list[int],
        bn_size: int = 4,
        dropout: float = 0,
        classes: int = 1000,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        with scope(self):
            stem = nn.Conv2D(num_init_features, kernel_size=7, strides=2, padding=3, use_bias=False)
            self.features = sequence(stem, *_norm_relu(), nn.MaxPool2D(pool_size=3, strides=2, padding=1))
            channels = num_init_features
            for number, count in enumerate(block_config, 1):
                self.features.add(_dense_block(count, bn_size, growth_rate, dropout, number))
                channels += count * growth_rate
                if number < len(block_config):
                    channels //= 2
                    self.features.add(
                        sequence(
                            *_norm_relu(),
                            nn.Conv2D(channels, kernel_size=1, use_bias=False),
                            nn.AvgPool2D(pool_size=2, strides=2),
                        )
                    )
            self.features.add(*_norm_relu(), nn.AvgPool2D(pool_size=7), nn.Flatten())
            self.output = nn.Dense(classes)


def get_densenet(
    num_layers: int, pretrained: bool = False, ctx: Any = None, root: str = ROOT, device: Any = None, **kwargs: Any
) -> DenseNet:
    net = DenseNet(*densenet_spec[num_layers], **kwargs)
    return loaded(net, f"densenet{num_layers}", pretrained, ctx or device, root)  # type: ignore[no-any-return]


densenet121, densenet161, densenet169, densenet201 = (partial(get_densenet, layers) for layers in densenet_spec)
