"""The formats of files, one module each: `read` checks everything in a file before relying on it, and returns a
`StoredFile`. `format` has the table of all formats, and `detect` finds the one of a file, or says what a file is that
has none of them."""
