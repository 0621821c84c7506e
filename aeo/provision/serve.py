"""From an installed AEO to a worker that takes work: settings, the way to the controller, service, registration."""

from __future__ import annotations

import json
import time

from aeo import __version__, credentials, lock, tunnel
from aeo.core.errors import Conflict, InputError, NotFound
from aeo.core.model import WorkerState
from aeo.provision import entrance, record, steps
from aeo.provision.background import ENDED
from aeo.provision.host import quoted
from aeo.provision.steps import Done, StepFailed
from aeo.provision.visit import Visit, check, settings_of, settings_text
from aeo.rsyncd import modules
from aeo.site import Site
from aeo.store import workers as store
from aeo.store.workers import WorkerStatus
from aeo.tunnel import Tunnel

#: Seconds for a tunnel to be up, for a worker to register, and for its service to let running trials end.
TUNNEL_SECONDS, REGISTER_SECONDS, END_SECONDS = 45.0, 90.0, 2 * 3600.0
#: Lines of a worker's log that are shown when it does not come.
_LOG_LINES = 8
#: Lines read for that, since those of a traceback are left out.
_READ_LINES = 80
_TOKEN = "AEO_AUTH_TOKEN"  # noqa: S105  its name
_PROBE = (
    "import json,sys,urllib.request as u; o=u.build_opener(u.ProxyHandler({}));"
    "print(json.load(o.open(sys.argv[1]+'/api/health',timeout=8))['version'])"
)
#: ``aeo`` by the link, so that services keep their paths when AEO is upgraded.
_AEO = "-c 'from aeo.cli import main; main()'"


def plan(visit: Visit) -> Tunnel:
    """The tunnel to the machine."""
    config, machine = visit.site.config, visit.machine
    return tunnel.plan(
        machine.target,
        broker_url=config.worker_broker_url or config.broker_url,
        transfer_url=modules.way(config, visit.site.shared),
        controller=(machine.tunnel_port, config.port),
        ssh_port=machine.ssh_port,
    )


def look_settings(visit: Visit) -> str:
    """Whether the worker's settings there are these."""
    file = settings_file(visit)
    found = settings_of(visit.asks(f"cat {quoted(file)}"))
    fits = entrance.fits(visit.site.shared, visit.machine.id, found.get(_TOKEN, ""))
    private = visit.asks(f"ls -l {quoted(file)} | cut -c1-10") == "-rw-------"
    return file if private and fits and _settings(visit).items() <= found.items() else ""


def write_settings(visit: Visit) -> Done:
    """Write the worker's settings, a token of its own included, where only its user reads them; others are kept."""
    file = settings_file(visit)
    found = settings_of(visit.asks(f"cat {quoted(file)}"))
    shared, id = visit.site.shared, visit.machine.id
    token = found.get(_TOKEN, "")
    if not entrance.fits(shared, id, token):
        token = entrance.make(shared, id)
    text = settings_text({**found, **_settings(visit), _TOKEN: token})
    check(visit.host.write(text, file), f"{file} cannot be written")
    return Done(text=f"{file} (0600)")


def settings_file(visit: Visit) -> str:
    """Where the worker's own settings lie there."""
    return visit.settings_files[1]


def _settings(visit: Visit) -> dict[str, str]:
    machine, url = visit.machine, ""
    if not machine.direct:
        url = plan(visit).transfer_url
    return {
        "AEO_CONTROLLER_URL": machine.url,
        "AEO_WORKER_ID": machine.id,
        "AEO_SLOTS": str(machine.slots),
        "AEO_LOCAL_ROOT": root(visit),
        **({"AEO_TRANSFER_URL": url} if url else {}),
        # What executors get for themselves goes with the rest.
        "AEO_CACHE": f"{visit.base}/cache",
        "PATH": visit.path,
        **visit.settings,
    }


def root(visit: Visit) -> str:
    """The worker's folder there."""
    return f"{visit.base}/worker/{visit.machine.id}"


def look_way(visit: Visit) -> str:
    """Whether the machine reaches the controller."""
    if not visit.machine.direct:
        now = record.line(visit.site.shared, visit.machine.id)
        if not (visit.machine.tunnel and now and now.up):
            return ""
    said = visit.asks(_probing(visit))
    return f"{visit.machine.url} answers" if said else ""


def open_way(visit: Visit) -> Done:
    """Have the control process keep a tunnel to the machine, and see that the controller is found through it."""
    machine, shared = visit.machine, visit.site.shared
    if machine.direct:
        _await_answer(visit)
        return Done(text=f"{machine.direct} answers")
    made = plan(visit)
    if not lock.is_held(shared.lock):
        raise StepFailed(
            "no control process runs here, which keeps tunnels", fix="Start the controller: aeo controller"
        )
    record.set_line(shared, machine.id, None)
    visit.remember(tunnel=True)
    try:
        _await_line(visit)
        _await_answer(visit)
    except BaseException:
        # It would be tried for ever, and have what another tunnel to that machine needs once that one is down.
        if not machine.tunnel:
            visit.remember(tunnel=False)
        raise
    ports = ", ".join(str(forward.there) for forward in made.forwards)
    return Done(text=f"kept up by the control process; ports of its loopback: {ports}", notes=made.notes)


