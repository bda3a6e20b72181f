"""The network interface that carries a node's address, so that collectives go where Ray's calls go.

The rule: a rank exchanges over the address that the deployment names for its node. Left to themselves Gloo and NCCL
look for an interface of their own: Gloo takes whatever the machine's name resolves to, which on many systems is
loopback, and ranks on other nodes then wait for an address that is not theirs.
"""

from __future__ import annotations

import errno
import os
import socket
from ipaddress import ip_address

import psutil

#: What Gloo and NCCL read; an operator who set them knows better, for a network that is the collectives' alone.
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def interface_of(address: str) -> str:
    """The interface with this address; raises `OSError` where this machine has none."""
    wanted = ip_address(address)
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        for item in addresses:
            if item.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            # A link-local IPv6 address carries its zone behind a percent sign.
            have = ip_address(item.address.partition("%")[0])
            # All of 127.0.0.0/8 is on the loopback interface, which shows the first of them only.
            if have == wanted or (have.is_loopback and wanted.is_loopback):
                return name
    raise OSError(errno.EADDRNOTAVAIL, "no interface of this node has the address that Ray knows it by", address)


def bind_collectives(address: str) -> None:
    """Have this process's collectives use the interface of `address`, where the operator named none."""
    unset = [name for name in VARIABLES if not os.environ.get(name)]
    if unset:
        interface = interface_of(address)
        os.environ.update(dict.fromkeys(unset, interface))
