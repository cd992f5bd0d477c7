"""Adapters that expose suites and dreams through the interfaces of other libraries."""
