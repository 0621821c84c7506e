"""What a machine needs before a worker can run there: rsync, uv, AEO, its executors."""

from __future__ import annotations

import gzip
import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from aeo import __version__, executors
from aeo.core.errors import InputError
from aeo.provision import wheels
from aeo.provision.facts import OLDEST
from aeo.provision.host import quoted
from aeo.provision.steps import Done, StepFailed
from aeo.provision.visit import Visit, check
from aeo.rsyncd import modules
from aeo.transfer import remote

#: Seconds for what fetches or unpacks much.
_LONG = 1800.0
#: Libraries that belong to the system's own loader.
_OF_SYSTEM = re.compile(r"(ld-linux|linux-vdso|libc\.|libm\.|libpthread|libdl\.|librt\.)")
#: The Python that runs here.
_EXACTLY = platform.python_version()
_OURS = f"{sys.version_info[0]}.{sys.version_info[1]}"


def needs_rsync(visit: Visit) -> bool:
    """Whether results travel by rsync."""
    url = modules.way(visit.site.config, visit.site.shared)
    return bool(url) and remote.parse(url).kind != "local"


def look_rsync(visit: Visit) -> str:
    """Whether rsync is there."""
    if not needs_rsync(visit):
        return "not needed"
    return visit.facts.rsync or visit.asks(f"{quoted(visit.base)}/bin/rsync --version | sed -n 1p")


def get_rsync(visit: Visit) -> Done:
    """Send the rsync of this machine, where programs of this machine run there; else install a package."""
    place = f"{visit.base}/bin/rsync"
    if visit.facts.alike and _send_rsync(visit, place):
        return Done(text="sent from here", notes=("It is a copy; updates of that system do not reach it.",))
    packager = visit.facts.packager
    fix = f"Install the package rsync on {visit.machine.target}."
    if not (packager and visit.facts.may_install) or visit.machine.offline:
        raise StepFailed("there is no rsync, and this account may not install it", fix=fix)
    visit.sh(_installing(packager, visit.facts.uid), "rsync cannot be installed", fix=fix, seconds=600)
    return Done(text=f"installed by {packager}")


def _installing(packager: str, uid: int) -> str:
    sudo = "" if uid == 0 else "sudo -n "
    return {
        "apt-get": f"{sudo}apt-get update -q && {sudo}apt-get install -qy --no-install-recommends rsync",
        "apk": f"{sudo}apk add rsync",
        "pacman": f"{sudo}pacman -Sy --noconfirm rsync",
        "zypper": f"{sudo}zypper --non-interactive install rsync",
    }.get(packager, f"{sudo}{packager} -y install rsync")


def _send_rsync(visit: Visit, place: str) -> bool:
    """Send rsync and its libraries; whether it runs there."""
    own = shutil.which("rsync")
    if own is None:
        return False
    linked = subprocess.run(["ldd", own], capture_output=True, text=True, check=False, timeout=20).stdout
    found = [Path(line.split("=>")[1].split()[0]) for line in linked.splitlines() if "=> /" in line]
    folder = f"{visit.base}/lib/rsync"
    for path in (Path(own), *(path for path in found if not _OF_SYSTEM.match(path.name))):
        check(visit.host.send(path.resolve(), f"{folder}/{path.name}"), f"{path.name} cannot be sent")
    text = f'#!/bin/sh\nLD_LIBRARY_PATH={folder} exec {folder}/rsync "$@"\n'
    check(visit.host.write(text, place), "rsync cannot be sent")
    answer = visit.host.run(f"chmod 755 {quoted(place, f'{folder}/rsync')} && {quoted(place)} --version")
    if answer.code:
        visit.host.run(f"rm -rf {quoted(place, folder)}")
    return answer.code == 0


def look_uv(visit: Visit) -> str:
    """Whether the uv of this machine is there."""
    said = visit.asks(f"{quoted(visit.base)}/bin/uv --version")
    return said if said.split()[:2] == ["uv", _uv()[1]] else ""


