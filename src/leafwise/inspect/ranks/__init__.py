"""Verbs over arrays that are sharded over processes: each rank works on its parts, and the results are combined.

Every rank must call such a verb. The ranks first compare what they call it with (`core.work.ranks`), since a rank with
another model would otherwise make the others wait, or make the result silently wrong.
"""
