"""One ssh connection to a machine, shared by all that is done there.

Plain ``ssh``: ``~/.ssh/config``, agent and known hosts count as in a shell. Nothing is asked for. Scripts and secrets
go by standard input, since arguments can be read by everyone on either machine.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from aeo.core.errors import InputError, Unavailable
from aeo.executors.process import die_with_parent
from aeo.provision.steps import reasons
from aeo.tunnel import TARGET

#: Seconds to reach a machine, and for a command if nothing else is said.
REACH_SECONDS, COMMAND_SECONDS = 15.0, 60.0
#: Lines shown of a command that failed.
LAST_LINES = 6
#: Bytes kept of what a command says.
MOST_SAID = 4 * 1024 * 1024
#: Seconds for its last words once it has ended.
_PIPE_SECONDS = 10.0


class Unreached(Unavailable):
    """The machine cannot be reached by ssh."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    def last(self) -> tuple[str, ...]:
        """The last lines of its errors, or of its output where it wrote none."""
        lines = map(_plain, reasons((self.err.strip() or self.out.strip()).splitlines()))
        return tuple(line for line in lines if line)[-LAST_LINES:]


@dataclass(frozen=True, kw_only=True)
class Host:
    """A connected machine."""

    target: str
    #: 0: as ssh says.
    port: int
    control: Path

    def run(self, script: str, *, seconds: float = COMMAND_SECONDS) -> Answer:
        """Run a POSIX shell script there.

        Raises:
            Unavailable: it took longer, or the connection is gone.
        """
        # As one group it is read to its end before it runs, and no command of it reads the rest as its input.
        return self._ssh("sh -s", f"{{\n{script}\n}} </dev/null\n".encode(), seconds)

    def send(self, source: Path, target: str, *, seconds: float = 900.0) -> Answer:
        """Put a file there, whole or not at all; its folder is made."""
        with source.open("rb") as file:
            return self._ssh(_receive(target, "022"), file.read(), seconds)

    def write(self, text: str, target: str) -> Answer:
        """Put a text there that only its owner may read."""
        return self._ssh(_receive(target, "077"), text.encode(), COMMAND_SECONDS)

    def _ssh(self, command: str, given: bytes, seconds: float) -> Answer:
        words = ["ssh", "-S", str(self.control), "-T", *_OPTIONS, *_port(self.port), self.target, command]
        code, out, err = _run(words, given, seconds)
        if code == 255:
            lines = err.strip().splitlines()
            raise Unreached(_plain(lines[-1]) if lines else "the connection ended")
        return Answer(code=code, out=out, err=err)


def _run(command: Sequence[str], given: bytes, seconds: float) -> tuple[int, str, str]:
    """Run a command; its exit code and the end of what it said, as another machine may say any amount.

    Raises:
        Unavailable: it took longer.
    """
    out, err = bytearray(), bytearray()
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=_environment()) as process:
        pipes = ((_give, process.stdin, given), (_take, process.stdout, out), (_take, process.stderr, err))
        threads = [threading.Thread(target=do, args=rest, daemon=True) for do, *rest in pipes]
        for thread in threads:
            thread.start()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"no end within {seconds:.0f} s") from None
        finally:
            process.kill()
            for thread in threads:
                thread.join(_PIPE_SECONDS)
    return process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def _give(pipe: IO[bytes], given: bytes) -> None:
    with suppress(OSError), pipe:
        pipe.write(given)


def _take(pipe: IO[bytes], found: bytearray) -> None:
    with suppress(OSError, ValueError):
        while chunk := pipe.read1(65536):  # type: ignore[attr-defined]
            found += chunk
            del found[:-MOST_SAID]


#: Nobody is there to answer; a line that is dead is noticed within 45 s.
_OPTIONS = (
    "-o",
    "BatchMode=yes",
    "-o",
    "ServerAliveInterval=15",
    "-o",
    "ServerAliveCountMax=3",
    "-o",
    "LogLevel=ERROR",
)


