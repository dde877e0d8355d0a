"""Shorthands for what tests need from trees."""

import leafwise as lw


def paths(tree: lw.Tree) -> list[str]:
    return [str(path) for path, _ in tree.items()]
