"""The core: the walk and the types that describe its result. Uses only the standard library.

Nothing here imports a framework. Core knows frameworks by name (`registry.FRAMEWORKS`) and uses only those that the
program has already imported.
"""