#: What also a proxy that ``~/.ssh/config`` names may need.
_PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"),
    *("SSH_AUTH_SOCK", "SSH_AGENT_PID", "KRB5CCNAME", "KRB5_CONFIG", "DBUS_SESSION_BUS_ADDRESS"),
)


@contextmanager
def connect(target: str, port: int = 0) -> Iterator[Host]:
    """Reach a machine; the connection is closed when the context is left.

    Raises:
        InputError: the target is none, or there is no ssh here.
        Unreached: it cannot be reached, or lets nobody in.
    """
    check_target(target)
    if shutil.which("ssh") is None:
        raise InputError("ssh is not installed on this machine.", fix="Install the package openssh-client.")
    # A socket's path may have about 100 letters, which some TMPDIR leaves no room for.
    folder = Path(tempfile.mkdtemp(prefix="aeo-", dir="/tmp"))
    control = folder / "s"
    said = folder / "said"
    try:
        with said.open("wb") as errors:
            master = subprocess.Popen(
                ["ssh", "-M", "-N", "-T", "-S", str(control), *_OPTIONS, *_asked(target, port), *_port(port), target],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=_environment(),
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        try:
            _await(master, control, said)
            yield Host(target=target, port=port, control=control)
        finally:
            master.terminate()
            with suppress(subprocess.TimeoutExpired):
                master.wait(5)
            if master.poll() is None:
                master.kill()
                master.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_target(target: str) -> str:
    """Return ``target`` when it is ``[USER@]HOST``.

    Raises:
        InputError: it is not; what begins with a dash would be an option of ssh.
    """
    if not TARGET.fullmatch(target):
        raise InputError(f"{target[:80]!r} is not [USER@]HOST.", field="USER@HOST")
    return target


def quoted(*words: str) -> str:
    """Words as a shell reads them."""
    return " ".join(map(shlex.quote, words))


def _await(master: subprocess.Popen[bytes], control: Path, said: Path) -> None:
    until = time.monotonic() + REACH_SECONDS + 5
    while not control.exists():
        ended = master.poll() is not None
        if ended or time.monotonic() > until:
            lines = [_plain(line) for line in said.read_text("utf-8", "replace").splitlines() if line.strip()]
            raise Unreached(" | ".join(lines[-3:]) or ("ssh ended" if ended else "no answer"))
        time.sleep(0.03)


def _asked(target: str, port: int) -> list[str]:
    """What is set here only where ``~/.ssh/config`` sets nothing else."""
    answer = subprocess.run(
        ["ssh", "-G", *_port(port), target], capture_output=True, text=True, timeout=20, env=_environment(), check=False
    )
    found = dict(line.partition(" ")[::2] for line in answer.stdout.splitlines())
    options = []
    if found.get("stricthostkeychecking", "ask") == "ask":
        # As nobody can be asked: a key seen for the first time is kept, a changed one is refused.
        options += ["-o", "StrictHostKeyChecking=accept-new"]
    if found.get("connecttimeout", "none") in ("none", "0"):
        options += ["-o", f"ConnectTimeout={REACH_SECONDS:.0f}"]
    return options


def _receive(target: str, mask: str) -> str:
    folder, draft = target.rpartition("/")[0], f"{target}.new"
    script = (
        f"umask {mask} && mkdir -p {shlex.quote(folder)} && rm -f {shlex.quote(draft)} && cat > {shlex.quote(draft)}"
        f" && mv -f {shlex.quote(draft)} {shlex.quote(target)}"
    )
    return f"sh -c {shlex.quote(script)}"


def _port(port: int) -> list[str]:
    return ["-p", str(port)] if port else []


def _environment() -> dict[str, str]:
    """What ssh and its agent need; what else stands in this environment may be secrets of trials."""
    return {name: os.environ[name] for name in _PASSED if name in os.environ} | {"LC_ALL": "C"}


def _plain(line: str) -> str:
    return "".join(letter for letter in line.strip() if letter.isprintable())[:400]
