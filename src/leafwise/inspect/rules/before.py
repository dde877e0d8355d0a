"""Rules about training as a whole: what did not change against the same model before it, and what should not have."""
