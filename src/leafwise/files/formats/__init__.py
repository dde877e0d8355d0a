"""The formats of files, one module each: `read` checks everything in a file before relying on it, and returns a
`StoredFile`. `detect` recognizes a format by its first bytes, and `not_checkpoints` what is not a
checkpoint."""
