"""`lw.edit`: changes checkpoints without loading them, a chunk at a time."""
