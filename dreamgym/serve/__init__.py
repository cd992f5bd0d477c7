"""A fitted dream behind a protocol. `sessions` is the core; every other module is a protocol, found by name:

make(sessions, *, host, idle_s) -> an ASGI application
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Sequence

from dreamgym.errors import UsageError

BACKLOG = 2048
"""Connections that wait to be accepted, as uvicorn has them."""


def check_address(host: str, token: str) -> None:
    """UsageError for an address that others reach, without a token."""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local and not token:
        raise UsageError(f"'{host}' can be reached from other machines. Name an environment variable with a secret: --token-env NAME.")


def bound(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to the addresses of a host, which nobody can connect to before a server listens. UsageError for a port in use and an
    address that is not this machine's."""
    sockets, failed = list[socket.socket](), OSError("it has no address")
    try:
        for version, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            try:
                one = socket.socket(version, kind, protocol)
            except OSError as error:  # a machine may lack IPv6, of which localhost has an address too
                failed = error
                continue
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if version == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
            try:
                one.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                failed = error
                sockets.pop().close()
        if not sockets:
            raise failed
    except (OSError, UnicodeError) as error:
        for one in sockets:
            one.close()
        raise _refused(host, port, error) from error
    return sockets


def listen(sockets: Sequence[socket.socket], host: str, port: int) -> None:
    """Let clients connect to what `bound` gave. UsageError where another program, bound to the same port, listens by now."""
    try:
        for one in sockets:
            one.listen(BACKLOG)
    except OSError as error:
        raise _refused(host, port, error) from error


def _refused(host: str, port: int, error: Exception) -> UsageError:
    reason = getattr(error, "strerror", None) or error
    return UsageError(
        f"{address_of(host, port)} cannot be listened at ({reason}). Give another --port, or a --host that is an address of this machine."
    )


def address_of(host: str, port: int) -> str:
    """`host:port` as in a URL: an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
