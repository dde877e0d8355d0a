"""`mxnet.gluon.data`: datasets, samplers and loaders."""

from leafwise_gluon.data import batchify, vision
from leafwise_gluon.data.dataloader import DataLoader
from leafwise_gluon.data.dataset import ArrayDataset, Dataset, SimpleDataset
from leafwise_gluon.data.recordio import RecordFileDataset
from leafwise_gluon.data.sampler import (
    BatchSampler,
    FilterSampler,
    IntervalSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

__all__ = [
    "ArrayDataset",
    "BatchSampler",
    "DataLoader",
    "Dataset",
    "FilterSampler",
    "IntervalSampler",
    "RandomSampler",
    "RecordFileDataset",
    "Sampler",
    "SequentialSampler",
    "SimpleDataset",
    "batchify",
    "vision",
]
