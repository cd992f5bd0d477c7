"""Environment families: a file or a package each, with `make(**config)` that returns a `protocols.Family`."""
