"""These files are scripts, not tests."""

collect_ignore = ["array_facts.py", "arrays.py", "deck.py", "record_golden.py", "record_training.py", "training_facts.py"]
