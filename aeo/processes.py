"""The long-running processes, each one call: `worker`, `control`, `web`.

``python -m aeo.processes ROLE`` is how a parent starts one: configured by ``AEO_*`` alone, and stopped as by SIGTERM
when its standard input closes, since its parent is gone then.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from aeo import (
    batches,
    cleaning,
    executors,
    folders,
    lock,
    logs,
    memory,
    outbox,
    predecessor,
    prefetching,
    reach,
    registration,
    tasks,
    workers,
)
from aeo import control as control_loops
from aeo.celery import Stop, consume, make_app
from aeo.config import Config, from_environment
from aeo.core.errors import AeoError, ExecutorFailed, InputError, Refused, Unavailable
from aeo.core.model import WorkerInfo
from aeo.core.names import check_name
from aeo.dispatch import CONTROL, queue_of
from aeo.layout import Local
from aeo.pulse import Pulse
from aeo.registration import Addresses
from aeo.rsyncd import modules
from aeo.site import WorkerSite, open_site
from aeo.stay import Stay, again
from aeo.store import health
from aeo.store import workers as worker_store
from aeo.store.connection import Db, Denied, connect
from aeo.transfer import remote
from aeo.transfer.remote import Remote

log = logging.getLogger(__name__)

#: Messages the control process handles at once: a long merge must not hold up the others.
CONTROL_SLOTS = 2


def worker(config: Config, *, mounted: Path | None = None) -> int:
    """Run a worker until SIGTERM: then the running trials are finished; at a second one they are given back.

    ``mounted`` is where the controller's shared root appears on this machine, if it is shared under another path.

    Raises:
        Conflict: its local root or its id is in use.
        Refused: the controller refuses the token.
        InputError: an address or a folder cannot be used, or there is no token.
        Unavailable: the broker does not answer.
    """
    workers.check_id(config.worker_id, field="--worker-id")
    registration.check_token(config.auth_token)
    local = Local(folders.make(config.local_root, field="--local-root"))
    folders.make(local.batches, field="--local-root", mode=0o700)
    with lock.hold(local.identity, "worker", field="--local-root") as identity, _told_to_stop() as told:
        left = _clear(local, identity)
        info = workers.info(config, boot=secrets.token_hex(8), instance=_instance(identity))
        stay = Stay(local=local, name=config.worker_id)
        try:
            place, given = _try_own(config, told), config
            config = _introduce(config, info, told, mounted)
            elsewhere = partial(_elsewhere, given, config, mounted)
            with _present(config, info):
                code = _work(config, stay, place or reach.transfer(config, told), info, told, elsewhere, left)
        except Unavailable:
            if told.is_set():
                return 0
            raise
    if stay.renewing:
        again()
    return code


def _try_own(config: Config, told: threading.Event) -> Remote | None:
    """Try the addresses given by hand, before anybody counts on this worker; returns that of transfers, if it works."""
    if config.broker_url:
        _try_broker(config, told, fix="Check --broker-url.")
    if not config.transfer_url:
        return None
    # The controller may yet tell the password.
    waits = remote.parse(config.transfer_url).kind == "rsync" and not config.transfer_password
    return None if waits else reach.transfer(config, told)


def _try_broker(config: Config, told: threading.Event, *, fix: str) -> None:
    try:
        reach.broker(config.broker_url, told)
    except Unavailable as error:
        if isinstance(error, Denied) and urlsplit(config.broker_url).password is None:
            # It is there. The credentials come when we register.
            return
        raise Unavailable(f"{str(error).rstrip('.')}. {fix}") from None


@contextmanager
def _present(config: Config, info: WorkerInfo) -> Iterator[None]:
    """Say goodbye at the end, whatever the end is: a worker that is gone must get no share."""
    try:
        yield
    finally:
        with suppress(AeoError):
            db = connect(config.broker_url)
            try:
                worker_store.leave(db, info.id, info.boot)
            finally:
                db.close()


def _work(
    config: Config,
    stay: Stay,
    place: Remote,
    info: WorkerInfo,
    told: threading.Event,
    elsewhere: Callable[[Addresses], str],
    left: Set[str],
) -> int:
    local = stay.local
    fix = "The controller names that address: forward its port to this machine, or give --broker-url."
    _try_broker(config, told, fix=fix)
    site = WorkerSite(
        config=config,
        local=local,
        db=connect(config.broker_url),
        remote=place,
        draining=stay.reason,
        crowded=memory.low,
        stopping=stay.now,
    )
    stay.idle = lambda: not site.leases.running()
    pulse = Pulse(
        config,
        look=lambda: stay.look(info.boot),
        heed=stay.heed,
        register=lambda: registration.register(config, info, again=True),
        dismiss=stay.dismiss,
        begin_anew=stay.begin_anew,
        elsewhere=elsewhere,
        unsent=site.sender.failing_seconds,
    )
    keeper = threading.Thread(target=outbox.keep, args=(site, stay.over), name="outbox", daemon=True)
    cleaner = threading.Thread(target=cleaning.keep_clean, args=(site, stay.over), name="cleaning", daemon=True)
    ahead = threading.Thread(target=prefetching.keep, args=(site, stay.over), name="prefetching", daemon=True)
    tasks.bind(site)
    with _outages(site.db):
        predecessor.give_back(site, left)
        predecessor.adopt(site)
        pulse.start()
        keeper.start()
        cleaner.start()
        ahead.start()
        try:
            return consume(
                make_app(config.broker_url, worker=config.worker_id),
                name=config.worker_id,
                queue=queue_of(config.worker_id),
                slots=config.slots,
                stop=Stop(warm=stay.leave, cold=stay.give_back, told=told),
            )
        finally:
            site.sender.finish(site)
            stay.over.set()
            keeper.join()
            # What it has begun ends with it, or is done again.
            ahead.join(prefetching.END_SECONDS)
            pulse.stop()
            batches.close_resting(site)
            _sweep(local)
            site.db.close()


def _instance(identity: IO[str]) -> str:
    """The id that lives in a worker's local root, made at its first start."""
    text: str = identity.read()
    if not text:
        text = json.dumps({"instance": secrets.token_hex(8)})
        identity.write(text)
        identity.flush()
    try:
        return check_name(str(json.loads(text)["instance"]), "instance id")
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{identity.name} is damaged.", field="--local-root", fix="Delete that file.") from None


