"""Choose the network interface over which gloo connects the machines of a job.

Gloo takes the address of the host's own name, which is 127.0.1.1 where Debian and Ubuntu wrote /etc/hosts: no other
machine reaches it, and every job on several machines makes a gloo group, under NCCL too.
"""

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterable

import psutil

GLOO = "GLOO_SOCKET_IFNAME"
"""Environment variable that gloo reads."""


def own_address(peer: str) -> str | None:
    """Return this machine's address on the route to ``peer``; None if it is a loopback address or unknown."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, target in socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # looks the route up; nothing is sent
                address: str = probe.getsockname()[0]
                if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
                    return address
    return None


def use_interface_towards(peers: Iterable[str]) -> None:
    """Have gloo use the interface on the route to the first of ``peers`` (names or addresses) on another machine,
    unless the user set one."""
    if GLOO in os.environ:
        return
    names = {each.address: name for name, addresses in psutil.net_if_addrs().items() for each in addresses}
    interfaces = (names.get(address) for peer in peers if (address := own_address(peer)) is not None)
    if (name := next(filter(None, interfaces), None)) is not None:
        os.environ[GLOO] = name
