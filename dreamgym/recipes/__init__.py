"""Explicit wiring in plain Python: the only storey that sees several components at once.

`config` gathers the components' settings and `parts` builds them. `fitting`, `practice` and `evaluation` hold the phases, `results` adds up
what they found; `quickstart`, `train` and `compare` run them in order.
"""
