"""Moves bytes of files into memory: of the host, of a device, or of another process that measures them. Several
threads read, and compare what they read with its checksums."""
