"""Homes: access to live parameters. A home implements only what is different from other homes (`core/home.py`)."""
