"""Finds the Python that has Harbor, and makes one when there is none.

In this order: ``AEO_HARBOR_PYTHON``; the ``harbor`` command on PATH, if it is the pinned version; an environment made
here earlier; a new one, from any Python >= 3.12 of this machine, else from one that uv fetches.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from aeo.core.errors import Unavailable

log = logging.getLogger(__name__)

#: The one version this executor is built against: it stands on more than Harbor's public interface.
HARBOR_VERSION = "0.26.0"
#: Oldest Python that Harbor runs on.
OLDEST = (3, 12)
#: Seconds a Python gets to say what it is.
_PROBE_SECONDS = 20.0
#: Seconds the installation may take.
_INSTALL_SECONDS = 900.0
_PROBE = (
    "import sys; from importlib import metadata as m\n"
    "try: v = m.version('harbor')\n"
    "except m.PackageNotFoundError: v = ''\n"
    "print('%d.%d' % sys.version_info[:2], v or '-')"
)
#: What is said when something cannot be fetched, with what that means; a certificate is a connection, too.
_NETWORK = (
    (
        ("certificate", "unknownissuer", "tls handshake", "ssl error"),
        "This machine does not trust the certificate of what it fetches from: if a proxy puts in its own, name that "
        "authority's file in SSL_CERT_FILE.",
    ),
    (
        (
            *("dns error", "error sending request", "connect error", "connection refused", "timed out"),
            *("failed to fetch", "no route to host", "network is unreachable"),
        ),
        "The index of packages cannot be reached from this machine: see its network, or name a proxy in HTTPS_PROXY.",
    ),
)
_DONE = "aeo-complete"
#: Which Python is used is said by our arguments alone; these would contradict them, or lead uv's Python astray.
_NOT_FOR_UV = (
    *("UV_PYTHON", "UV_PYTHON_PREFERENCE", "UV_MANAGED_PYTHON", "UV_NO_MANAGED_PYTHON"),
    *("VIRTUAL_ENV", "PYTHONHOME"),
)


@dataclass(frozen=True, kw_only=True)
class HarborPython:
    """A Python that can import Harbor."""

    path: Path
    #: Harbor's version there.
    version: str


def plugin_path() -> Path:
    """The folder that makes ``import aeo_harbor`` work when it is on PYTHONPATH."""
    return Path(__file__).parent / "inside"


def harbor_python(*, create: bool = True, progress: Callable[[str], None] | None = None) -> HarborPython:
    """Find Harbor's Python; make an environment when there is none and ``create`` is true.

    ``progress`` is told, in a line for people, before something that takes long.

    Raises:
        Unavailable: there is none and none can be made; one line says what to do.
    """
    explicit = os.environ.get("AEO_HARBOR_PYTHON")
    if explicit:
        found = probe(Path(explicit))
        if found is None or not found[1]:
            raise Unavailable(f"AEO_HARBOR_PYTHON={explicit} cannot run or has no Harbor.")
        return HarborPython(path=Path(explicit), version=found[1])
    for path in _installed():
        found = probe(path)
        if found is not None and found[1] == HARBOR_VERSION:
            return HarborPython(path=path, version=HARBOR_VERSION)
    if not create:
        raise Unavailable(f"Harbor {HARBOR_VERSION} is not installed: set AEO_HARBOR_PYTHON to a Python that has it.")
    return _make(progress or log.info)


def _installed() -> Iterator[Path]:
    command = shutil.which("harbor")
    if command is not None:
        interpreter = shebang(Path(command))
        if interpreter is not None:
            yield interpreter
    environment = environment_path()
    if (environment / _DONE).is_file():
        _show_plugin(environment)
        yield environment / "bin" / "python"


def shebang(script: Path) -> Path | None:
    """The interpreter a script names in its first lines; None if it names none."""
    try:
        head = script.read_bytes()[:1024].decode(errors="replace").splitlines()
    except OSError:
        return None
    if not head or not head[0].startswith("#!"):
        return None
    words = head[0][2:].split()
    if words[:1] == ["/usr/bin/env"]:
        found = shutil.which(words[-1])
        return Path(found) if found else None
    if words[:1] == ["/bin/sh"] and len(head) > 1 and head[1].startswith("'''exec'"):
        # How installers write a long path.
        words = [head[1].removeprefix("'''exec'").split('"$0"')[0].strip().strip("\"'")]
    return Path(words[0]) if words and words[0] else None


def environment_path() -> Path:
    """Where the environment made here lies: ``$AEO_CACHE`` or the user's cache folder."""
    base = os.environ.get("AEO_CACHE")
    if not base:
        base = str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "aeo"))
    return Path(base).expanduser().absolute() / f"harbor-{HARBOR_VERSION}"


