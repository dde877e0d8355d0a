"""`mxnet.gluon.data`: datasets, samplers and loaders."""

from leafwise.gluon.data import batchify, vision
from leafwise.gluon.data.dataloader import DataLoader
from leafwise.gluon.data.dataset import ArrayDataset, Dataset, SimpleDataset
from leafwise.gluon.data.recordio import RecordFileDataset
from leafwise.gluon.data.sampler import (
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
