"""Trajectories to learn from: collecting them with scripted policies, and (later) readers of other people's formats."""
