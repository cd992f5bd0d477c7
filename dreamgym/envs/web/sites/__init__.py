"""Sites that run on this machine: a Django application on loopback with a database for each episode. What all of them share.

`Site` says what one is. A site is a package with `content` (what a seed names, and `fill`, which writes it), `settings`, `tasks`, `experts`
and `site`, which holds its `Site` and its benchmark.
"""
