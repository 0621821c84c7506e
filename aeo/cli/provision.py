"""``aeo provision``, ``aeo upgrade``, ``aeo decommission``: workers' machines, looked after by ssh."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from aeo.cli import place, show
from aeo.cli.answers import clean
from aeo.cli.numbers import Number
from aeo.cli.processes import hide_secrets, read, settings
from aeo.codec import encode
from aeo.config import PREFIX
from aeo.core.errors import AeoError, InputError
from aeo.provision import record, work
from aeo.provision.steps import Event, StepFailed, StepState
from aeo.provision.wish import Wish
from aeo.site import Site

#: The controller's settings that say what a worker has to be told.
_OF_CONTROLLER = ("shared_root", "port", "broker_url", "worker_broker_url", "transfer_url")
_TEXTS = {
    "shared_root": "The controller's folder.",
    "port": "The controller's port.",
    "broker_url": "The broker, if the controller was given one.",
    "transfer_url": "Where the controller lets workers push results to.",
}
#: Before the name of a setting in this program's own environment, which it is not meant for.
_GIVEN = f"{PREFIX}SET_"
_MARKS = {
    StepState.DONE: ("done", "green"),
    StepState.KEPT: ("is so", "green"),
    StepState.WOULD: ("would", "cyan"),
    StepState.SKIPPED: ("skipped", "yellow"),
    StepState.FAILED: ("FAILED", "red"),
}
_ALONE = """Run it on the controller's machine as the controller's user, with its own settings (AEO_* or flags).
Keys come from ssh's agent or ~/.ssh/config; nothing is asked for."""


