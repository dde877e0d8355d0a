"""Kinds of checkpoints that people have, each written by the tool that writes it, or by a script from its documented
layout, and the check that leafwise opens them and finds every array, tie and object."""

from tools.checkpoint_kinds import large_runs, libraries, other_formats, training_scripts, whole_models
from tools.checkpoint_kinds.kind import KINDS
from tools.checkpoint_kinds.lightning_runs import HYPERPARAMETERS

__all__ = [
    "HYPERPARAMETERS", "KINDS", "large_runs", "libraries", "other_formats", "training_scripts", "whole_models",
]  # fmt: skip
