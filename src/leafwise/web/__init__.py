"""The viewer: a small server on this machine, and the page that it serves."""
