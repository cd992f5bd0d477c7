"""Trajectories to learn from: scripted policies that collect them, and readers of agents' logs in the formats of others."""
