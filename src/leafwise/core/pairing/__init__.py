"""Which leaf of one tree is which leaf of another. `row_matching` pairs names; `pairing` pairs the rows of two trees
by name and by `rename=`. For names that differ, `proposals` finds renames: changes to entries of all names
(`name_changes`), whose words agree (`name_words`), in families of names that differ only in their numbers
(`families`). `leaf_pairs` and `plain_pairs` are what a diff compares, and `name_groups` shortens long lists of
names."""
