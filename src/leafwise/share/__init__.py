"""Sharing: what is tied, and how to tie, untie and keep it."""