def get_uv(visit: Visit) -> Done:
    """Send this machine's own uv where it runs there; else take theirs, or get it by pip."""
    path, version = _uv()
    place = f"{visit.base}/bin/uv"
    if visit.facts.alike:
        packed = visit.site.shared.wheels / f"uv-{version}-{platform.machine()}.gz"
        if not packed.is_file():
            packed.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with wheels.drafted(packed) as draft, path.open("rb") as source:
                with gzip.open(draft, "wb", compresslevel=1) as target:
                    shutil.copyfileobj(source, target)
        check(visit.host.send(packed, f"{place}.gz"), "uv cannot be sent")
        script = (
            f"cd {quoted(visit.base)}/bin && gzip -dc uv.gz > uv.new && chmod 755 uv.new && mv -f uv.new uv && rm uv.gz"
        )
        visit.sh(f"{script} && ./uv --version", "uv does not run there")
        return Done(text=f"uv {version}, sent from here")
    fix = f"Install uv on {visit.machine.target}, so that `uv --version` works by ssh, and run this again."
    if visit.facts.uv:
        visit.sh(
            f'mkdir -p {quoted(visit.base)}/bin && ln -sfn "$(command -v uv)" {quoted(place)}', "uv cannot be linked"
        )
        return Done(text=f"{visit.facts.uv}, its own")
    if not visit.facts.pythons or visit.machine.offline:
        raise StepFailed("there is neither uv nor a Python to get it with, and ours does not run there", fix=fix)
    python, folder = next(iter(visit.facts.pythons.values())), f"{visit.base}/lib/uv"
    script = (
        f"{quoted(python)} -m pip install --quiet --disable-pip-version-check --target {quoted(folder)} uv=={version}"
        f" && mkdir -p {quoted(visit.base)}/bin && ln -sfn {quoted(folder)}/bin/uv {quoted(place)}"
        f" && {quoted(place)} --version"
    )
    visit.sh(script, "pip could not get uv", fix=fix, seconds=600)
    return Done(text=f"uv {version}, by pip")


def _uv() -> tuple[Path, str]:
    """This machine's uv and its version."""
    try:
        import uv

        path = Path(uv.find_uv_bin())
        said = subprocess.run([str(path), "--version"], capture_output=True, text=True, check=True, timeout=20).stdout
    except (ImportError, OSError, subprocess.SubprocessError) as error:
        raise StepFailed(f"AEO's own uv does not run here: {error}", fix="Install AEO anew.") from None
    return path, said.split()[1]


def look_aeo(visit: Visit) -> str:
    """Whether this very AEO is there and runs."""
    script = (
        f"cd {quoted(visit.base)} && readlink current && ./current/bin/python -c 'import aeo; print(aeo.__version__)'"
    )
    return f"AEO {__version__}" if visit.asks(script).split() == [f"versions/{visit.mark}", __version__] else ""


def get_aeo(visit: Visit) -> Done:
    """Install AEO beside what is there, then change over to it."""
    folder, packages = f"{visit.base}/versions/{visit.mark}", f"{visit.base}/wheels"
    python = _python(visit)
    same = python in (
        _OURS,
        *(path for version, path in visit.facts.pythons.items() if version.startswith(f"{_OURS}.")),
    )
    wheel = f"{packages}/{visit.wheel.path.name}"
    check(visit.host.send(visit.wheel.path, wheel), "AEO cannot be sent")
    locked = f"{packages}/constraints-{visit.mark}.txt"
    check(visit.host.write(wheels.constraints() if same else "", locked), "the versions cannot be sent")
    offline = "--offline --no-index --find-links" + f" {quoted(packages)}"
    downloads = "UV_PYTHON_DOWNLOADS=never" if visit.machine.offline else "UV_NO_CONFIG=1"
    make = (
        f"export UV_NO_CONFIG=1 {downloads}; uv={quoted(visit.base)}/bin/uv; rm -rf {quoted(folder)};"
        f" mkdir -p {quoted(visit.base)}/versions"
        f" && $uv venv --quiet --no-project --python {quoted(python)} {quoted(folder)}"
    )
    fix = f"Install Python {_EXACTLY} there, as here; or give the machine a way to the packages' index."
    visit.sh(make, "no environment could be made", fix=fix, seconds=_LONG)
    install = (
        f"export UV_NO_CONFIG=1; {quoted(visit.base)}/bin/uv pip install --quiet --python {quoted(folder)}/bin/python"
        f" --constraints {quoted(locked)}"
    )
    how = "fetched there"
    if not visit.machine.offline:
        answer = visit.host.run(f"{install} {quoted(wheel)}", seconds=_LONG)
        if answer.code and not (same and visit.facts.alike):
            check(answer, "AEO could not be installed", fix=fix)
    if visit.machine.offline or answer.code:
        how = "sent from here"
        _send_packages(visit, packages)
        visit.sh(f"{install} {offline} {quoted(wheel)}", "AEO could not be installed", fix=fix, seconds=_LONG)
    _change_over(visit, folder)
    notes = () if same else (f"It runs on Python {python}, not {_OURS} as here: versions of packages may differ.",)
    return Done(text=f"AEO {__version__} on Python {_version(visit, folder)}, packages {how}", notes=notes)


