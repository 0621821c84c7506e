"""The Docker engine that Harbor's trials run in: whether it can, and what dead trials left in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aeo.core.condition import Condition, fault, ok, warning
from aeo.core.words import count
from aeo.executors.harbor import leftovers

#: Networks of an engine that was told of no address pools: fifteen of 172.16.0.0/12, sixteen of 192.168.0.0/16.
USUAL_NETWORKS = 31
#: Seconds one docker command gets.
_SECONDS = 20.0
_MOST_NAMED = 10
_PROJECT = re.compile(r".+(__env|__verifier__.*)")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a docker command said."""

    code: int
    out: str
    error: str


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine, asked."""

    installed: bool = True
    #: Why it does not answer; empty if it does.
    error: str = ""
    version: str = ""
    compose: str = ""
    #: Networks its address pools have room for, and those it has.
    pools: int = USUAL_NETWORKS
    networks: int = 0
    #: Where it keeps everything.
    root: str = ""
    images: int = 0
    #: Containers of trials that no session has any more: short ids.
    orphans: tuple[str, ...] = ()


def ask(*arguments: str) -> Answer:
    """Run a docker command that only asks."""
    try:
        done = subprocess.run(
            ["docker", *arguments], capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        return Answer(code=127, out="", error="docker is not installed")
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        return Answer(code=1, out="", error=f"docker does not answer: {type(error).__name__}")
    return Answer(code=done.returncode, out=done.stdout, error=" ".join(done.stderr.split()))


def measure(local_root: Path) -> Engine:
    """Ask the engine of this machine."""
    if shutil.which("docker") is None:
        return Engine(installed=False)
    answer = ask("info", "--format", "{{json .}}")
    told = _json(answer.out)
    errors = told.get("ServerErrors") or []
    if answer.code != 0 or errors:
        return Engine(error=answer.error or "; ".join(map(str, errors)) or "it says nothing")
    compose = ask("compose", "version", "--short")
    return Engine(
        version=str(told.get("ServerVersion", "")),
        compose=compose.out.strip() if compose.code == 0 else "",
        pools=room(told.get("DefaultAddressPools")),
        networks=len(ask("network", "ls", "--quiet", "--filter", "driver=bridge").out.split()),
        root=str(told.get("DockerRootDir", "")),
        images=int(told.get("Images") or 0),
        orphans=tuple(orphans(local_root)),
    )


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def room(pools: Sequence[Mapping[str, Any]] | None) -> int:
    """How many networks address pools have room for."""
    if not pools:
        return USUAL_NETWORKS
    total = 0
    for pool in pools:
        prefix = str(pool.get("Base", "")).partition("/")[2]
        size = int(pool.get("Size") or 0)
        if prefix.isdigit() and size >= int(prefix):
            total += 1 << min(size - int(prefix), 30)
    return total


def orphans(local_root: Path) -> Iterator[str]:
    """Ids of containers that were started from this worker's folders, for trials that no session has any more."""
    root = local_root.resolve()
    live = leftovers.live_trials(root / "batches")
    for container, project, started_from in leftovers.labelled("ps", "ID", "--all"):
        ours = bool(started_from) and Path(started_from).is_relative_to(root) and _PROJECT.fullmatch(project)
        if ours and not any(leftovers.is_project_of(project, trial) for trial in live):
            yield container


def judge(engine: Engine, slots: int) -> Iterator[Condition]:
    """Judge what was found, for so many trials at once."""
    if not engine.installed:
        text = "it is not installed: trials in Harbor's docker environment cannot run, those of others can"
        yield warning("docker", text, "Install Docker Engine with its compose plugin, and let this user use it.")
    elif engine.error:
        yield fault("docker", *_away(engine.error))
    else:
        yield ok("docker", f"engine {engine.version}")
        yield _compose(engine)
        yield _pools(engine, slots)
        yield ok("images", f"{engine.images} of the engine")
        yield _orphans(engine.orphans)


def _away(error: str) -> tuple[str, str]:
    if "permission denied" in error.lower():
        return (
            "this user may not use the engine's socket",
            "`usermod -aG docker USER` and sign in anew (whoever is in that group is as good as root).",
        )
    found = re.search(r"(?:unix|tcp)://[^\s.?]+(?:\.[^\s.?]+)*", error)
    place = found.group(0).rstrip(":;,") if found else "its socket"
    return (
        f"the engine does not answer at {place}",
        "Start it (`systemctl start docker`); in a container, mount its socket; or correct DOCKER_HOST.",
    )


def _compose(engine: Engine) -> Condition:
    if engine.compose:
        return ok("compose", engine.compose)
    fix = "Install the package docker-compose-plugin (`docker compose version` must work)."
    return fault("compose", "the engine's compose plugin is missing: no trial in docker can start", fix)


def _pools(engine: Engine, slots: int) -> Condition:
    free = engine.pools - engine.networks
    text = f"{max(free, 0):,} networks free of {engine.pools:,} in the engine's address pools"
    fix = (
        'Give it small networks: "default-address-pools": [{"base": "172.20.0.0/14", "size": 24}] in '
        "/etc/docker/daemon.json (a base this network does not use), and restart it; "
        "`docker network prune` removes those nothing uses."
    )
    if free < 1:
        return fault("address pools", f"{text}: no trial in docker can start", fix)
    if free < 2 * slots:
        return warning("address pools", f"{text}, and {count(slots, 'slot')} may need {2 * slots}", fix)
    return ok("address pools", text)


def _orphans(found: Iterable[str]) -> Condition:
    names = tuple(found)
    if not names:
        return ok("orphans", "no container of a dead trial")
    shown = " ".join(names[:_MOST_NAMED])
    return fault(
        "orphans", f"{count(len(names), 'container')} of dead trials: {shown}", f"docker rm --force --volumes {shown}"
    )
