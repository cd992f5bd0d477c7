"""A fitted dream behind a protocol. `sessions` is the core; every other module is a protocol, found by name:

make(sessions, *, host, idle_s) -> an ASGI application
"""

from __future__ import annotations

import ipaddress

from dreamgym.errors import UsageError


def check_address(host: str, token: str) -> None:
    """UsageError for an address that others reach, without a token."""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local and not token:
        raise UsageError(f"'{host}' can be reached from other machines. Name an environment variable with a secret: --token-env NAME.")
