"""An SSH reverse tunnel, kept up from the controller's machine: a worker finds the controller on its own loopback.

The broker and a transfer address on the controller's loopback come out under the port numbers they have here, so that
what the controller tells a worker is right there too. Only ports below 1024, which not everybody may listen on, come
out elsewhere; then the worker is told the address by a flag.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn
from urllib.parse import urlsplit

from aeo.core.errors import InputError
from aeo.executors.process import die_with_parent
from aeo.transfer import remote

log = logging.getLogger(__name__)

#: The controller's port on the worker's machine, if nothing else is said.
CONTROLLER_PORT = 17380
#: Added to a port that needs root.
_SHIFT = 17000
#: Seconds between two tries: doubling from the first to the second, each shortened at random.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
#: Seconds ssh gets to end after SIGTERM.
_END_SECONDS = 5.0

#: Nobody is there to answer; a port that is taken must not go unnoticed; a dead line is noticed within 45 s.
_OPTIONS = (
    *("BatchMode=yes", "ExitOnForwardFailure=yes", "ServerAliveInterval=15", "ServerAliveCountMax=3"),
    # A shared connection would outlive us, and keep its ports.
    *("ConnectTimeout=10", "StrictHostKeyChecking=accept-new", "ControlMaster=no", "ControlPath=none"),
)
#: ``[USER@]HOST``; what begins with a dash would be an option of ssh.
TARGET = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*@)?(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*)")
#: What ``ssh -v`` says once for each port.
_FORWARDED = "remote forward success for"
_TAKEN = re.compile(r"remote port forwarding failed for listen port (\d+)")
_REFUSED = ("Permission denied", "Host key verification failed", "Too many authentication failures")
#: What ``ssh -v`` says besides that is no error.
_CHATTER = re.compile(
    r"debug\d|OpenSSH_|Authenticated to |Transferred: |Bytes per second: |Warning: Permanently added "
)
_LAST_LINES = 3
_MOUNTED = (
    "Results go to a folder of this machine: the worker must have it mounted (--shared-root). Else give the "
    "controller, and this command, --transfer-url rsync://USER@127.0.0.1:PORT/MODULE or ssh://USER@127.0.0.1/PATH."
)


@dataclass(frozen=True, kw_only=True)
class Forward:
    """A port of the worker's loopback that leads to one of ours."""

    there: int
    here: int
    #: What is behind it, for people.
    what: str

    def argument(self) -> str:
        """As ``ssh -R`` takes it."""
        return f"127.0.0.1:{self.there}:127.0.0.1:{self.here}"


@dataclass(frozen=True, kw_only=True)
class Tunnel:
    """What is to be kept up."""

    #: ``[user@]host`` or a name from ``~/.ssh/config``.
    target: str
    #: 0: as ssh says.
    ssh_port: int = 0
    forwards: tuple[Forward, ...]
    #: The transfer address a worker there must be given, as the one it is told is not right there; "" is none.
    transfer_url: str = ""
    #: What a person should know.
    notes: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """The ssh to run."""
        options = [part for option in _OPTIONS for part in ("-o", option)]
        port = ["-p", str(self.ssh_port)] if self.ssh_port else []
        forwards = [part for forward in self.forwards for part in ("-R", forward.argument())]
        return ["ssh", "-v", "-N", "-T", "-a", "-x", *options, *port, *forwards, self.target]

    def worker_command(self) -> str:
        """What to run on the other side."""
        transfer = f" --transfer-url {self.transfer_url}" if self.transfer_url else ""
        url = f"http://127.0.0.1:{self.forwards[0].there}"
        return f"aeo worker --controller-url {url} --auth-token @token{transfer}"


def plan(
    target: str,
    *,
    broker_url: str,
    transfer_url: str,
    controller: tuple[int, int],
    more: Sequence[tuple[int, int]] = (),
    ssh_port: int = 0,
) -> Tunnel:
    """What a tunnel must carry: the controller (its port there and here), and what is on our loopback of the rest.

    ``broker_url`` and ``transfer_url`` are those the controller tells its workers.

    Raises:
        InputError: the target or an address is none, or two things want one port.
    """
    if not TARGET.fullmatch(target):
        raise InputError(f"{target!r} is not [USER@]HOST.")
    forwards, notes = [Forward(there=controller[0], here=controller[1], what="the controller")], []
    broker = urlsplit(broker_url)
    if _loopback(broker.hostname or ""):
        port = broker.port or 6379
        forwards.append(Forward(there=port, here=port, what="its broker"))
    else:
        notes.append(f"The worker must reach the broker at {broker.hostname} by itself.")
    results, url, note = _transfer(transfer_url)
    forwards += results
    notes += [note] if note else []
    forwards += [Forward(there=there, here=here, what="another port") for there, here in more]
    ports = [forward.there for forward in forwards]
    twice = next((port for port in ports if ports.count(port) > 1), None)
    if twice is not None:
        raise InputError(f"port {twice} of {target} is wanted for two things.", field="--port")
    return Tunnel(target=target, ssh_port=ssh_port, forwards=tuple(forwards), transfer_url=url, notes=tuple(notes))


