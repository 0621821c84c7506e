"""What a machine is, asked in one go, and whether it can be a worker."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from aeo.core.alerts import CLOCK_SECONDS
from aeo.core.condition import Condition, fault, ok, warning
from aeo.core.errors import InputError
from aeo.provision.host import Host
from aeo.provision.steps import StepFailed

#: Below the first nothing can be installed; below the second images of tasks will not fit for long.
LEAST_DISK, LITTLE_DISK = 2 * 1024**3, 20 * 1024**3
#: Networks that Docker's own address pools have room for, about.
POOLS = 30
#: Seconds there and back above which each claim takes its time.
FAR_SECONDS = 0.5
#: Oldest Python that AEO runs on.
OLDEST = (3, 10)

_ASK = r"""
say() { printf '%s=%s\n' "$1" "$2"; }
soon() { if command -v timeout >/dev/null 2>&1; then timeout 15 "$@"; else "$@"; fi; }
PATH="$PATH:/usr/local/bin:/usr/local/sbin:/usr/sbin:/sbin"
say home "$HOME"; say user "$(id -un)"; say uid "$(id -u)"; say path "$PATH"; say login "${SHELL:-}"
say kernel "$(uname -s)"; say machine "$(uname -m)"
say libc "$(getconf GNU_LIBC_VERSION 2>/dev/null || echo other)"
say now "$(date +%s)"
for p in python3 python3.10 python3.11 python3.12 python3.13 python3.14; do
  if command -v $p >/dev/null 2>&1; then
    v=$($p -I -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) && say python "$v $(command -v $p)"
  fi
done
command -v rsync >/dev/null 2>&1 && say rsync "$(rsync --version 2>/dev/null | sed -n 1p)"
command -v uv >/dev/null 2>&1 && say uv "$(uv --version 2>/dev/null)"
for p in apt-get dnf yum apk zypper pacman; do command -v $p >/dev/null 2>&1 && { say packager $p; break; }; done
[ "$(id -u)" = 0 ] || { command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null && say sudo yes; }
say disk "$(df -Pk "$HOME" 2>/dev/null | awk 'NR==2 {print $4}')"
if [ -d /run/systemd/system ]; then
  say systemd yes
  systemctl --user show -p Version >/dev/null 2>&1 && say manager user
fi
if command -v docker >/dev/null 2>&1; then
  say docker there
  v=$(soon docker version -f '{{.Server.Version}}' 2>/dev/null) && [ -n "$v" ] && {
    say engine "$v"
    say networks "$(soon docker network ls -q 2>/dev/null | wc -l)"
    say pools "$(soon docker info -f '{{len .DefaultAddressPools}}' 2>/dev/null)"
    for n in $(soon docker network ls -q 2>/dev/null); do
      soon docker network inspect -f '{{range .IPAM.Config}}{{.Subnet}} {{end}}' "$n" 2>/dev/null
    done | tr ' ' '\n' | sed -n 's/^\([0-9].*\)/subnet=\1/p'
  }
fi
true
"""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a machine said of itself."""

    home: str
    user: str
    uid: int
    #: PATH of a command run by ssh.
    path: str
    kernel: str
    machine: str
    #: ``glibc 2.36``, or ``other``.
    libc: str
    shell: str = ""
    #: Version (``3.11.7``) to path, each a Python that runs.
    pythons: dict[str, str] = field(default_factory=dict)
    rsync: str = ""
    uv: str = ""
    #: Its package manager, and whether we may use it.
    packager: str = ""
    may_install: bool = False
    #: Bytes free where the home is.
    disk: int = 0
    systemd: bool = False
    #: The person's own service manager answers.
    manager: bool = False
    docker: bool = False
    #: The engine's version; "" when it does not answer this user.
    engine: str = ""
    networks: int = 0
    #: Address pools that somebody gave the engine.
    pools: int = 0
    subnets: tuple[str, ...] = ()
    #: Seconds its clock is ahead of ours; seconds there and back.
    ahead: float = 0.0
    trip: float = 0.0

    @property
    def base(self) -> str:
        """Where everything of ours lies there."""
        return f"{self.home}/.local/share/aeo"

    @property
    def alike(self) -> bool:
        """Programs of this machine run there."""
        return (self.kernel, self.machine) == (platform.system(), platform.machine()) and _libc(self.libc) >= _libc(
            " ".join(platform.libc_ver())
        ) > (0,)

    @property
    def service(self) -> str:
        """What keeps a worker running there: ``system``, ``user``, or ``plain`` where there is no service manager."""
        if self.systemd and self.uid == 0:
            return "system"
        return "user" if self.systemd and self.manager else "plain"


def ask(host: Host) -> Facts:
    """Ask a machine what it is.

    Raises:
        StepFailed: it has no shell of ours, or said nothing we know.
    """
    trips = []
    for _ in range(3):
        start = time.monotonic()
        host.run("true")
        trips.append(time.monotonic() - start)
    before = time.time()
    answer = host.run(_ASK, seconds=120)
    found: dict[str, list[str]] = {}
    for line in answer.out.splitlines():
        name, is_one, value = line.partition("=")
        if is_one and name.isidentifier():
            found.setdefault(name, []).append(value.strip())
    if answer.code or not all(name in found for name in ("home", "uid", "machine")):
        raise StepFailed(
            "it has no shell that runs a script", lines=answer.last(), fix="The account needs a POSIX shell (sh)."
        )
    return _facts({name: values[0] for name, values in found.items()}, found, before, min(trips))


