"""The core: one walk, and the words it is told in. Standard library only.

Nothing here imports a framework. Core knows frameworks as strings (`home.FRAMEWORKS`) and looks only at
what the program has already imported.
"""
