"""``aeo install-service``: the bundled systemd units, fitted to this machine."""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import click

from aeo.core.errors import InputError

#: Role to what its instance is called; "" where there is but one on a machine.
ROLES = {"controller": "", "web": "", "control": "", "worker": "ID", "tunnel": "HOST", "flower": ""}

#: What a user's own service manager has not, or may not do.
_SYSTEM_ONLY = re.compile(
    r"(User|SupplementaryGroups|Wants|CapabilityBoundingSet|Private\w+|Protect\w+|ReadWritePaths|Restrict(SUIDSGID|Realtime)"
    r"|LockPersonality|SystemCallArchitectures|RestrictAddressFamilies|OOMPolicy|LimitNOFILE)="
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where units and settings go, and who runs them."""

    units: Path
    settings: Path
    #: Absolute; what ``aeo`` is in the units.
    program: Path
    #: Whose processes these are; "" is the person's own service manager.
    user: str


@click.command(
    name="install-service",
    epilog="""\b
Examples:
  aeo install-service controller --dry-run
  sudo aeo install-service worker
  aeo install-service worker --user

Settings go to /etc/aeo/env (~/.config/aeo/env with --user), which is made if it is not there. Nothing is started: the
command to do so is shown.""",
)
@click.argument("role", type=click.Choice(sorted(ROLES)))
@click.option("--user", "own", is_flag=True, help="For your own service manager, without root.")
@click.option("--run-as", default="aeo", show_default=True, help="The user a system service runs as.")
@click.option("--dry-run", is_flag=True, help="Print the unit and write nothing.")
def install_service(role: str, own: bool, run_as: str, dry_run: bool) -> None:
    """Write the systemd unit of a role, and a file for its settings."""
    place = _own_place() if own else _system_place(run_as)
    name = f"aeo-{role}{'@' if ROLES[role] else ''}.service"
    text = fitted(_bundled(name), place)
    if dry_run:
        click.echo(f"# {place.units / name}\n{text}", nl=False)
        return
    if not own:
        _check_user(run_as)
    _write(place.units / name, text, 0o644)
    if not place.settings.exists():
        _write(place.settings, _bundled("env.example"), 0o600)
    _reload(own)
    systemctl = "systemctl --user" if own else "systemctl"
    click.echo(f"Wrote {place.units / name}. Settings: {place.settings}")
    click.echo(f"Start it: {systemctl} enable --now {name.replace('@', '@' + ROLES[role]).removesuffix('.service')}")
    if own:
        click.echo("To keep it running when you are not signed in: loginctl enable-linger")


def fitted(unit: str, place: Place) -> str:
    """A bundled unit with this machine's program, user and settings.

    Raises:
        InputError: the program's path cannot stand in a unit.
    """
    program = str(place.program)
    if re.search(r"""[\s"'\\%$;]""", program):
        raise InputError(f"{program} holds characters that a unit cannot name.", fix="Install aeo at a plain path.")
    lines = []
    for line in unit.splitlines():
        if (not place.user and _SYSTEM_ONLY.match(line)) or _of_absent_group(line):
            continue
        lines.append(_fit(line, program, place))
    return "\n".join(line for line in lines if line != "After=") + "\n"


def _fit(line: str, program: str, place: Place) -> str:
    if line.startswith("ExecStart=aeo "):
        # Harbor's installer, ssh, rsync and docker are found by PATH, which services have but a short one of.
        path = f"Environment=PATH={Path(program).parent}:/usr/local/bin:/usr/bin:/bin"
        return f"{path}\n{line.replace('=aeo ', f'={program} ', 1)}"
    if line.startswith("EnvironmentFile=-/etc/aeo/"):
        return line.replace("/etc/aeo", "/etc/aeo" if place.user else "%h/.config/aeo")
    if line.startswith("User="):
        return f"User={place.user}"
    if not place.user and line.startswith("After="):
        kept = [name for name in line.removeprefix("After=").split() if name.startswith("aeo-")]
        return f"After={' '.join(kept)}"
    return line.replace("multi-user.target", "default.target") if not place.user else line


def _of_absent_group(line: str) -> bool:
    if not line.startswith("SupplementaryGroups="):
        return False
    try:
        grp.getgrnam(line.partition("=")[2])
    except KeyError:
        return True
    return False


def _bundled(name: str) -> str:
    packed = files("aeo") / "units" / name
    if packed.is_file():
        return packed.read_text()
    # A checkout that runs in place.
    deploy = Path(__file__).parents[2] / "deploy"
    path = deploy / name if name == "env.example" else deploy / "systemd" / name
    return path.read_text()


def _system_place(user: str) -> Place:
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", user):
        raise InputError(f"{user!r} is no user's name.", field="--run-as")
    units, settings = Path("/etc/systemd/system"), Path("/etc/aeo/env")
    return Place(units=units, settings=settings, program=_program(), user=user)


def _own_place() -> Place:
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    # The unit says %h/.config: where the settings are must not depend on the shell this was called from.
    settings = Path.home() / ".config" / "aeo" / "env"
    return Place(units=base / "systemd" / "user", settings=settings, program=_program(), user="")


def _program() -> Path:
    beside = Path(sys.executable).parent / "aeo"
    found = beside if beside.exists() else Path(shutil.which("aeo") or sys.argv[0])
    return found.absolute()


def _check_user(user: str) -> None:
    try:
        pwd.getpwnam(user)
    except KeyError:
        fix = f"Make it: useradd --system --create-home {user}; for Docker: usermod --append --groups docker {user}"
        raise InputError(f"there is no user {user}.", field="--run-as", fix=fix) from None


def _write(path: Path, text: str, mode: int) -> None:
    draft = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(text)
        draft.chmod(mode)
        draft.replace(path)
    except OSError as error:
        fix = "Run it as root, or with --user."
        raise InputError(f"{path} cannot be written: {error.strerror}.", fix=fix) from None


def _reload(own: bool) -> None:
    if shutil.which("systemctl") is None:
        return
    # Where no service manager runs (a container, a rescue system) it reads the units at its start anyway.
    command = ["systemctl", *(["--user"] if own else []), "daemon-reload"]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
