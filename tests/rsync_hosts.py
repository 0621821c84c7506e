"""Real ends for transfers on loopback: an rsync daemon with a password, and an sshd with a throw-away key.

Each is ready when its context is entered and gone when it is left. ``missing(...)`` says why one cannot be started.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from programs import free_port
from waiting import eventually

PASSWORD = "correct horse battery staple"


def missing(*programs: str) -> str:
    """Why these programs cannot be used; empty if they can."""
    absent = [name for name in programs if _program(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """An rsync daemon that serves one folder as the module ``aeo``."""

    port: int
    user: str
    pid: int

    @property
    def url(self) -> str:
        return f"rsync://{self.user}@127.0.0.1:{self.port}/aeo"


@dataclass(frozen=True, kw_only=True)
class SshServer:
    """An sshd that lets this user in with one key."""

    port: int
    #: Put it first in PATH: its ``ssh`` is the real one, told to use the key.
    programs: Path

    def url(self, path: Path) -> str:
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}{path}"


@contextlib.contextmanager
def rsync_daemon(
    root: Path, scratch: Path, *, port: int = 0, password: str = PASSWORD, read_only: bool = False, options: str = ""
) -> Iterator[Daemon]:
    """Serve ``root`` as ``rsync://aeo@127.0.0.1:<port>/aeo``; ``options`` are more lines of the module."""
    scratch.mkdir(parents=True, exist_ok=True)
    secrets = scratch / "rsyncd.secrets"
    secrets.write_text(f"aeo:{password}\n")
    secrets.chmod(0o600)
    port = port or free_port()
    config = scratch / "rsyncd.conf"
    identity = f"uid = {os.getuid()}\ngid = {os.getgid()}\n" if os.getuid() == 0 else ""
    config.write_text(
        f"use chroot = no\naddress = 127.0.0.1\nport = {port}\n{identity}"
        f"[aeo]\npath = {root}\nread only = {'yes' if read_only else 'no'}\n"
        f"auth users = aeo\nsecrets file = {secrets}\n{options}\n"
    )
    log = scratch / "rsyncd.log"
    command = ["rsync", "--daemon", "--no-detach", f"--config={config}", f"--log-file={log}"]
    with _running(command, scratch / "rsyncd.out", port, greeting=b"@RSYNCD") as pid:
        yield Daemon(port=port, user="aeo", pid=pid)


@contextlib.contextmanager
def ssh_server(scratch: Path, *, port: int = 0, forced: str = "") -> Iterator[SshServer]:
    """Start an sshd for this user, with new keys below ``scratch``; ``forced`` is the one command the key may run."""
    scratch.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    for name in ("host_key", "user_key"):
        key = scratch / name
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    options = f'restrict,command="{forced}" ' if forced else ""
    (scratch / "authorized_keys").write_text(options + (scratch / "user_key.pub").read_text())
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    config = scratch / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {scratch}/host_key\n"
        f"AuthorizedKeysFile {scratch}/authorized_keys\nPidFile none\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
    )
    programs = _ssh_program(scratch)
    command = [str(_program("sshd")), "-D", "-e", "-f", str(config)]
    with _running(command, scratch / "sshd.log", port, greeting=b"SSH-"):
        yield SshServer(port=port, programs=programs)


def _ssh_program(scratch: Path) -> Path:
    """An ``ssh`` that uses the throw-away key and leaves this user's own files alone."""
    programs = scratch / "bin"
    programs.mkdir()
    ssh = programs / "ssh"
    real = shlex.quote(str(shutil.which("ssh")))
    ssh.write_text(
        f"#!/bin/sh\nexec {real} -F /dev/null -i {shlex.quote(str(scratch / 'user_key'))} -o IdentitiesOnly=yes"
        f' -o UserKnownHostsFile={shlex.quote(str(scratch / "known_hosts"))} "$@"\n'
    )
    ssh.chmod(0o755)
    return programs


@contextlib.contextmanager
def _running(command: list[str], output: Path, port: int, *, greeting: bytes) -> Iterator[int]:
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, text=False
        )
    try:
        eventually(lambda: process.poll() is not None or _greets(port, greeting), 20)
        if process.poll() is not None:
            pytest.fail(f"{command[0]} ended: {output.read_text()}")
        yield process.pid
    finally:
        # With its whole group: it forks a child for each connection.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _greets(port: int, greeting: bytes) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        return connection.recv(len(greeting)) == greeting
    return False


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")