def _version(visit: Visit, folder: str) -> str:
    return visit.asks(f"{quoted(folder)}/bin/python -c 'import platform; print(platform.python_version())'")


def _python(visit: Visit) -> str:
    """The Python to use there: the very version that runs here, else one as near as there is; else uv's own."""
    found = visit.facts.pythons
    alike = [version for version in found if version.startswith(f"{_OURS}.")]
    # Packages may be asked for by the last number, too.
    best = _EXACTLY if _EXACTLY in found else max(alike, key=_numbers, default="")
    usable = [version for version in found if _numbers(version) >= OLDEST]
    if not best and usable and visit.machine.offline:
        best = max(usable, key=_numbers)
    return found[best] if best else _OURS


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _send_packages(visit: Visit, folder: str) -> None:
    there = set(visit.asks(f"ls {quoted(folder)}").split())
    for path in wheels.of_needed(visit.site.shared.wheels):
        if path.name not in there:
            check(visit.host.send(path, f"{folder}/{path.name}"), f"{path.name} cannot be sent")


def _change_over(visit: Visit, folder: str) -> None:
    """Make it the one that is used; of older ones the last is left."""
    name = folder.rpartition("/")[2]
    script = (
        f"cd {quoted(visit.base)} && ./versions/{name}/bin/python -c 'import aeo.cli' && old=$(readlink current || :)"
        f" && ln -sfn versions/{name} current.new && mv -fT current.new current"
        f' && for v in versions/*; do [ "$v" = "versions/{name}" ] || [ "$v" = "$old" ] || rm -rf "$v"; done'
    )
    visit.sh(script, "the new AEO does not run there")


def get_executors(visit: Visit) -> Done:
    """Let each executor get there what its trials need, as AEO itself does at a worker's start."""
    wanted = visit.machine.executors or tuple(executors.installed())
    program = "from aeo.provision.executors import main; main(sys.argv[1:])"
    answer = visit.host.run(visit.with_settings(program, *wanted), seconds=_LONG)
    found: dict[str, dict[str, str]] = {}
    for line in answer.out.splitlines():
        try:
            said = json.loads(line)
            found[str(said["name"])] = {key: str(value) for key, value in said.items()}
        except (ValueError, KeyError, TypeError):
            continue
    broken = [name for name in wanted if "version" not in found.get(name, {})]
    if broken:
        why = found.get(broken[0], {}).get("error", "")
        others = " --executor ".join(name for name in wanted if name not in broken)
        raise StepFailed(
            f"executor {broken[0]} cannot run there" + (f": {why}" if why else ""),
            lines=() if why else answer.last(),
            fix=f"Or leave it out: --executor {others}" if others else "",
        )
    return Done(text=", ".join(f"{name} {found[name]['version']}".strip() for name in wanted))


def check_executors(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return these names when each is an executor of this machine.

    Raises:
        InputError: one is not.
    """
    for name in names:
        if name not in executors.installed():
            raise InputError(
                f"{name!r} is no executor here.", field="--executor", fix=f"Here: {', '.join(executors.installed())}."
            )
    return names
