"""Environment families: a file or a package each, with `make(**config)` that returns a `envs.base.EnvSuite`."""
