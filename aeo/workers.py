"""Workers: what one is, what it says of itself while it lives, how the controller sees them."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import psutil

from aeo import __version__, credentials, dispatch, executors
from aeo.config import Config
from aeo.core.errors import AeoError, Conflict, InputError, NotFound
from aeo.core.model import Capacity, Heartbeat, WorkerInfo, WorkerState
from aeo.core.names import check_name
from aeo.images import Images
from aeo.layout import Local
from aeo.secrets import needs
from aeo.site import Site
from aeo.store import evaluations as evaluation_store
from aeo.store import health, samples, trials
from aeo.store import workers as store
from aeo.store.evaluations import BatchState
from aeo.store.samples import Sample
from aeo.store.trials import Requeued
from aeo.store.workers import WorkerStatus

log = logging.getLogger(__name__)

MIB = 1024 * 1024

#: With less free disk than this, or than this share of the disk where that is less, a worker claims nothing.
LOW_DISK_BYTES, LOW_DISK_SHARE = 1024 * MIB, 0.05
#: How it says so.
DISK_FULL = "disk nearly full"

#: Ids that no worker may have: the control process consumes under this one.
RESERVED = frozenset({dispatch.CONTROL})


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """A worker as pages, API and command line show it."""

    info: WorkerInfo
    state: WorkerState
    #: What a person wrote when pausing it, or why the worker itself claims nothing.
    note: str
    heartbeat: Heartbeat | None
    #: Seconds since the last heartbeat; None if there is none.
    heartbeat_age: float | None
    #: Its part when trials are shared out: a person's override, else its slots.
    weight: float
    weight_override: float | None
    #: Slots in use.
    busy: int
    #: Batches waiting in its queue.
    queued: int
    #: Its last runs, as many as its breaker looks at, and how many of them infrastructure failed.
    recent_runs: int = 0
    recent_failed: int = 0
    #: As learnt from what it ran: 0.5 takes twice as long as usual.
    speed: float = 1.0


def check_id(id: str, *, field: str = "id") -> str:
    """Return ``id`` when a worker may have it.

    Raises:
        InputError: it is no name, or the platform's own.
    """
    check_name(id, "worker id", field=field)
    if id in RESERVED:
        raise InputError(f"{id!r} is the platform's own.", field=field, fix="Choose another id.")
    return id


def views(site: Site) -> list[WorkerView]:
    """Every known worker, by id."""
    return _views(site, store.all(site.db))


def view(site: Site, id: str) -> WorkerView:
    """One worker.

    Raises:
        NotFound: none is registered under this id.
    """
    return _views(site, [store.get(site.db, id)])[0]


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Batches of one evaluation that wait in a worker's queue."""

    evaluation: str
    name: str
    batches: int


@dataclass(frozen=True, kw_only=True)
class WorkerRun:
    """A trial that a worker runs."""

    evaluation: str
    name: str
    trial: str
    attempt: int
    started_at: datetime
    #: What it does now; may be empty.
    phase: str


@dataclass(frozen=True, kw_only=True)
class WorkerDetail:
    """One worker, looked at closely."""

    worker: WorkerView
    #: One a minute, the oldest first.
    samples: tuple[Sample, ...]
    running: tuple[WorkerRun, ...]
    waiting: tuple[Waiting, ...]


def detail(site: Site, id: str) -> WorkerDetail:
    """Look at one worker closely.

    Raises:
        NotFound: none is registered under this id.
    """
    shown = view(site, id)
    running: list[WorkerRun] = []
    waiting: list[Waiting] = []
    for status in evaluation_store.several(site.db, evaluation_store.open_ids(site.db)):
        running += [
            WorkerRun(
                evaluation=status.id,
                name=status.name,
                trial=run.claim.trial,
                attempt=run.claim.attempt,
                started_at=run.started_at,
                phase=run.phase,
            )
            for run in trials.running(site.db, status.id)
            if run.claim.worker == id
        ]
        sent = [item for item in evaluation_store.batches(site.db, status.id) if item.batch.worker == id]
        if count := sum(item.state is BatchState.SENT for item in sent):
            waiting.append(Waiting(evaluation=status.id, name=status.name, batches=count))
    return WorkerDetail(
        worker=shown, samples=samples.of(site.db, [id])[id], running=tuple(running), waiting=tuple(waiting)
    )


