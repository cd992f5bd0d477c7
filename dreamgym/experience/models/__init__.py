"""Experience models: a kind of plug-in."""