@click.command(
    epilog=f"""\b
{_ALONE}
The machine needs sshd, a shell and, where it reaches no index of packages, the Python that runs here. Each step looks
first whether it is done: run the same command again and it goes on where it stopped. --dry-run changes nothing.

\b
Steps: {", ".join(work.STEPS)}.

\b
Examples:
  aeo provision aeo@gpu-1
  aeo provision aeo@10.0.0.7 -p 2222 --id gpu-2 --slots 4 --set ANTHROPIC_API_KEY
  aeo provision gpu-3 --direct https://aeo.example.org --dry-run
  aeo provision gpu-4 --offline --executor harbor"""
)
@click.argument("target", metavar="USER@HOST")
@click.option("-p", "--ssh-port", type=click.IntRange(1, 65535), help="Port of its sshd (default: as ssh says).")
@click.option("--slots", type=click.IntRange(1), help="Trials at once (default: as before, else 1).")
@click.option("--id", default="", metavar="NAME", help="The worker's id (default: the host's name).")
@click.option("--direct", default="", metavar="URL", help="It reaches the controller here; no tunnel is made.")
@click.option(
    "--tunnel-port", type=click.IntRange(1, 65535), help="The controller's port on its loopback [default: 17380]."
)
@click.option("--executor", "executors", multiple=True, help="What must work there; repeatable (default: all of here).")
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="A further setting of the worker; NAME alone takes it from your environment, =@FILE from a file.",
)
@click.option("--offline", is_flag=True, help="It reaches no index of packages: send everything from here.")
@click.option("--from", "first", default="", metavar="STEP", help="Begin with this step.")
@click.option("--dry-run", is_flag=True, help="Look, say what would be done, and change nothing.")
@settings(_OF_CONTROLLER, _TEXTS)
@place.as_json
def provision(
    target: str,
    ssh_port: int | None,
    slots: int | None,
    id: str,
    direct: str,
    tunnel_port: int | None,
    executors: tuple[str, ...],
    given: tuple[str, ...],
    offline: bool,
    first: str,
    dry_run: bool,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Make a machine a worker, over ssh: from a bare one to one that takes trials."""
    _hide_settings(given)
    config = read(flags)
    wish = Wish(
        target=target,
        ssh_port=ssh_port or 0,
        id=id,
        slots=slots or 0,
        direct=direct,
        tunnel_port=tunnel_port or 0,
        executors=executors,
        offline=offline,
        settings=dict(map(_setting, given)),
    )
    hide_secrets()
    with place.existing(config) as site:
        _check_owner(site)
        told = _Told(as_json=as_json)
        try:
            machine = work.provision(site, wish, told.of(id or target), by=_user(), dry_run=dry_run, first=first)
        except StepFailed as error:
            told.failed(error, "Run the same command again when that is mended: it goes on with this step.")
            raise
        finally:
            told.end()
    if not as_json and not dry_run:
        click.echo(f"{machine.id} is a worker.")


@click.command(
    epilog=f"""\b
{_ALONE}
AEO is installed beside the one that runs, the worker finishes what it runs, and is started anew: one after the other,
or as many at once as --parallel says.

\b
Examples:
  aeo upgrade gpu-1 gpu-2
  aeo upgrade --all --parallel 4"""
)
@click.argument("ids", nargs=-1, metavar="[WORKER]...")
@click.option("--all", "every", is_flag=True, help="Every worker that was provisioned.")
@click.option("--parallel", type=click.IntRange(1), default=1, show_default=True, help="Workers at once.")
@click.option("--wait", type=Number(0, 10**7), default=7200, show_default=True, help="Seconds that running trials get.")
@settings(_OF_CONTROLLER, _TEXTS)
@place.as_json
def upgrade(ids: tuple[str, ...], every: bool, parallel: int, wait: float, as_json: bool, **flags: str | None) -> None:
    """Bring workers to the AEO that runs here: each is drained, started anew, and waited for."""
    config = read(flags)
    hide_secrets()
    with place.existing(config) as site:
        _check_owner(site)
        wanted = _wanted(site, ids, every=every)
        told = _Told(as_json=as_json, several=len(wanted) > 1)
        _each(wanted, parallel, lambda id: work.upgrade(site, id, told.of(id), by=_user(), wait=wait), told)


@click.command(
    epilog=f"""\b
{_ALONE}

\b
Examples:
  aeo decommission gpu-1
  aeo decommission gpu-1 --now --yes
  aeo decommission gpu-1 --gone          # the machine is not there any more"""
)
@click.argument("ids", nargs=-1, required=True, metavar="WORKER...")
@click.option("--now", is_flag=True, help="Give back what it runs, in place of waiting for it.")
@click.option("--gone", is_flag=True, help="Do not reach the machine: only forget it here.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--wait", type=Number(0, 10**7), default=7200, show_default=True, help="Seconds that running trials get.")
@settings(_OF_CONTROLLER, _TEXTS)
@place.as_json
def decommission(
    ids: tuple[str, ...], now: bool, gone: bool, yes: bool, wait: float, as_json: bool, **flags: str | None
) -> None:
    """Take leave of workers: drain, stop, remove what was installed there and what lets them in."""
    config = read(flags)
    hide_secrets()
    with place.existing(config) as site:
        _check_owner(site)
        wanted = _wanted(site, ids, every=False)
        if not yes:
            places = ", ".join(f"{id} ({record.get(site.shared, id).where})" for id in wanted)
            click.confirm(f"Stop and remove {places}, with all that was installed there?", abort=True, err=True)
        told = _Told(as_json=as_json, several=len(wanted) > 1)
        leave: Callable[[str], object] = lambda id: work.decommission(  # noqa: E731
            site, id, told.of(id), by=_user(), now=now, gone=gone, wait=wait
        )
        _each(wanted, 1, leave, told)


def _each(ids: Sequence[str], parallel: int, do: Callable[[str], object], told: _Told) -> None:
    """Do it for each; those that failed are told at the end, and the first of these errors is the command's."""
    failed: list[AeoError] = []

    def one(id: str) -> None:
        # Once one has failed no further one is begun: what broke it may break all.
        if failed:
            return
        try:
            do(id)
        except AeoError as error:
            failed.append(error)
            if isinstance(error, StepFailed):
                told.failed(error, "")

    with ThreadPoolExecutor(max_workers=parallel) as pool:
        list(pool.map(one, ids))
    told.end()
    if failed:
        raise failed[0]


