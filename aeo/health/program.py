"""Programs that AEO starts, and the Python it runs in."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aeo.core.condition import Condition, fault, ok

#: The oldest Python AEO runs on.
OLDEST = (3, 10)
#: Program to the package that has it, and what does not go without it.
RSYNC, SSH = ("rsync", "results do not come home, tasks do not get here"), ("ssh", "ssh:// and tunnels do not work")
_PACKAGES: Mapping[str, str] = {"rsync": "rsync", "ssh": "openssh-client"}


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program on PATH."""

    name: str
    #: Empty if there is none.
    path: str
    #: What does not go without it.
    without: str


def measure(name: str, without: str) -> Program:
    """Look for a program on PATH."""
    return Program(name=name, path=shutil.which(name) or "", without=without)


def judge(program: Program) -> Condition:
    """Judge whether it is there."""
    if program.path:
        return ok(program.name, program.path)
    package = _PACKAGES.get(program.name, program.name)
    return fault(
        program.name,
        f"{program.name} is not on PATH: {program.without}",
        f"Install the package {package} (`apt-get install {package}`), or put it on the PATH of the service.",
    )


def python(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Iterator[Condition]:
    """Judge the Python we run in."""
    shown = ".".join(map(str, version))
    if version[:2] < OLDEST:
        yield fault("python", f"Python {shown} is too old", f"Install Python {OLDEST[0]}.{OLDEST[1]} or newer.")
    else:
        yield ok("python", shown)
