"""The deck and what records it are scripts, not tests."""

collect_ignore = ["deck.py", "record_golden.py"]
