"""Plug-ins as a user writes them: one file each, outside the package."""
