"""Checkpoints: planned, loaded, saved and verified, on the same walk as everything else."""
