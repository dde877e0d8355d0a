"""What the parameters of a model, or of a file, tell."""