def _await_line(visit: Visit) -> None:
    until = time.monotonic() + TUNNEL_SECONDS
    while True:
        now = record.line(visit.site.shared, visit.machine.id)
        if now and now.up:
            return
        late = time.monotonic() > until
        if late or (now and now.fix):
            raise StepFailed(
                f"the tunnel cannot be made: {now.why if now and now.why else 'the control process does not say why'}",
                fix=(now.fix if now else "") or "See the control process's log.",
            )
        time.sleep(0.1)


def _await_answer(visit: Visit) -> None:
    until = time.monotonic() + 20
    while True:
        answer = visit.host.run(_probing(visit))
        if not answer.code:
            return
        if time.monotonic() > until:
            fix = "Is that its address as that machine sees it? A firewall may be between them."
            raise StepFailed(
                f"the controller does not answer at {visit.machine.url}", lines=answer.last()[-2:], fix=fix
            )
        time.sleep(0.3)


def _probing(visit: Visit) -> str:
    return f"{quoted(visit.base)}/current/bin/python -I -c {quoted(_PROBE)} {quoted(visit.machine.url)}"


def look_service(visit: Visit) -> str:
    """Whether the worker runs there as it was installed and set."""
    stamp = f"{visit.base}/worker/{visit.machine.id}.running"
    running = visit.asks(f"{_is_running(visit)} && cat {quoted(stamp)}")
    return f"runs ({visit.service})" if running and running.split()[-1] == _stamp(visit) else ""


def start_service(visit: Visit, *, now: bool = False) -> Done:
    """Start the worker anew, kept by the machine's service manager or by a process of ours.

    ``now``: what an old one runs counts no more, so it need not finish that.
    """
    id, kind, haste = visit.machine.id, visit.service, " --now" if now else ""
    visit.boot = boot(visit)
    visit.sh(f"mkdir -p {quoted(root(visit))}", "its folder cannot be made")
    notes: tuple[str, ...] = ()
    if kind == "plain":
        visit.sh(
            f"{_aeo(visit, f'background start --restart{haste} {id}')}",
            "the worker could not be started",
            seconds=END_SECONDS,
        )
        again = f"{visit.base}/current/bin/aeo background start {id}"
        notes = (f"No service manager there. After a restart of that machine: {again}",)
    else:
        user = " --user" if kind == "user" else f" --run-as {quoted(visit.facts.user)}"
        visit.sh(_aeo(visit, f"install-service worker{user}"), "the unit could not be written")
        unit, control = f"aeo-worker@{id}", _systemctl(visit)
        script = f"{_in_haste(control, unit) if now else ''}{control} enable --quiet {unit} && {control} restart {unit}"
        visit.sh(script, "the service could not be started", fix=f"See: {_log(visit)}", seconds=END_SECONDS)
        if kind == "user" and not visit.asks("loginctl enable-linger && echo yes"):
            fix = f"sudo loginctl enable-linger {visit.facts.user}"
            notes = (f"It ends when {visit.facts.user} signs out there, until: {fix}",)
    stamp = f"{visit.base}/worker/{id}.running"
    check(visit.host.write(_stamp(visit) + "\n", stamp), f"{stamp} cannot be written")
    what = {"plain": "a process of ours", "user": "systemd, of its user", "system": "systemd"}[kind]
    return Done(text=f"started, kept by {what}", notes=notes)


def look_stopped(visit: Visit) -> str:
    """Whether there is nothing to stop."""
    return visit.asks(f"[ -x {quoted(visit.base)}/current/bin/python ] || echo it was never installed")


def stop_service(visit: Visit, *, now: bool) -> Done:
    """Stop the worker, and have it started no more; ``now``: what it runs is given back."""
    id = visit.machine.id
    if visit.service == "plain":
        visit.sh(
            _aeo(visit, f"background stop{' --now' if now else ''} {id}"),
            "the worker does not end",
            seconds=END_SECONDS,
        )
    else:
        unit, control = f"aeo-worker@{id}", _systemctl(visit)
        twice = _in_haste(control, unit) if now else ""
        script = f"{twice}{control} disable --quiet {unit}; {control} stop {unit}"
        visit.sh(script, "the worker does not end", fix=f"See: {_log(visit)}", seconds=END_SECONDS)
    return Done(text="stopped")


def _in_haste(control: str, unit: str) -> str:
    """End a service's process: told twice it gives back what it runs."""
    pid = f"p=$({control} show --property MainPID --value {unit})"
    wait = "i=0; while kill -0 $p && [ $i -lt 30 ]; do sleep 1; i=$((i+1)); done"
    return f'{pid}; if [ "$p" -gt 1 ]; then {{ kill $p; sleep 1; kill $p; {wait}; kill -9 $p; }} 2>/dev/null; fi; '


