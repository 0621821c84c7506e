"""The port the controller listens on."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from aeo.core.condition import Condition, fault, ok


@dataclass(frozen=True, kw_only=True)
class Port:
    """An address, tried."""

    host: str
    port: int
    #: The error's number of a try to listen there; 0 if that works.
    error: int = 0
    #: Who listens there, as far as this user may know.
    holder: str = ""


def measure(host: str, port: int) -> Port:
    """Try to listen for a moment."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except socket.gaierror:
        return Port(host=host, port=port, error=errno.EADDRNOTAVAIL)
    except OSError as error:
        return Port(host=host, port=port, error=error.errno or errno.EIO, holder=_holder(port))
    return Port(host=host, port=port)


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and getattr(connection.laddr, "port", 0) == port
            if listens and connection.pid:
                return f"{psutil.Process(connection.pid).name()}, process {connection.pid}"
    except (psutil.Error, OSError):
        pass
    return ""


def judge(port: Port) -> Iterator[Condition]:
    """Judge a port that no controller of ours listens on."""
    place = f"{port.host}:{port.port}"
    if not port.error:
        yield ok("port", f"{place} is free")
    elif port.error == errno.EADDRINUSE:
        by = f" ({port.holder})" if port.holder else ""
        yield fault("port", f"{place} is taken by another program{by}", "Stop that program, or give another --port.")
    elif port.error == errno.EACCES:
        yield fault("port", f"this user may not listen on {place}", "Give a --port above 1023.")
    else:
        yield fault("port", f"{place} is no address of this machine", "Give --host 127.0.0.1, or one of its own.")
