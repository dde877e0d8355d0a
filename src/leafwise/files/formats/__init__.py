"""The formats of files, one module each: `read` checks everything in a file before relying on it, and returns a
`StoredFile`. `format` has the table of all formats, `detect` finds the one of a file, and `not_checkpoints` says what
a file is that is none of them."""
