"""What is done with a machine: made a worker, upgraded, let go. Each is some steps, see `steps`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

from aeo import __version__, lock, workers
from aeo.core.condition import Level
from aeo.core.errors import NotFound, Unavailable
from aeo.layout import Shared
from aeo.provision import entrance, facts, install, record, serve, steps
from aeo.provision.host import connect, quoted
from aeo.provision.record import Machine
from aeo.provision.steps import Done, Event, Step, StepFailed
from aeo.provision.visit import Visit
from aeo.provision.wish import Wish, machine_of
from aeo.site import Site

#: Who is told of each event.
Say = Callable[[Event], None]
#: Names of steps, in the order in which a machine is made a worker.
STEPS = ("reach", "check", "rsync", "uv", "aeo", "settings", "executors", "controller", "service", "register")
#: Seconds between two looks whether a drained worker has ended its trials.
_LOOK_SECONDS = 0.5


def provision(
    site: Site,
    wish: Wish,
    say: Say,
    *,
    by: str = "",
    dry_run: bool = False,
    first: str = "",
    shown: bool = False,
) -> Machine:
    """Make a machine a worker; what is done already is left as it is.

    ``shown``: it is remembered before it is reached, as a page shows how that goes.

    Raises:
        InputError: the wish cannot be fulfilled as it is.
        Conflict: somebody is at that machine.
        StepFailed: a step failed.
    """
    if first:
        steps.check_name(first, STEPS)
    machine = machine_of(site, wish, by=by)
    known = record.find(site.shared, machine.id) is not None
    try:
        with _visit(site, machine, "provision", say, by=by, settings=wish.settings, dry_run=dry_run) as (visit, tell):
            if known or shown:
                visit.remember()
            steps.run(_provisioning(visit), tell, host=machine.where, dry_run=dry_run, first=first)
            return visit.machine
    finally:
        if not dry_run:
            record.tidy(site.shared, machine.id)


def upgrade(site: Site, id: str, say: Say, *, by: str = "", wait: float = serve.END_SECONDS) -> Machine:
    """Bring a worker to the AEO that runs here: install beside the old, drain, start anew, wait for its return.

    Raises:
        NotFound: it was not provisioned.
        Conflict: somebody is at that machine, or the worker was revoked.
        StepFailed: a step failed; the worker goes on with the AEO it has, unless it is said otherwise.
    """
    machine = record.get(site.shared, id)
    serve.check_let_in(site, id)
    with _visit(site, machine, "upgrade", say, by=by) as (visit, tell):
        steps.run(_upgrading(visit, wait, by), tell, host=machine.where)
        return visit.machine


def decommission(
    site: Site,
    id: str,
    say: Say,
    *,
    by: str = "",
    now: bool = False,
    gone: bool = False,
    wait: float = serve.END_SECONDS,
) -> None:
    """Take leave of a worker: drain it, stop it, remove what was installed and what let it in.

    ``now``: what it runs is given back at once. ``gone``: the machine is not reached, and only forgotten here.

    Raises:
        NotFound: it was not provisioned.
        Conflict: somebody is at that machine.
        StepFailed: a step failed.
    """
    machine = record.get(site.shared, id)
    with _visit(site, machine, "decommission", say, by=by) as (visit, tell):
        steps.run(_leaving(visit, wait=wait, by=by, now=now, gone=gone), tell, host=machine.where)
        record.forget(site.shared, id)


@contextmanager
def _visit(
    site: Site,
    machine: Machine,
    what: str,
    say: Say,
    *,
    by: str,
    settings: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> Iterator[tuple[Visit, Say]]:
    with ExitStack() as stack:
        tell = say
        if not dry_run:
            write = stack.enter_context(record.working(site.shared, machine.id, what, by=by))

            def tell(event: Event) -> None:
                write(event)
                say(event)

        yield Visit(site=site, machine=machine, stack=stack, settings=settings or {}, dry_run=dry_run), tell


def _provisioning(visit: Visit) -> list[Step]:
    way = "see that it reaches the controller" if visit.machine.direct else "bring it to the controller by a tunnel"
    return [
        *_meeting(visit),
        *_installing(visit),
        _step("controller", way, visit, serve.look_way, serve.open_way),
        _step("service", "start the worker, and have it kept running", visit, _look_let_in, _let_in),
        _step("register", "wait until it has registered", visit, serve.look_registered, serve.await_registered),
        Step(name="remember", title="remember it", look=_nothing, do=lambda: _remember(visit)),
    ]


def _meeting(visit: Visit) -> list[Step]:
    return [
        Step(name="reach", title="reach it by ssh", look=lambda: "", do=lambda: _reach(visit), reads=True),
        Step(
            name="check", title="look whether it can be a worker", look=lambda: "", do=lambda: _check(visit), reads=True
        ),
    ]


def _installing(visit: Visit) -> list[Step]:
    return [
        _step("rsync", "get rsync", visit, install.look_rsync, install.get_rsync),
        _step("uv", "get uv", visit, install.look_uv, install.get_uv),
        _step("aeo", f"install AEO {__version__}", visit, install.look_aeo, install.get_aeo),
        _step("settings", "write its settings", visit, serve.look_settings, serve.write_settings),
        _step("executors", "get what executors need", visit, lambda _: "", install.get_executors),
    ]


def _upgrading(visit: Visit, wait: float, by: str) -> list[Step]:
    return [
        *_meeting(visit),
        *_installing(visit),
        _step("drain", "let it finish what it runs", visit, _look_drained, lambda visit: _drain(visit, wait, by)),
        _step("service", "start it anew", visit, serve.look_service, serve.start_service),
        _step("register", "wait for its return", visit, serve.look_registered, serve.await_registered),
        Step(name="remember", title="remember it", look=_nothing, do=lambda: _remember(visit)),
    ]


def _leaving(visit: Visit, *, wait: float, by: str, now: bool, gone: bool) -> list[Step]:
    there = [
        *_meeting(visit),
        _step(
            "drain",
            "let it finish what it runs",
            visit,
            _look_gone,
            lambda visit: _drain(visit, 0 if now else wait, by),
        ),
        _step("service", "stop it", visit, serve.look_stopped, lambda visit: _stop(visit, now)),
        _step("files", "remove what was installed", visit, lambda _: "", _remove_files),
    ]
    return [
        *([] if gone else there),
        _step("tunnel", "take its tunnel down", visit, _look_no_tunnel, _close_tunnel),
        _step("credentials", "take back what lets it in", visit, lambda _: "", _revoke),
    ]


def _step(name: str, title: str, visit: Visit, look: Callable[[Visit], str], do: Callable[[Visit], Done]) -> Step:
    return Step(name=name, title=title, look=lambda: look(visit), do=lambda: do(visit))


def _nothing() -> str:
    """There is always something to do."""
    return ""


def _reach(visit: Visit) -> Done:
    machine = visit.machine
    start = time.monotonic()
    try:
        host = visit.stack.enter_context(connect(machine.target, machine.ssh_port))
        visit.reached(host)
        visit.sh("true", "it runs no command")
    except Unavailable as error:
        if isinstance(error, StepFailed):
            raise
        port = f"-p {machine.ssh_port} " if machine.ssh_port else ""
        fix = f"This must work without a question: ssh -o BatchMode=yes {port}{machine.target} true"
        raise StepFailed(str(error), fix=fix) from None
    visit.remember()
    return Done(text=f"answers in {time.monotonic() - start:.1f} s")


def _check(visit: Visit) -> Done:
    found = facts.ask(visit.host)
    facts.check_path(found.home)
    visit.known(found)
    conditions = list(facts.judge(found, visit.machine.slots))
    faults = [item for item in conditions if item.level is Level.FAULT]
    if faults:
        rest = [f"{item.about}: {item.text}. {item.fix}" for item in faults[1:]]
        raise StepFailed(f"{faults[0].about}: {faults[0].text}", lines=rest, fix=faults[0].fix)
    visit.remember(base=visit.machine.base or found.base, service=visit.machine.service or found.service)
    notes = tuple(f"{item.about}: {item.text}. {item.fix}" for item in conditions if item.level is Level.WARNING)
    text = "; ".join(f"{item.about}: {item.text}" for item in conditions if item.level is Level.OK)
    return Done(text=text, notes=notes)


def _look_let_in(visit: Visit) -> str:
    """Whether its worker runs, and the controller knows it."""
    return serve.look_service(visit) if serve.status(visit) else ""


def _let_in(visit: Visit) -> Done:
    """Start its worker; who makes a machine a worker wants it in, whoever put it out before."""
    with suppress(NotFound):
        workers.allow(visit.site, visit.machine.id)
    # What a worker runs that the controller does not know was given to others.
    return serve.start_service(visit, now=serve.status(visit) is None)


def _remember(visit: Visit) -> Done:
    visit.remember(version=__version__, mark=visit.mark)
    return Done(text=f"aeo upgrade {visit.machine.id}, aeo decommission {visit.machine.id} need no more than its id")


def _look_drained(visit: Visit) -> str:
    """Whether there is nothing to be drained for."""
    return "not needed: it runs this AEO already" if serve.look_service(visit) else _look_gone(visit)


def _look_gone(visit: Visit) -> str:
    now = serve.status(visit)
    return "" if now and now.heartbeat else "it does not run"


def _drain(visit: Visit, wait: float, by: str) -> Done:
    site, id = visit.site, visit.machine.id
    workers.drain(site, id, by=by or "aeo upgrade")
    until = time.monotonic() + wait
    while (now := serve.status(visit)) is not None and now.heartbeat and (now.busy or now.heartbeat.busy):
        if time.monotonic() > until:
            if wait <= 0:
                break
            busy = max(now.busy, now.heartbeat.busy)
            fix = f"Wait longer (--wait), or let it go on: aeo workers resume {id}"
            raise StepFailed(f"it still runs trials after {wait:.0f} s: {busy}", fix=fix)
        time.sleep(_LOOK_SECONDS)
    return Done(text="it runs nothing" if wait > 0 else "it claims nothing more")


def _remove_files(visit: Visit) -> Done:
    id, home, base = visit.machine.id, visit.facts.home, visit.base
    state = "/var/lib/aeo" if visit.service == "system" else f"{home}/.local/state/aeo"
    places = (serve.root(visit), f"{base}/worker/{id}.running", serve.settings_file(visit), f"{state}/worker-{id}")
    own = quoted(*places, *((f"{state}/{id}",) if visit.service == "plain" else ()))
    units = "/etc/systemd/system" if visit.service == "system" else f"{home}/.config/systemd/user"
    script = (
        f"rm -rf {own}; cd {quoted(base)} 2>/dev/null || exit 0; rmdir worker 2>/dev/null;"
        f" [ -d worker ] && {{ echo others; exit 0; }}; cd / && rm -rf {quoted(base)}"
        # Workers that somebody made by hand have the same.
        f"; ls {quoted(units)}/*.wants/aeo-worker@?*.service >/dev/null 2>&1"
        f" || rm -f {quoted(units)}/aeo-worker@.service"
        f"; rmdir {quoted(home)}/.config/aeo {quoted(state)} 2>/dev/null; true"
    )
    others = visit.sh(script, "what was installed cannot be removed") == "others"
    return Done(text="its own; another worker is there" if others else f"{base} is gone")


def _stop(visit: Visit, now: bool) -> Done:
    """Stop its worker; one that the controller does not know has nothing that counts."""
    return serve.stop_service(visit, now=now or serve.status(visit) is None)


def _look_no_tunnel(visit: Visit) -> str:
    return "" if visit.machine.tunnel else "it has none"


def _close_tunnel(visit: Visit) -> Done:
    visit.remember(tunnel=False)
    until = time.monotonic() + 15
    while record.line(visit.site.shared, visit.machine.id) and lock.is_held(visit.site.shared.lock):
        if time.monotonic() > until:
            raise StepFailed("the control process does not take it down", fix="See its log; or restart the controller.")
        time.sleep(0.1)
    return Done(text="down")


def _revoke(visit: Visit) -> Done:
    """Cut the worker off and forget it: first of all its token ends, or it would come back with it."""
    site, id = visit.site, visit.machine.id
    entrance.end(site.shared, id)
    try:
        removed = workers.revoke(site, id)
    except NotFound:
        return Done(text="it has none any more")
    with suppress(NotFound):
        # Another machine may have this id one day.
        workers.allow(site, id)
    return Done(text="revoked" + (f"; trials given back: {removed.given_back}" if removed.given_back else ""))


def is_idle(shared: Shared, id: str) -> bool:
    """Whether nobody works on the machine now."""
    return not lock.is_held(shared.machine(id) / "lock")
