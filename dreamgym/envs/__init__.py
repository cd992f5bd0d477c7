"""Environment suites: a file or a package each, with `make(**config)` that returns an `envs.base.EnvSuite`."""
