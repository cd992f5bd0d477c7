"""Run directories: episodes, metrics, checkpoints and phases as files."""
