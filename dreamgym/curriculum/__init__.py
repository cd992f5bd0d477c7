"""The curriculum task generator (section 4.2 of the paper)."""