def _views(site: Site, found: list[WorkerStatus]) -> list[WorkerView]:
    lists = {status.info.id: dispatch.lists_of(dispatch.queue_of(status.info.id)) for status in found}
    lengths = health.queue_lengths(site.db, [name for names in lists.values() for name in names])
    return [
        WorkerView(
            info=status.info,
            state=status.state,
            note=status.note or (status.heartbeat.draining if status.heartbeat else ""),
            heartbeat=status.heartbeat,
            heartbeat_age=status.heartbeat_age,
            weight=float(status.info.capacity.slots) if status.weight_override is None else status.weight_override,
            weight_override=status.weight_override,
            # A finished run holds its lease until its result has arrived, while the slot has the next one.
            busy=min(status.busy, status.info.capacity.slots),
            queued=sum(lengths[name] for name in lists[status.info.id]),
            recent_runs=len(status.recent),
            recent_failed=sum(status.recent),
            speed=status.speed,
        )
        for status in found
    ]


@dataclass(frozen=True, kw_only=True)
class Removed:
    """A worker that was forgotten."""

    id: str
    #: Running trials that wait for another worker now.
    given_back: int
    #: It lives: it is told at its next heartbeat, stops what it runs, and stays out until it is restarted or let in.
    alive: bool


def remove(site: Site, id: str, *, force: bool = False) -> Removed:
    """Forget a worker and give back what it ran; no trial comes nearer to its limit of requeues by that.

    Its process stays out, whether it lives or comes back from a cut: until it is started again, or `allow`.

    Raises:
        NotFound: none is registered under this id.
        Conflict: it is alive and runs trials, and ``force`` was not said.
    """
    status = store.get(site.db, id)
    alive = status.state is not WorkerState.LOST
    if alive and status.busy and not force:
        raise Conflict(
            f"worker {id} is alive and runs trials: {status.busy}.",
            field="id",
            fix="Drain it first, or force its removal: what it runs is given back then.",
        )
    return Removed(id=id, given_back=_take_back(site, id, "removed"), alive=alive)


def revoke(site: Site, id: str) -> Removed:
    """Take a worker's credentials away, cut its connections, and give back what it ran, as `remove` by force does.

    It is not let in again, by whatever process, until `allow`.

    Raises:
        NotFound: none is registered under this id, and none was given credentials.
        Unavailable: the store is away. It is kept out all the same; the rest is done by the same call once more.
    """
    try:
        alive = store.get(site.db, id).state is not WorkerState.LOST
    except NotFound:
        book = credentials.read(site)
        if id not in book.accounts and id not in book.revoked:
            raise
        alive = False
    credentials.revoke(site, id)
    return Removed(id=id, given_back=_take_back(site, id, "revoked"), alive=alive)


def _take_back(site: Site, id: str, what: str) -> int:
    """End a worker's batches, give back what it runs and forget it with its queue; returns how many trials.

    From the first step on it claims nothing and takes nothing back. After a crash between them the same call goes on.
    """
    store.bar(site.db, id)
    for evaluation in evaluation_store.open_ids(site.db):
        for item in evaluation_store.batches(site.db, evaluation):
            if item.batch.worker == id and item.state is not BatchState.ENDED:
                evaluation_store.end_batch(site.db, item.batch)
    given_back = 0
    for claim in trials.workers_claims(site.db, id):
        where = (claim.evaluation, claim.trial, claim.token)
        reason = f"worker {id} was {what} by a person"
        answer = trials.requeue(site.db, *where, reason=reason, max_requeues=0, counted=False)
        given_back += answer is Requeued.AGAIN
    store.remove(site.db, id)
    # What waits there of evaluations that nobody lets it reach any more would be refused to it when it is back.
    health.drop_queues(site.db, dispatch.lists_of(dispatch.queue_of(id)))
    return given_back