def _wanted(site: Site, ids: tuple[str, ...], *, every: bool) -> list[str]:
    if every == bool(ids):
        raise InputError("name workers, or give --all.", field="WORKER")
    if every:
        known = record.machines(site.shared)
        if skipped := [machine.id for machine in known if not machine.version]:
            click.echo(f"Left out, as it never became a worker: {', '.join(skipped)}.", err=True)
        return [machine.id for machine in known if machine.version]
    return [record.get(site.shared, id).id for id in dict.fromkeys(ids)]


def _setting(text: str) -> tuple[str, str]:
    """Read NAME, NAME=VALUE or NAME=@FILE."""
    name, is_one, value = text.partition("=")
    if not is_one:
        if _GIVEN + name in os.environ:
            return name, os.environ[_GIVEN + name]
        if name not in os.environ:
            raise InputError(f"{name} is not in your environment.", field="--set", fix=f"Set it, or give {name}=VALUE.")
        return name, os.environ[name]
    if value.startswith("@"):
        try:
            return name, Path(value[1:]).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{value[1:]} cannot be read: {error}.", field="--set") from None
    return name, value


def _hide_settings(given: Sequence[str]) -> None:
    """Run this program anew with values of settings in its environment, if it was given any: `ps` shows arguments."""
    texts = {text for text in given if text.partition("=")[2] and not text.partition("=")[2].startswith("@")}
    kept, found = [], {}
    for number, argument in enumerate(sys.orig_argv):
        text = argument.removeprefix("--set=")
        if text in texts and (text != argument or sys.orig_argv[number - 1] == "--set"):
            name, _, value = text.partition("=")
            found[_GIVEN + name] = value
            argument = argument[: len(argument) - len(value) - 1]
        kept.append(argument)
    if found:
        os.execve(sys.executable, kept, {**os.environ, **found})  # noqa: S606


def _check_owner(site: Site) -> None:
    """The keys of ssh, the known hosts and the files must be the controller's."""
    owner = site.shared.root.stat().st_uid
    if owner != os.geteuid():
        raise InputError(
            f"{site.shared.root} is of another user ({owner}).",
            field="--shared-root",
            fix="Run this as the controller's user: its keys keep the tunnel, too.",
        )


def _user() -> str:
    return os.environ.get("SUDO_USER") or os.environ.get("USER") or ""


class _Told:
    """Tells events: as lines as they come, or as one JSON document at the end."""

    def __init__(self, *, as_json: bool, several: bool = False):
        self._json, self._several = as_json, several
        self._lock = threading.Lock()
        self._found: dict[str, list[Event]] = {}

    def of(self, who: str) -> Callable[[Event], None]:
        """What takes the events of one worker."""
        self._found.setdefault(who, [])
        return lambda event: self._take(who, event)

    def _take(self, who: str, event: Event) -> None:
        with self._lock:
            if event.state is not StepState.RUNNING:
                self._found[who].append(event)
            if not self._json:
                self._show(f"{who}: " if self._several else "", event)

    def _show(self, before: str, event: Event) -> None:
        if event.state is StepState.RUNNING or event.state is StepState.FAILED:
            return
        mark, color = _MARKS[event.state]
        taken = f" ({event.seconds:.1f} s)" if event.seconds >= 0.1 else ""
        click.echo(f"{before}{click.style(f'{mark:<8}', fg=color)}{event.step:<12}{clean(event.text)}{taken}")
        for note in event.notes:
            click.echo(f"{before}{'':<20}-> {clean(note)}")

    def failed(self, error: StepFailed, then: str) -> None:
        """A step failed; what it is of stands in the error, which is printed at the end."""
        if not self._json:
            mark, color = _MARKS[StepState.FAILED]
            click.echo(f"{click.style(f'{mark:<8}', fg=color)}{error.step:<12}{clean(error.why)}")
            if then:
                click.echo(then, err=True)

    def end(self) -> None:
        """Print the JSON, if that is wanted."""
        if self._json:
            body = [
                {"worker": who, "steps": [encode(event) for event in events]} for who, events in self._found.items()
            ]
            show.as_json({"machines": body})
