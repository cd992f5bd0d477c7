"""Explicit wiring in plain Python: the only storey that sees several components at once.

`config` gathers the components' settings, `parts` builds them, `phases` runs one phase each, `quickstart` runs them in order.
"""
