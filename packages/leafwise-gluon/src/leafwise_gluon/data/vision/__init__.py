"""`mxnet.gluon.data.vision`: datasets of images, and transforms."""

from leafwise_gluon.data.vision import transforms
from leafwise_gluon.data.vision.datasets import CIFAR10, CIFAR100, MNIST, FashionMNIST

__all__ = ["CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "transforms"]
