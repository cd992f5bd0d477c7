"""Measures: success with intervals, and how far a dream may be trusted."""
