"""Batches as Celery messages: one chord whose callback merges; the same message again; the bell alone.

Messages go by name, so nothing here imports what they run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

from celery import Celery, chord, group
from celery.canvas import Signature
from celery.exceptions import OperationalError

from aeo import credentials
from aeo.celery import MERGE, PRIORITIES, RUN_BATCH, sender
from aeo.core.errors import Unavailable
from aeo.core.model import Batch
from aeo.site import Site, WorkerSite
from aeo.store import evaluations

#: The control process's queue.
CONTROL = "control"

#: Between a queue's name and its priority in the name of a Redis list: kombu's own default, which Flower reads too.
_SEPARATOR = "\x06\x16"


def queue_of(worker: str) -> str:
    """The queue only this worker reads."""
    return f"worker.{worker}"


def lists_of(queue: str) -> tuple[str, ...]:
    """The Redis lists that together are one queue, first served first."""
    return tuple(f"{queue}{_SEPARATOR}{step}" if step else queue for step in PRIORITIES)


def send(site: Site, evaluation: str, batches: Sequence[Batch], *, priority: int = 0) -> list[Batch]:
    """Send batches as one chord: each into its worker's queue, the merge into `CONTROL` when the last has returned.

    The ids are stored first, so that a message lost on its way can be sent again as the same member of the chord.
    Returns the batches with their message. ``priority`` is the evaluation's: higher is served first.

    Raises:
        Unavailable: the store or the broker is away.
    """
    if not batches:
        return []
    credentials.grant(site, evaluation, {batch.worker for batch in batches})
    app = sender(site.config.broker_url)
    # The evaluation's id before it is what a worker's rights go by; batches' ids have it too.
    group_id, body = f"{evaluation}-{uuid4().hex}", _merge(site, evaluation)
    body.freeze(uuid4().hex, group_id=group_id)
    step = _step(priority)
    sent = [
        replace(batch, message=json.dumps(_member(batch, group_id, index, step, body)))
        for index, batch in enumerate(batches)
    ]
    for batch in sent:
        evaluations.set_message(site.db, batch)
    header = group([_message(app, batch, batch.worker, step) for batch in sent], app=app)
    header.options["task_id"] = group_id
    with _sending(site) as app:
        # `run` and not `apply_async`, which would clone the header and so lose the group's id.
        chord(header, body, app=app).run(header, body, (), app=app, task_id=body.options["task_id"])
    return sent


def resend(site: Site | WorkerSite, batch: Batch, *, worker: str = "", behind: bool = False) -> None:
    """Send a batch's message again, the same member of the same chord, to its own worker or another one.

    ``behind``: after those of every priority. Who waits for room and has the highest would be the next to get the slot
    that it gave to others, again and again; those let it pass as soon as it can run (see `aeo.core.choose`).

    Celery counts a member once however often it returns, so a message that was not lost does no harm.

    Raises:
        Unavailable: the broker is away.
        ValueError: the batch was never sent.
    """
    if isinstance(site, Site):
        credentials.grant(site, batch.evaluation, {worker or batch.worker})
    member = json.loads(batch.message)
    place = {key: member[key] for key in ("group_id", "group_index", "chord")}
    with _sending(site) as app:
        step = PRIORITIES[-1] if behind else member["priority"]
        _message(app, batch, worker or batch.worker, step).apply_async(**place)


def ring(site: Site, evaluation: str) -> None:
    """Ask for a merge outside any chord.

    Raises:
        Unavailable: the broker is away.
    """
    with _sending(site):
        _merge(site, evaluation).apply_async()


def _merge(site: Site, evaluation: str) -> Signature[Any]:
    # Immutable: the merge looks at the store and the disk, never at what the batches returned.
    return sender(site.config.broker_url).signature(MERGE, args=(evaluation,), immutable=True, queue=CONTROL)


def _message(app: Celery, batch: Batch, worker: str, step: int) -> Signature[Any]:
    return app.signature(
        RUN_BATCH, args=(batch.evaluation, batch.id), task_id=batch.id, queue=queue_of(worker), priority=step
    )


def _member(batch: Batch, group_id: str, index: int, step: int, body: Signature[Any]) -> dict[str, Any]:
    return {"id": batch.id, "group_id": group_id, "group_index": index, "priority": step, "chord": dict(body)}


def _step(priority: int) -> int:
    """Celery's priority on Redis (0 is served first) for an evaluation's (higher is first, 0 is usual)."""
    return PRIORITIES[2] if priority < 0 else PRIORITIES[0] if priority > 0 else PRIORITIES[1]


@contextmanager
def _sending(site: Site | WorkerSite) -> Iterator[Celery]:
    app = sender(site.config.broker_url)
    backend: Any = app.backend
    try:
        yield app
    except (OperationalError, *backend.connection_errors) as error:
        raise Unavailable(f"The broker does not answer: {error}") from error
