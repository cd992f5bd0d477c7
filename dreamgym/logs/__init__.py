"""Trajectories to learn from: collecting them with scripted behaviours, and (later) readers of other people's formats."""