def _is_running(visit: Visit) -> str:
    if visit.service == "plain":
        return f"{_aeo(visit, f'background status {visit.machine.id}')} >/dev/null 2>&1"
    return f"{_systemctl(visit)} is-active --quiet aeo-worker@{visit.machine.id}"


def _has_ended(visit: Visit) -> bool:
    """Whether it is not there any more, or would end again and again: its settings are wrong."""
    if visit.host.run(_is_running(visit)).code:
        return True
    return visit.service == "plain" and any(line.startswith(f"{ENDED} 2;") for line in last_words(visit))


def _stamp(visit: Visit) -> str:
    """What is to run: this AEO with the settings that lie there."""
    return f"{visit.mark}.{visit.asks(f'cksum < {quoted(settings_file(visit))}').replace(' ', '.')}"


def _aeo(visit: Visit, arguments: str) -> str:
    return f"cd && {quoted(visit.base)}/current/bin/python {_AEO} {arguments}"


def _systemctl(visit: Visit) -> str:
    return "systemctl --user" if visit.service == "user" else "systemctl"


def _log(visit: Visit) -> str:
    user = "--user " if visit.service == "user" else ""
    return f"journalctl {user}-u aeo-worker@{visit.machine.id}"


def look_registered(visit: Visit) -> str:
    """Whether it is a worker of the controller that lives."""
    now = status(visit)
    return _words(now) if now and _is_here(visit, now) else ""


def check_let_in(site: Site, id: str) -> None:
    """See that no person keeps the worker out.

    Raises:
        Conflict: one revoked it.
    """
    if id in credentials.read(site).revoked:
        raise Conflict(f"{id} was revoked by a person.", field="WORKER", fix=f"First: aeo workers allow {id}")


def await_registered(visit: Visit) -> Done:
    """Wait until the worker has registered, and look whether that machine is healthy."""
    until = time.monotonic() + REGISTER_SECONDS
    while True:
        check_let_in(visit.site, visit.machine.id)
        now = status(visit)
        if now and _is_here(visit, now):
            break
        late, ended = time.monotonic() > until, _has_ended(visit)
        if late or ended:
            raise StepFailed(
                "the worker has ended" if ended else "the worker has not registered",
                lines=last_words(visit),
                fix="Mend what it says, and run this again.",
            )
        time.sleep(0.3)
    return Done(text=_words(now), notes=tuple(_complaints(visit)))


def status(visit: Visit) -> WorkerStatus | None:
    """The worker as the store knows it; None when it does not."""
    try:
        return store.get(visit.site.db, visit.machine.id)
    except NotFound:
        return None


def boot(visit: Visit) -> str:
    """The boot of the worker that is known now."""
    now = status(visit)
    return now.info.boot if now else ""


def _is_here(visit: Visit, now: WorkerStatus) -> bool:
    alive = now.heartbeat is not None and now.state is not WorkerState.LOST
    return alive and now.info.boot != visit.boot and now.info.version == __version__


def _words(now: WorkerStatus) -> str:
    executors = ", ".join(f"{name} {version}".strip() for name, version in sorted(now.info.executors.items()))
    slots = now.info.capacity.slots
    return f"{now.state.value} with {slots} slot{'' if slots == 1 else 's'}; {executors}"


def last_words(visit: Visit) -> tuple[str, ...]:
    """The last lines of the worker's log."""
    if visit.service == "plain":
        log = f"{visit.facts.home}/.local/state/aeo/{visit.machine.id}/log"
        said = visit.asks(f"tail -n {_READ_LINES} {quoted(log)}")
    else:
        said = visit.asks(f"{_log(visit)} -n {_READ_LINES} --no-pager -o cat")
    lines = ["".join(letter for letter in line if letter.isprintable())[:300] for line in said.splitlines()]
    return tuple(steps.reasons(lines)[-_LOG_LINES:])


def _complaints(visit: Visit) -> list[str]:
    """What `aeo doctor` has to say of the machine, as its worker."""
    program = "from aeo.cli import main; main(['doctor', '--role', 'worker', '--json'])"
    answer = visit.host.run(visit.with_settings(program), seconds=120)
    try:
        conditions = json.loads(answer.out)["conditions"]
        return [
            f"aeo doctor: {item['about']}: {item['text']}. {item['fix']}"
            for item in conditions
            if item["level"] != "ok"
        ]
    except (ValueError, KeyError, TypeError):
        return ["aeo doctor could not be run there."]


def check_direct(url: str) -> str:
    """Return an address given by hand when it is one.

    Raises:
        InputError: it is not.
    """
    if url and not (url.startswith(("http://", "https://")) and url.isprintable() and " " not in url):
        raise InputError("must begin with http:// or https://.", field="--direct")
    return url.rstrip("/")
