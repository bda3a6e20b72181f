"""Lets sigstore-python be imported without a socket being opened.

The rule: verification opens no socket, not even one that goes nowhere. sigstore-python loads an HTTP client, which it
needs for signing, and whose urllib3 finds out while it is imported whether IPv6 works, by binding a socket to `::1`.
Told that Python has no IPv6 it does not try; afterwards it is told what Python says, so that signing in the same
process is as it would be.
"""

from __future__ import annotations

import socket
import sys


def prepare() -> None:
    """Import urllib3 so that sigstore finds it loaded; does nothing where it is loaded already."""
    if "urllib3.util.connection" in sys.modules:
        return
    known = socket.has_ipv6
    socket.has_ipv6 = False
    try:
        import urllib3.util.connection as connection
    finally:
        socket.has_ipv6 = known
    connection.HAS_IPV6 = known
