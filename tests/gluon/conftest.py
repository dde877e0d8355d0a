"""These files are scripts, not tests."""

collect_ignore = [
    "neural_facts.py",
    "record_neural.py",
    "array_facts.py",
    "random_facts.py",
    "recurrent_facts.py",
    "arrays.py",
    "deck.py",
    "record_golden.py",
]
