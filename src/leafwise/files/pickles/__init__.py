"""Pickles, read without running them: names are looked up in tables of replacements, other objects stay
descriptions, and arrays stay in the file. Limits are on bytes and on steps, so that a small file cannot take up
gigabytes."""
