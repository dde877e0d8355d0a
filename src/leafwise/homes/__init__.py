"""Homes: where live parameters are reached. A home states only what differs (`core/home.py`)."""
