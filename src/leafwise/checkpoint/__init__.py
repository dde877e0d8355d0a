"""Planning, loading, saving and verifying checkpoints."""