def probe(python: Path) -> tuple[tuple[int, int], str] | None:
    """Run a Python and ask its version and Harbor's ("" without Harbor); None when it does not run.

    Only running it tells: a pyenv shim can be on PATH and lead nowhere.
    """
    try:
        changed = python.stat().st_mtime_ns
    except OSError:
        return None
    return _probe(python, changed)


@lru_cache(maxsize=64)
def _probe(python: Path, _changed: int) -> tuple[tuple[int, int], str] | None:
    try:
        # Apart from our own: a PYTHONPATH of this process would show it packages it does not have.
        answer = subprocess.run(
            [str(python), "-I", "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
        number, version = answer.stdout.split()
        major, minor = number.split(".")
        return (int(major), int(minor)), "" if version == "-" else version
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def candidates() -> Iterator[Path]:
    """Pythons that may be new enough, best first; whether they run is not known."""
    for name in ("python3.12", "python3.13", "python3.14", "python3", "python"):
        found = shutil.which(name)
        if found:
            yield Path(found)
    yield from sorted(Path.home().glob(".pyenv/versions/*/bin/python3"))
    shared = Path(os.environ.get("PYENV_ROOT") or "/nonexistent")
    yield from sorted(shared.glob("versions/*/bin/python3"))
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    yield from sorted(data.glob("uv/python/*/bin/python3"))


def new_enough() -> Path | None:
    """The first Python of this machine that runs and is new enough."""
    for path in candidates():
        found = probe(path)
        if found is not None and found[0] >= OLDEST:
            return path
    return None


def _make(progress: Callable[[str], None]) -> HarborPython:
    target = environment_path()
    python = target / "bin" / "python"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.with_name(target.name + ".lock")):
            if not (target / _DONE).is_file():
                progress(f"getting Harbor {HARBOR_VERSION} (once, into {target}) ...")
                _install(target, python)
    except OSError as error:
        raise Unavailable(f"Harbor cannot be installed into {target}: {error.strerror}.") from error
    found = probe(python)
    if found is None or found[1] != HARBOR_VERSION:
        (target / _DONE).unlink(missing_ok=True)
        raise Unavailable(f"The Harbor environment in {target} does not run; remove it and try again.")
    return HarborPython(path=python, version=HARBOR_VERSION)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process makes the environment, the others wait; the lock goes with its holder, whatever happens to it."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(target: Path, python: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    base = new_enough()
    source = ["--python", str(base)] if base else ["--managed-python", "--python", f"{OLDEST[0]}.{OLDEST[1]}"]
    _uv("venv", *source, "--no-project", str(target))
    _uv("pip", "install", "--python", str(python), f"harbor=={HARBOR_VERSION}")
    _show_plugin(target)
    (target / _DONE).touch()


def _uv(*arguments: str) -> None:
    try:
        import uv

        command = [uv.find_uv_bin(), *arguments, "--quiet", "--no-config"]
        answer = subprocess.run(
            command,
            env={name: value for name, value in os.environ.items() if name not in _NOT_FOR_UV},
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (ImportError, FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise Unavailable(_advice(str(error))) from error
    if answer.returncode != 0:
        raise Unavailable(_advice(answer.stderr))


def _advice(reason: str) -> str:
    cause = next((words for signs, words in _NETWORK if any(sign in reason.lower() for sign in signs)), "")
    reason = " ".join(reason.split())[:400]
    if cause:
        return (
            f"{cause} So Harbor {HARBOR_VERSION} cannot be fetched ({reason}). Or set AEO_HARBOR_PYTHON to a Python "
            "that has it."
        )
    return (
        f"Harbor {HARBOR_VERSION} is not here and cannot be installed ({reason}): install Python >= 3.12, or set "
        "AEO_HARBOR_PYTHON to a Python that has it."
    )


def _show_plugin(environment: Path) -> None:
    """Let the environment's own ``harbor`` command import our host environment, for ``harbor job resume``."""
    for packages in environment.glob("lib/python3*/site-packages"):
        pth, text = packages / "aeo_harbor.pth", f"{plugin_path()}\n"
        with suppress(OSError):
            if not pth.is_file() or pth.read_text() != text:
                draft = pth.with_name(f"{pth.name}.{os.getpid()}")
                draft.write_text(text)
                draft.replace(pth)