def _clear(local: Local, identity: IO[str]) -> frozenset[str]:
    """Clear the root of what a killed process left; returns the runs that are known to have ended with it."""
    swept = _sweep(local)
    left = predecessor.runs_left(local, identity)
    _drop_scratch(local)
    predecessor.take_seat(local, identity)
    # What could not be swept may run on.
    return left if swept else frozenset()


def _sweep(local: Local) -> bool:
    """Clean up after sessions that are dead; whether each executor could."""
    clean = True
    for name in executors.installed():
        try:
            executors.load(name).sweep(local.batches)
        except ExecutorFailed as error:
            log.warning("%s", error)
            clean = False
        except Exception:  # a plug-in's fault must not keep the worker from working with the others
            log.exception("executor %s could not sweep %s", name, local.batches)
            clean = False
    return clean


def _drop_scratch(local: Local) -> None:
    """Drop what a killed worker left of its batches: nobody goes on with it, and it would fill the disk."""
    for left in local.batches.iterdir():
        shutil.rmtree(left, ignore_errors=True)


def _introduce(config: Config, info: WorkerInfo, told: threading.Event, mounted: Path | None) -> Config:
    """Register, and take from the answer what was not given by hand."""
    return _with(config, registration.register_patiently(config, info, told), mounted)


def _with(config: Config, found: Addresses, mounted: Path | None) -> Config:
    if mounted is not None and (found.shared_root or remote.parse(found.transfer_url).kind == "local"):
        found = replace(found, transfer_url=str(mounted.resolve()))
    elif found.shared_root and modules.has_mark(Path(found.shared_root), found.shared_mark):
        found = replace(found, transfer_url=found.shared_root)
    # Its secret at the controller's own daemon is no business of another one.
    secret = "" if config.transfer_url and found.shared_root else found.transfer_password
    return replace(
        config,
        broker_url=_broker(config.broker_url, found.broker_url),
        transfer_url=config.transfer_url or found.transfer_url,
        transfer_password=config.transfer_password or secret,
        # These are one agreement between all.
        lease_seconds=found.lease_seconds,
        grace_seconds=found.grace_seconds,
    )


