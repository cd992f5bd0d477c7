"""Encoders phi(s, a), one per file; each is a `protocols.Encoder` made by `make(**config)`."""
