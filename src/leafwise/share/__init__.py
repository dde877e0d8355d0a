"""Sharing: lists ties, makes and undoes them, and keeps them."""
