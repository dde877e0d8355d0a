"""Folders that are one checkpoint: shards with an index, the cache of a hub, pipelines of several models, and files
of several ranks. `layout` says which one a folder is."""
