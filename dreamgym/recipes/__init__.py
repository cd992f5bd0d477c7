"""Recipes: what a command does, in plain Python.

`config` gathers the components' settings, `factory` builds them, `context` holds the state of a run. `phases` has one file per
phase; `summary` and `comparison` tabulate their results. `quickstart`, `train` and `compare` are sequences of phases.
"""
