"""Only files called test_*.py are tests; the others are scripts."""

collect_ignore_glob = ["[!t]*.py"]
