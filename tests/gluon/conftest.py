"""These files are scripts, not tests."""

collect_ignore = [
    "array_facts.py",
    "arrays.py",
    "data_script.py",
    "deck.py",
    "nd_facts.py",
    "neural_facts.py",
    "random_facts.py",
    "record_golden.py",
    "record_nd_golden.py",
    "record_neural.py",
    "record_training.py",
    "training_curves.py",
    "training_facts.py",
    "training_script.py",
]