def _facts(one: dict[str, str], found: dict[str, list[str]], before: float, trip: float) -> Facts:
    home = one["home"].rstrip("/")
    if not home.startswith("/") or not home.isprintable():
        raise StepFailed(f"its home {home!r} is no absolute path")
    pythons = [text.partition(" ")[::2] for text in found.get("python", [])]
    # Somewhere within the time the script took; a clock that is off by less is none of anybody's worry.
    now, after = float(_number(one.get("now", ""))), time.time()
    ahead = 0.0 if before - 1 <= now <= after else now - (before + after) / 2
    return Facts(
        home=home,
        user=one.get("user", ""),
        uid=_number(one["uid"]),
        path=one.get("path", ""),
        shell=one.get("login", ""),
        kernel=one.get("kernel", ""),
        machine=one["machine"],
        libc=one.get("libc", "other"),
        pythons=dict(reversed(pythons)),
        rsync=" ".join(one.get("rsync", "").split()[:3]),
        uv=one.get("uv", ""),
        packager=one.get("packager", ""),
        may_install=one["uid"] == "0" or "sudo" in one,
        disk=_number(one.get("disk", "")) * 1024,
        systemd="systemd" in one,
        manager="manager" in one,
        docker="docker" in one,
        engine=one.get("engine", ""),
        networks=_number(one.get("networks", "")),
        pools=_number(one.get("pools", "")),
        subnets=tuple(found.get("subnet", ())),
        ahead=ahead,
        trip=trip,
    )


def judge(facts: Facts, slots: int) -> Iterator[Condition]:
    """Whether it can be a worker with so many slots."""
    if facts.kernel != "Linux":
        yield fault("system", f"{facts.kernel or 'unknown'}", "A worker needs Linux.")
    else:
        yield ok("system", f"{facts.kernel} {facts.machine}, {facts.libc}, {facts.user} with {facts.shell or 'sh'}")
    usable = [version for version in facts.pythons if _version(version) >= OLDEST]
    yield ok("python", ", ".join(usable) or "none of its own that AEO runs on; uv gets one")
    yield from _disk(facts)
    yield from _docker(facts, slots)
    if facts.rsync:
        yield ok("rsync", facts.rsync)
    if abs(facts.ahead) > CLOCK_SECONDS:
        yield warning("clock", f"{facts.ahead:+.0f} s from this machine's", "Set it: timedatectl set-ntp true")
    else:
        yield ok("clock", "as here")
    if facts.trip > FAR_SECONDS:
        yield warning("distance", f"{facts.trip:.1f} s there and back", "Trials start late; give it long ones.")
    else:
        yield ok("distance", f"{facts.trip * 1000:.0f} ms there and back")
    if facts.service == "plain":
        yield warning(
            "service",
            "no service manager that this user may use",
            "The worker is kept by a process of ours. After a restart of the machine: aeo background start ID",
        )
    else:
        yield ok("service", f"systemd ({facts.service})")


def _disk(facts: Facts) -> Iterator[Condition]:
    free = f"{facts.disk / 1024**3:.0f} GiB free"
    if facts.disk < LEAST_DISK:
        yield fault("disk", f"{facts.disk / 1024**3:.1f} GiB free in {facts.home}", "Make room: 2 GiB at least.")
    elif facts.disk < LITTLE_DISK:
        yield warning("disk", free, "Images of tasks need some GiB each.")
    else:
        yield ok("disk", free)


def _docker(facts: Facts, slots: int) -> Iterator[Condition]:
    if not facts.docker:
        yield warning("docker", "not installed", "Tasks in containers cannot run there: install Docker Engine.")
    elif not facts.engine:
        fix = f"Start it, and let {facts.user} use it: usermod --append --groups docker {facts.user}"
        yield warning("docker", "the engine does not answer this user", fix)
    elif not facts.pools and facts.networks + 2 * slots > POOLS:
        fix = "Give the engine smaller and more subnets: default-address-pools in /etc/docker/daemon.json."
        yield warning("docker", f"{facts.networks} networks of about {POOLS} that have an address", fix)
    else:
        nets = ", ".join(facts.subnets[:4]) + (", …" if len(facts.subnets) > 4 else "")
        yield ok("docker", f"engine {facts.engine}, {facts.networks} networks" + (f" ({nets})" if nets else ""))


def check_path(text: str) -> str:
    """Return a path of that machine when a service can name it.

    Raises:
        InputError: it cannot.
    """
    if not text.startswith("/") or any(letter in text for letter in " \"'\\%$;\n\t"):
        raise InputError(
            f"{text!r} holds characters that a service cannot name.", fix="Use an account with a plain home."
        )
    return text


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _version(text: str) -> tuple[int, ...]:
    return tuple(_number(part) for part in text.split("."))


def _libc(text: str) -> tuple[int, ...]:
    name, _, version = text.partition(" ")
    return _version(version) if name == "glibc" else (0,)
