"""A fitted dream behind a protocol. `sessions` is the core; every other module is a protocol, found by name:

make(sessions, *, host, idle_s) -> an ASGI application
"""
