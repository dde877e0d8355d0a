"""Ties of PyTorch modules: made, undone and, by a `Bond` that all modules of a tie share, kept whenever PyTorch
replaces a parameter. A tie with a transpose or a slice makes one parameter a view of another."""
