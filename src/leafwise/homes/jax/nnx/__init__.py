"""Flax NNX: modules are nodes, and Variables are leaves with an identity, so that sharing one is a tie."""
