"""The deck, its neighbourhood and what records them are scripts, not tests."""

collect_ignore = ["arrays.py", "deck.py", "record_golden.py"]
