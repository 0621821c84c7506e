"""Running rsync: by argument list, without a terminal, its end put into words."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from aeo.core.errors import TransferFailed
from aeo.transfer.remote import Remote

#: Seconds without any data until rsync gives up, and to reach a daemon or an ssh server.
QUIET_SECONDS = 60
CONNECT_SECONDS = 10

#: Times and modes travel; owners, links and devices are not asked for, so rsync drops them. Files become 0644, or 0755
#: if anyone may run them; a task's scripts and their modes are part of its image.
RULES = ("--times", "--perms", "--chmod=D0755,Fugo-st,Fu=rwX,Fgo=rX", f"--timeout={QUIET_SECONDS}")

#: No prompt can be answered here. A host key seen for the first time is kept, a changed one is refused.
_SSH = (
    "ssh -a -x -o BatchMode=yes"
    f" -o ConnectTimeout={CONNECT_SECONDS} -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
    " -o StrictHostKeyChecking=accept-new"
)

#: Usage, versions, unsupported, refused by the daemon; the remote shell found no rsync (126, 127).
_PERMANENT_CODES = frozenset({1, 2, 4, 5, 126, 127})
#: Any code: as the other side says it (rsync does not translate; ours is told to speak C).
_PERMANENT_WORDS = (
    "Permission denied",
    "No such file or directory",
    "Read-only file system",
    "Host key verification failed",
    "command not found",
    "rsync: not found",
)
#: The last: what listens there is a tunnel, and the daemon behind it is away.
_TEMPORARY_WORDS = ("max connections", "try again later", "did not see server greeting")
#: rsync(1): "Error in file I/O", as of a folder that cannot be made.
_FILE_ERROR = 11
_NO_RSYNC_THERE = ("rsync: command not found", "rsync: not found", "command not found: rsync")
#: No shell makes anything else of such a path.
_SIMPLE = re.compile(r"[A-Za-z0-9/._+=@-]*")
_LAST_BYTES = 4096
_LAST_LINES = 4


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run of rsync ended."""

    #: rsync's exit code; negative: killed by that signal.
    code: int
    #: The last lines it wrote as errors, without the password.
    text: str

    @property
    def no_parent(self) -> bool:
        """Whether a folder on the way may be missing on the other side."""
        # What the other side says goes the way of the files, and can be lost when it hangs up right after it.
        lost = self.code == _FILE_ERROR and not self.text
        return lost or (self.code != 0 and "No such file or directory" in self.text)

    @property
    def permanent(self) -> bool:
        """Whether the same call would fail again."""
        if any(words in self.text for words in _TEMPORARY_WORDS):
            return False
        return self.code in _PERMANENT_CODES or any(words in self.text for words in _PERMANENT_WORDS)

    def check(self, what: str) -> None:
        """Raise TransferFailed unless it ended well; ``what`` begins the message ("could not ...")."""
        if self.code == 0:
            return
        how = f"rsync was killed by signal {-self.code}" if self.code < 0 else f"rsync ended with code {self.code}"
        hint = " Install the package rsync there." if any(words in self.text for words in _NO_RSYNC_THERE) else ""
        raise TransferFailed(f"{what}: {how}: {self.text or 'it said nothing'}{hint}", permanent=self.permanent)


def installed() -> bool:
    """Whether this machine has rsync."""
    return shutil.which("rsync") is not None


def run(remote: Remote, arguments: Sequence[str], *, password: str = "", listed: bytes = b"") -> Ending:
    """Run rsync to its end; ``listed`` is its standard input.

    Raises:
        TransferFailed: a program is missing on this machine (permanent).
    """
    command = ["rsync", *_reach(remote), *arguments]
    with tempfile.TemporaryFile() as names, tempfile.TemporaryFile() as errors:
        names.write(listed)
        names.seek(0)
        process = subprocess.Popen(
            command,
            stdin=names,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=_environment(password if remote.kind == "rsync" else ""),
            start_new_session=True,  # no terminal to ask on, and one group to end
        )
        try:
            code = process.wait()
        finally:
            _end(process)
        size = errors.seek(0, os.SEEK_END)
        errors.seek(max(0, size - _LAST_BYTES))
        return Ending(code=code, text=_last(errors.read(), password))


def _reach(remote: Remote) -> list[str]:
    """Options for this kind of address.

    Raises:
        TransferFailed: a program is missing on this machine (permanent).
    """
    _need("rsync", "rsync")
    if remote.kind == "local":
        return []
    # Only for paths that need it: rsync's restricted shell (rrsync) refuses the option.
    protect = [] if _SIMPLE.fullmatch(remote.path) else ["--protect-args"]
    if remote.kind == "rsync":
        return [f"--contimeout={CONNECT_SECONDS}", *protect]
    _need("ssh", "openssh-client")
    return ["-e", f"{_SSH} -p {remote.port}" if remote.port else _SSH, *protect]


def _need(program: str, package: str) -> None:
    if shutil.which(program) is None:
        raise TransferFailed(
            f"{program} is not installed on this machine. Install the package {package}.", permanent=True
        )


def _environment(password: str) -> dict[str, str]:
    """Ours without our secrets; an empty password is set too, or rsync would ask for one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AEO_")}
    return {**kept, "LC_ALL": "C", "RSYNC_PASSWORD": password}


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
            return


def _last(raw: bytes, password: str) -> str:
    lines = [line.strip() for line in raw.decode("utf-8", "replace").splitlines() if line.strip()]
    text = " | ".join(lines[-_LAST_LINES:])
    if password:
        text = text.replace(password, "***")
    return "".join(letter if letter.isprintable() else "?" for letter in text)