def _transfer(told: str) -> tuple[list[Forward], str, str]:
    """How results come through: the port, the address to give to the worker if another than told, and a note."""
    if not told or (place := remote.parse(told)).kind == "local":
        return [], "", _MOUNTED
    if not _loopback(place.host):
        return [], "", f"The worker must reach {place} by itself."
    here = place.port or (22 if place.kind == "ssh" else 873)
    there = here if here >= 1024 else _SHIFT + here
    url = "" if there == here else str(replace(place, host="127.0.0.1", port=there))
    return [Forward(there=there, here=here, what="the way of results")], url, ""


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def keep(
    tunnel: Tunnel,
    is_up: Callable[[], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    is_down: Callable[[str], None] = lambda _: None,
    begun: Callable[[subprocess.Popen[bytes]], None] = lambda _: None,
) -> NoReturn:
    """Keep it up until an exception (of a signal, say) ends it, and ssh with it; ``is_up`` is called at each start.

    ``is_down`` is told why it is not; ``begun`` gets each ssh, so that another thread can end it.

    Raises:
        InputError: it cannot be made: no ssh, no entry, a port that is taken there. Once it was up, these are waited
            for too: a port stays taken for a while after the line was cut.
    """
    if shutil.which("ssh") is None:
        raise InputError("ssh is not installed on this machine. Install the package openssh-client.")
    pause, said, before = FIRST_PAUSE, "", False
    while True:
        up, why = _run(tunnel, is_up, begun)
        before = before or up
        if not before:
            _give_up(tunnel, why)
        is_down(why or "the connection ended")
        pause = FIRST_PAUSE if up else min(pause * 2, LONGEST_PAUSE)
        if up or why != said:
            log.warning("the tunnel to %s is down: %s; trying again", tunnel.target, why or "the connection ended")
            said = why
        sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  many tunnels must not come back at one moment


def _run(
    tunnel: Tunnel, is_up: Callable[[], None], begun: Callable[[subprocess.Popen[bytes]], None]
) -> tuple[bool, str]:
    """One connection to its end: whether all ports were forwarded, and the last it said."""
    missing, up = len(tunnel.forwards), False
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with _ssh(tunnel.command(), begun) as lines:
        for line in lines:
            if _FORWARDED in line:
                missing -= 1
                if not missing:
                    up = True
                    last.clear()
                    is_up()
            elif line and not _CHATTER.match(line):
                last.append(line)
    return up, " | ".join(last)


@contextmanager
def _ssh(command: Sequence[str], begun: Callable[[subprocess.Popen[bytes]], None]) -> Iterator[Iterator[str]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AEO_")}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**kept, "LC_ALL": "C"},
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    try:
        begun(process)
        assert process.stderr is not None  # noqa: S101  asked for above
        yield (_plain(line) for line in process.stderr)
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
                break


def _plain(line: bytes) -> str:
    return "".join(letter for letter in line.decode("utf-8", "replace").strip() if letter.isprintable())


def _give_up(tunnel: Tunnel, why: str) -> None:
    """Raise InputError when trying again would change nothing."""
    taken = _TAKEN.search(why)
    if taken:
        port = int(taken[1])
        what = next((forward.what for forward in tunnel.forwards if forward.there == port), "")
        fix = {
            "the controller": "Choose another with --port.",
            "its broker": "End what listens there: the broker must come out under the number it has here.",
        }.get(what, "End what listens there.")
        raise InputError(
            f"port {port} of {tunnel.target} ({what}) cannot be had: it is taken, or its sshd forwards no ports.",
            field="--port" if what == "the controller" else "",
            fix=fix,
        )
    if any(words in why for words in _REFUSED):
        port_flag = f"-p {tunnel.ssh_port} " if tunnel.ssh_port else ""
        raise InputError(f"{why}.", fix=f"Check `ssh -o BatchMode=yes {port_flag}{tunnel.target} true`.")
