"""Whether anybody answers where Spark is said to be: its own clients try for minutes before they say no."""

import socket
from urllib.parse import urlsplit

from aftershock.errors import EvidenceError

DEADLINE_S = 10.0
_PORTS = {"sc": 15002, "spark": 7077}


def reachable(url: str) -> None:
    """Raises EvidenceError where nobody listens at ``sc://host[:port][/;…]`` or any of ``spark://host:port[,…]``.

    Addresses of other kinds are believed.
    """
    scheme, there, rest = url.partition("://")
    if not there or scheme not in _PORTS:
        return
    hosts = rest.split("/")[0].split(",")
    refused = [why for host in hosts if (why := _refusal(host, _PORTS[scheme]))]
    if len(refused) == len(hosts):
        who = ", ".join(refused)
        raise EvidenceError(f"nobody answers at {scheme}://{who}; start Spark there, or mend the address")


def _refusal(host: str, port: int) -> str:
    try:
        address = urlsplit(f"//{host}")
        socket.create_connection((address.hostname or "", address.port or port), DEADLINE_S).close()
    except (OSError, ValueError) as refused:
        return f"{host} ({refused})"
    return ""