def _elsewhere(given: Config, used: Config, mounted: Path | None, found: Addresses) -> str:
    """What of the addresses told is another than what is used, in words; "" when nothing is.

    ``given`` is what was given by hand. A broker that does not answer from here is nothing to change to.
    """
    told = _with(given, found, mounted)
    if found.broker_url:
        new, old = urlsplit(told.broker_url), urlsplit(used.broker_url)
        other = (new.scheme, new.hostname, new.port, new.path) != (old.scheme, old.hostname, old.port, old.path)
        # Without one it keeps what it has.
        secret = new.password is not None and (new.username, new.password) != (old.username, old.password)
        place = f"{new.hostname}:{new.port or 6379}"
        if (other or secret) and not reach.listens(new.hostname or "", new.port or 6379):
            log.warning("the controller names the broker %s, which does not answer from here", place)
        elif other or secret:
            return f"the broker is at {place} now" if other else "the broker has another password now"
    if told.transfer_url != used.transfer_url:
        return f"results go to {remote.parse(told.transfer_url)} now"
    if found.transfer_password and told.transfer_password != used.transfer_password:
        return "the transfer address has another password now"
    return ""


def _broker(given: str, told: str) -> str:
    """The broker's address: the one given by hand, with the credentials told where it has none."""
    if not given or urlsplit(given).password is not None or urlsplit(told).password is None:
        return given or told
    parts = urlsplit(given)
    account = urlsplit(told).netloc.rpartition("@")[0]
    return parts._replace(netloc=f"{account}@{parts.netloc.rpartition('@')[2]}").geturl()


def control(config: Config) -> int:
    """Run the control process until SIGTERM: its loops, and the messages of its queue."""
    site = open_site(config)
    over = threading.Event()
    broken = threading.Event()

    def loops() -> None:
        try:
            control_loops.run(site, over)
        except Exception:
            log.exception("the control loops ended")
            broken.set()
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=loops, name="control")
    tasks.bind(site)
    with _told_to_stop() as told, _outages(site.db):
        thread.start()
        try:
            code = consume(
                make_app(config.broker_url, worker=CONTROL),
                name=CONTROL,
                queue=CONTROL,
                slots=CONTROL_SLOTS,
                stop=Stop(warm=over.set, cold=over.set, told=told),
            )
        finally:
            over.set()
            thread.join()
            site.db.close()
    return code or int(broken.is_set())


def web(config: Config) -> int:
    """Run the web process until SIGTERM."""
    # Here, so that a worker does not load the web application.
    from webapp.server import serve

    site = open_site(config)
    with _outages(site.db):
        serve(site)
    return 0


def check_address(config: Config) -> None:
    """See that the web process will be able to listen, before anything is made.

    Raises:
        InputError: the address is taken or not of this machine; names the flag.
    """
    from webapp.server import listen

    listen(config).close()


def _outages(db: Db) -> AbstractContextManager[None]:
    parts = urlsplit(db.url)
    return logs.outages(f"{parts.hostname}:{parts.port or 6379}", lambda: health.ping(db))


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Set when SIGTERM or SIGINT arrives, until others take over the signals."""
    told = threading.Event()
    old = {number: signal.signal(number, lambda *_: told.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield told
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


ROLES: Mapping[str, Callable[[Config], int]] = {"worker": worker, "control": control, "web": web}


def _watch_parent() -> None:
    def wait() -> None:
        with suppress(OSError):
            while os.read(0, 1024):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def main(role: str) -> int:
    """Run one role as a child process; errors of ours become exit codes as those of `aeo`."""
    _watch_parent()
    try:
        config = from_environment()
        logs.to_stderr(config, process=role, **({"worker": config.worker_id} if role == "worker" else {}))
        return ROLES[role](config)
    except AeoError as error:
        for line in str(error).splitlines():
            print(f"Error: {line}", file=sys.stderr)  # noqa: T201
        return 2 if isinstance(error, (InputError, Refused)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
