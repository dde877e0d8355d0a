"""Verbs that read the parameters of a model or a file and change nothing: a folder for each of stats, check, diff and
image, and beside them what several of these use."""
