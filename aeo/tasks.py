"""Celery messages, one line each. A worker or control process says with `bind` what they work on."""

from __future__ import annotations

import logging
from typing import Any

from celery import shared_task
from celery.exceptions import Ignore

from aeo import batches, jobs, logs, turns
from aeo.celery import MERGE, RUN_BATCH
from aeo.core.errors import Unavailable
from aeo.core.model import Batch
from aeo.site import Site, WorkerSite

log = logging.getLogger(__name__)

_bound: dict[str, Any] = {}


def bind(site: Site | WorkerSite) -> None:
    """Set what the messages of this process work on; once, before the first is consumed."""
    _bound["site"] = site


@shared_task(name=RUN_BATCH, bind=True)
def run_batch(self: Any, evaluation: str, batch: str) -> dict[str, Any]:
    """Run one batch. Never fails: a member that does would keep the chord's callback from ever being sent."""
    site: WorkerSite = _bound["site"]
    worker = site.config.worker_id
    asked, failed = Batch(id=batch, evaluation=evaluation, worker=worker, message=self.request.id), False
    with logs.about(evaluation=evaluation, batch=batch, worker=worker):
        try:
            done = batches.run(site, asked)
        except Exception as error:
            if isinstance(error, Unavailable):
                # No fault of ours: this worker's rights were taken away, or the store is away.
                log.warning("batch %s ended early: %s", batch, error)
            else:
                log.exception("batch %s ended early", batch)
            done, failed = {"batch": batch, "ran": 0, "error": f"{type(error).__name__}: {error}"}, True
        if done.get("again"):
            # Its message was sent again: this one must not count in the chord.
            raise Ignore
        if not turns.await_store(site, asked, end=failed):
            # Its result would be refused, and with it the slot would be lost.
            raise Ignore
    return done


@shared_task(name=MERGE, ignore_result=True)
def merge(evaluation: str) -> None:
    """Close the evaluation's job, or see what is still open."""
    with logs.about(evaluation=evaluation):
        jobs.merge(_bound["site"], evaluation)
