"""An environment of its own for each peer, made once by uv and kept in a cache folder."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from uv import find_uv_bin

#: Seconds an installation may take.
INSTALL_SECONDS = 900
_DONE = "complete.json"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Another system and what it needs."""

    #: As people call it.
    title: str
    #: The distribution whose version is told.
    package: str
    #: What uv installs: also what the peer imports and does not declare, or which broke it since.
    requirements: tuple[str, ...]
    #: Its program, beside us in ``peers``.
    program: str
    environment: tuple[tuple[str, str], ...] = ()


PEERS: Mapping[str, Peer] = {
    "agentscope": Peer(
        title="AgentScope RayEvaluator",
        package="agentscope",
        requirements=("agentscope==1.0.21", "ray>=2.49,<3", "mcp<2", "sqlalchemy[asyncio]", "tqdm"),
        program="agentscope_ray.py",
        environment=(("RAY_USAGE_STATS_ENABLED", "0"),),
    ),
    "inspect": Peer(
        title="Inspect AI",
        package="inspect-ai",
        requirements=("inspect-ai>=0.3,<0.4",),
        program="inspect_eval.py",
    ),
}


def cache() -> Path:
    """Where environments are kept: ``AEO_BENCH_CACHE``, or a folder of the user's cache."""
    given = os.environ.get("AEO_BENCH_CACHE")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "aeo-bench")
    base.mkdir(parents=True, exist_ok=True)
    return base


def python_of(name: str) -> Path:
    """A peer's Python, in an environment that is made if it is not there.

    Raises:
        RuntimeError: it cannot be made; the message is uv's.
    """
    peer = PEERS[name]
    folder = cache() / name
    python = folder / "bin" / "python"
    with _alone(cache() / f".{name}.lock"):
        if not made(name):
            print(f"making an environment for {peer.title} in {folder}", file=sys.stderr, flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            _uv("venv", "--python", sys.executable, str(folder))
            _uv("pip", "install", "--python", str(python), *peer.requirements)
            (folder / _DONE).write_text(json.dumps(peer.requirements))
    return python


def made(name: str) -> bool:
    """Whether a peer's environment is there."""
    return _made(cache() / name) == list(PEERS[name].requirements)


def versions(name: str) -> dict[str, str]:
    """What a peer's environment holds, as far as it matters here."""
    wanted = {"agentscope": ("agentscope", "ray"), "inspect": ("inspect-ai",)}[name]
    code = (
        "import sys,json;from importlib.metadata import version as v;print(json.dumps({n:v(n) for n in sys.argv[1:]}))"
    )
    answer = subprocess.run([python_of(name), "-c", code, *wanted], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(answer.stdout)
    return found


def _made(folder: Path) -> object:
    try:
        return json.loads((folder / _DONE).read_text())
    except (OSError, ValueError):
        return None


def _uv(*arguments: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "UV_PYTHON")}
    command = [find_uv_bin(), "-q", *arguments]
    try:
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"uv {arguments[0]} failed: {error.stderr.strip()[-2000:]}") from None


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
