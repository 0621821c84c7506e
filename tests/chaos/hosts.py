"""Network namespaces as hosts: a head with the controller, and workers that reach it by nothing but ``aeo tunnel``.

::

    head (controller, rsync daemon and sshd on its loopback)
      ├── 10.199.1.1 ── 10.199.1.2  a (sshd, worker)
      └── 10.199.2.1 ── 10.199.2.2  b (sshd, worker)

The machine itself is in none of these networks; the tests look into ``head`` through a `Proxy`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from chaos.proxy import Proxy
from chaos.stage import PATIENCE, POLL, STOP, Stage
from programs import TOKEN, Api, Program
from rsync_hosts import PASSWORD
from waiting import eventually

from aeo.store.connection import Db, connect

_NETWORK = 0x40000000  # CLONE_NEWNET
_LIBC = ctypes.CDLL(None, use_errno=True)
#: Seconds. A short cut must end within the lease, and TCP sends again up to twice as late as the cut was long.
LEASE, GRACE = 8.0, 8.0
_API, _RSYNC = 7380, 8873


def missing() -> str:
    """Why such hosts cannot be made here; "" if they can."""
    if os.getuid():
        return "root, to make network namespaces"
    absent = [name for name in ("ip", "ssh", "ssh-keygen", "sshd", "rsync") if not _program(name)]
    if absent:
        return f"not installed: {', '.join(absent)}"
    answer = _ip("netns", "add", f"{_prefix()}try", check=False)
    if answer:
        return f"network namespaces ({answer})"
    _ip("netns", "del", f"{_prefix()}try")
    return ""


class Net:
    """The hosts and what connects them. Leaving the context ends all that runs on them."""

    def __init__(self, *workers: str):
        #: A worker's host to its own address.
        self.addresses = {name: f"10.199.{index}.2" for index, name in enumerate(workers, 1)}

    def __enter__(self) -> Net:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self) -> None:
        for name in ("head", *self.addresses):
            _ip("netns", "add", _name(name))
            _ip("-n", _name(name), "link", "set", "lo", "up")
        for name, address in self.addresses.items():
            head, own = _name("head"), _name(name)
            _ip("link", "add", f"to-{name}", "netns", head, "type", "veth", "peer", "name", "cable", "netns", own)
            for host, link, at in ((head, f"to-{name}", address[:-1] + "1"), (own, "cable", address)):
                _ip("-n", host, "address", "add", f"{at}/24", "dev", link)
                _ip("-n", host, "link", "set", link, "up")

    def __exit__(self, *_: object) -> None:
        for name in ("head", *self.addresses):
            for pid in _ip("netns", "pids", _name(name), check=False).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _ip("netns", "del", _name(name), check=False)

    def before(self, host: str) -> list[str]:
        """What to put before a command to run it there."""
        return ["ip", "netns", "exec", _name(host)]

    def cut(self, worker: str) -> None:
        """Pull the cable of a worker's host."""
        _ip("-n", _name(worker), "link", "set", "cable", "down")

    def heal(self, worker: str) -> None:
        """Put it back."""
        _ip("-n", _name(worker), "link", "set", "cable", "up")

    def connect(self, host: str, port: int) -> socket.socket:
        """A connection to a port of a host's loopback.

        Raises:
            OSError: nobody listens there.
        """
        found: list[socket.socket | OSError] = []

        def go() -> None:
            # Only this thread moves, and a socket stays where it was made.
            try:
                with Path("/run/netns", _name(host)).open() as place:
                    if _LIBC.setns(place.fileno(), _NETWORK):
                        raise OSError(ctypes.get_errno(), "setns")
                found.append(socket.create_connection(("127.0.0.1", port)))
            except OSError as error:
                found.append(error)

        thread = threading.Thread(target=go)
        thread.start()
        thread.join()
        if isinstance(found[0], OSError):
            raise found[0]
        return found[0]

    def start(
        self, host: str, command: Sequence[str], log: Path, port: int, greeting: bytes
    ) -> subprocess.Popen[bytes]:
        """Run a daemon there, and wait until it greets."""
        with log.open("ab") as out:
            process = subprocess.Popen(
                [*self.before(host), *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

        def greets() -> bool:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(OSError), self.connect(host, port) as line:
                line.settimeout(2)
                return line.recv(len(greeting)) == greeting
            return False

        eventually(greets, 30, pause=0.1)
        return process


class Hosts(Stage):
    """A platform over such hosts: worker ``a`` sends results to the rsync daemon, all others by ssh."""

    def __init__(self, folder: Path, net: Net):
        self.net = net
        self.tunnels: dict[str, Program] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._keys(folder)
        (folder / "token").write_text(TOKEN)
        self._web = Proxy(lambda: net.connect("head", _API))
        self._broker = Proxy(lambda: net.connect("head", int((self.shared / "redis" / "port").read_text())))
        super().__init__(folder)
        self.api.close()
        self.api = Api(f"http://127.0.0.1:{self._web.port}")
        eventually(self.api.healthy, PATIENCE, pause=0.1)
        sshd = [str(_program("sshd")), "-D", "-e", "-f", str(folder / "sshd_config")]
        for host in ("head", *net.addresses):
            net.start(host, sshd, folder / f"sshd-{host}.log", 22, b"SSH-")
        self.rsync = self.start_rsync()
        for worker in net.addresses:
            self.start_tunnel(worker)

    def start_rsync(self) -> subprocess.Popen[bytes]:
        """Start the rsync daemon on the head's loopback."""
        (self.folder / "rsync-secrets").write_text(f"aeo:{PASSWORD}\n")
        (self.folder / "rsync-secrets").chmod(0o600)
        (self.folder / "rsyncd.conf").write_text(
            f"use chroot = no\naddress = 127.0.0.1\nport = {_RSYNC}\nuid = 0\ngid = 0\n"
            f"[aeo]\npath = {self.shared}\nread only = no\nauth users = aeo\n"
            f"secrets file = {self.folder / 'rsync-secrets'}\n"
        )
        log = self.folder / "rsync-daemon.log"
        command = [
            "rsync",
            "--daemon",
            "--no-detach",
            f"--config={self.folder / 'rsyncd.conf'}",
            "--log-file=/dev/stderr",
        ]
        self.rsync = self.net.start("head", command, log, _RSYNC, b"@RSYNCD")
        return self.rsync

    def stop_rsync(self) -> None:
        """Kill it."""
        self.rsync.kill()
        self.rsync.wait()

    def start_controller(self, token: str = TOKEN, *more: str) -> Program:
        """See `Stage`; in the head's network."""
        times = ["--lease-seconds", str(LEASE), "--grace-seconds", str(GRACE), "--refresh-seconds", "1"]
        transfer = ["--transfer-url", self._transfer("a")]
        arguments = ["controller", "--port", str(_API), "--shared-root", str(self.shared), *times, *transfer, *more]
        secrets = {"AEO_AUTH_TOKEN": token, "AEO_TRANSFER_PASSWORD": PASSWORD}
        self.controller = Program(arguments, self.folder, secrets, before=self.net.before("head"))
        self.programs.append(self.controller)
        return self.controller

    def start_tunnel(self, worker: str) -> Program:
        """Start the tunnel to a worker's host, and wait until it is up."""
        arguments = ["tunnel", f"root@{self.net.addresses[worker]}", "--shared-root", str(self.shared)]
        transfer = ["--transfer-url", self._transfer(worker)]
        program = Program([*arguments, *transfer], self.folder, self._path(), before=self.net.before("head"))
        self.tunnels[worker] = program
        self.programs.append(program)
        eventually(lambda: "aeo worker" in program.output, PATIENCE, pause=0.1)
        return program

    def start_worker(self, id: str, *more: str, environment: Mapping[str, str] | None = None) -> Program:
        """Start a worker by the very command its tunnel printed."""
        line = next(line for line in self.tunnels[id].output.splitlines() if line.strip().startswith("aeo worker"))
        options = ["--worker-id", id, "--slots", "2", "--local-root", str(self.folder / id)]
        times = ["--poll-interval", str(POLL), "--stop-seconds", str(STOP)]
        # Program gives the token by its variable; the file is what the printed command names.
        arguments = [*shlex.split(line)[1:], *options, *times, *more]
        variables = {**self._path(), **(environment or {}), "AEO_AUTH_TOKEN": ""}
        self.workers[id] = Program(arguments, self.folder, variables, before=self.net.before(id))
        self.programs.append(self.workers[id])
        return self.workers[id]

    @contextmanager
    def db(self) -> Iterator[Db]:
        """See `Stage`."""
        password = (self.shared / "redis" / "password").read_text().strip()
        db = connect(f"redis://:{password}@127.0.0.1:{self._broker.port}/0")
        try:
            yield db
        finally:
            db.close()

    def destroy(self) -> None:
        """See `Stage`."""
        super().destroy()
        self._web.close()
        self._broker.close()

    def _transfer(self, worker: str) -> str:
        return f"rsync://aeo@127.0.0.1:{_RSYNC}/aeo" if worker == "a" else f"ssh://root@127.0.0.1{self.shared}"

    def _path(self) -> dict[str, str]:
        return {"PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def _keys(self, folder: Path) -> None:
        """Keys and settings of ssh that have nothing to do with those of this user."""
        for name in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        (folder / "sshd_config").write_text(
            f"Port 22\nListenAddress 0.0.0.0\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/authorized_keys\n"
            "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "PermitRootLogin prohibit-password\n"
        )
        (folder / "bin").mkdir()
        own = f"-F /dev/null -i {folder}/user_key -o IdentitiesOnly=yes -o UserKnownHostsFile={folder}/known_hosts"
        # A dead line is noticed sooner than a person would want it.
        alive = "-o ServerAliveInterval=3 -o ServerAliveCountMax=2"
        ssh = folder / "bin" / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} {own} {alive} "$@"\n')
        ssh.chmod(0o755)


def _prefix() -> str:
    return f"aeo{os.getpid()}-"


def _name(host: str) -> str:
    return _prefix() + host


def _ip(*arguments: str, check: bool = True) -> str:
    """Run ``ip``; returns what it said."""
    answer = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert not check or answer.returncode == 0, answer.stderr
    return answer.stdout if answer.returncode == 0 else answer.stderr.strip() or "failed"


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")