def pause(site: Site, id: str, *, by: str, note: str = "") -> WorkerView:
    """Let a worker claim nothing until it is resumed, also after a restart; what it runs goes on.

    ``by``: the user who wants it.

    Raises:
        NotFound: none is registered under this id; likewise the next two.
    """
    return _tell(site, id, WorkerState.PAUSED, f"paused by {by}" + (f": {note}" if note else ""))


def drain(site: Site, id: str, *, by: str) -> WorkerView:
    """Let a worker finish what it runs and claim nothing more, until it is restarted or resumed."""
    return _tell(site, id, WorkerState.DRAINING, f"drained by {by}")


def resume(site: Site, id: str) -> WorkerView:
    """Let a paused or draining worker take work again."""
    return _tell(site, id, WorkerState.ONLINE, "")


def _tell(site: Site, id: str, state: WorkerState, note: str) -> WorkerView:
    store.set_state(site.db, id, state, note)
    return view(site, id)


def admit(site: Site, info: WorkerInfo) -> None:
    """Take a worker in that presents itself.

    Raises:
        InputError: its id is no name, or the platform's own.
        Conflict: a live worker has this id, or a person removed or revoked this one.
    """
    check_id(info.id)
    credentials.check(site, info.id)
    store.register(site.db, info, ttl_seconds=site.config.grace_seconds)


def allow(site: Site, id: str) -> None:
    """Let a removed worker in again: it registers at its next heartbeat. A revoked one gets new credentials then.

    Raises:
        NotFound: none of this id was removed or revoked, or it was started again since.
    """
    revoked = credentials.allow(site, id)
    if not store.allow(site.db, id) and not revoked:
        raise NotFound(f"no worker {id!r} is kept out.", field="id")


def info(config: Config, *, boot: str, instance: str) -> WorkerInfo:
    """Describe this machine as a worker. Executors that cannot run here are left out, with a line in the log."""
    return WorkerInfo(
        id=config.worker_id,
        display_name=config.display_name or config.worker_id,
        host=config.host,
        capacity=Capacity(
            slots=config.slots,
            cpus=_cpus(),
            memory_mb=_memory() // MIB,
            disk_mb=_disk(config.local_root) // MIB,
            overcommit=config.overcommit,
        ),
        boot=boot,
        instance=instance,
        executors=_executors(),
        version=__version__,
        variables=needs.told(config.tell_secrets),
    )


def _executors() -> dict[str, str]:
    versions = {}
    for name in executors.installed():
        try:
            versions[name] = executors.load(name).version()
        except AeoError as error:
            log.warning("executor %s cannot run here: %s", name, error)
    return versions


def _cpus() -> float:
    """What this process may use: the machine's, less affinity, less the container's quota."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        count = psutil.cpu_count() or 1
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period):
        return min(float(count), round(int(quota) / int(period), 2))
    return float(count)


def _memory() -> int:
    total: int = psutil.virtual_memory().total
    limit = _read("/sys/fs/cgroup/memory.max")
    return min(total, int(limit)) if limit.isdigit() else total


def _disk(root: Path) -> int:
    """What trials may fill: what is free now, less what must stay so."""
    try:
        usage = psutil.disk_usage(str(root))
    except OSError:
        return 0
    return max(MIB, int(usage.free - min(LOW_DISK_BYTES, usage.total * LOW_DISK_SHARE)))


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def low_disk(root: Path) -> str:
    """Say why ``root`` cannot take another trial; "" if it can."""
    usage = psutil.disk_usage(str(root))
    if usage.free >= min(LOW_DISK_BYTES, usage.total * LOW_DISK_SHARE):
        return ""
    return f"{DISK_FULL}: {usage.free // MIB} MiB free"


_images = Images()


def heartbeat(local: Local, *, boot: str, batches: tuple[str, ...], draining: str) -> Heartbeat:
    """Look at this machine now. The store sets the time, as this clock may be off."""
    disk = psutil.disk_usage(str(local.root))
    return Heartbeat(
        boot=boot,
        at=datetime.now(timezone.utc),
        busy=len(batches),
        batches=batches,
        cpu_percent=psutil.cpu_percent(None),
        memory_percent=psutil.virtual_memory().percent,
        disk_free=disk.free,
        disk_total=disk.total,
        draining=draining,
        images=_images.count(),
    )
