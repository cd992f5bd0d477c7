"""Algorithms as pure functions, one file each: advantages from groups, a loss from log-probabilities."""
