"""The phases of a run: each is finished once, and resumed where it was interrupted."""
