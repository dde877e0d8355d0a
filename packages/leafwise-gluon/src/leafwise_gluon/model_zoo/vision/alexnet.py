"""AlexNet."""

from typing import Any

from leafwise_gluon import nn
from leafwise_gluon.model_zoo.vision.building import ROOT, ZooNet, loaded, scope, sequence

__all__ = ["AlexNet", "alexnet"]


class AlexNet(ZooNet):
    def __init__(self, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with scope(self):
            self.features = sequence(
                nn.Conv2D(64, kernel_size=11, strides=4, padding=2, activation="relu"),
                nn.MaxPool2D(pool_size=3, strides=2),
                nn.Conv2D(192, kernel_size=5, padding=2, activation="relu"),
                nn.MaxPool2D(pool_size=3, strides=2),
                *(nn.Conv2D(channels, kernel_size=3, padding=1, activation="relu") for channels in (384, 256, 256)),
                nn.MaxPool2D(pool_size=3, strides=2),
                nn.Flatten(),
                nn.Dense(4096, activation="relu"),
                nn.Dropout(0.5),
                nn.Dense(4096, activation="relu"),
                nn.Dropout(0.5),
            )
            self.output = nn.Dense(classes)


def alexnet(pretrained: bool = False, ctx: Any = None, root: str = ROOT, device: Any = None, **kwargs: Any) -> AlexNet:
    return loaded(AlexNet(**kwargs), "alexnet", pretrained, ctx or device, root)  # type: ignore[no-any-return]
