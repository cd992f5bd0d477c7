"""Recipes: what a command does, in plain Python.

`config` gathers the components' settings, `factory` builds them, `context` holds the state of a run. `phases` has one file a phase; `rows`
adds up what they found. `quickstart`, `train` and `compare` are sequences of phases.
"""
