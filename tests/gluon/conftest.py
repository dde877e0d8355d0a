"""These files are scripts, not tests."""

collect_ignore = ["file_nets.py", "record_files.py", "record_zoo.py", "zoo_facts.py", "array_facts.py", "arrays.py", "deck.py", "record_golden.py"]
