"""Workers that have users of their own at the broker, and evaluations they have a share in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from store_samples import a_worker, an_evaluation

from aeo import credentials, dispatch, workers
from aeo.core.model import Batch
from aeo.site import Site
from aeo.store import evaluations
from aeo.store import workers as store
from aeo.store.connection import Db, connect


def given(site: Site, id: str, boot: str = "boot-1", *, again: bool = False) -> str:
    """Register a worker; returns the broker's address it is told."""
    info = replace(a_worker(id, boot=boot), executors={"sleep": ""})
    workers.admit(site, info)
    return credentials.issue(site, info, again=again).broker_url


@contextmanager
def as_worker(url: str) -> Iterator[Db]:
    """The store as who was given this address."""
    db = connect(url)
    try:
        yield db
    finally:
        db.close()


def evaluation(site: Site, id: str, *ids: str) -> dict[str, Batch]:
    """An evaluation of two trials for each of these workers; its messages are sent."""
    batches = {worker: Batch(id=f"{id}-{worker}", evaluation=id, worker=worker) for worker in ids}
    names = [f"{worker}{number}" for worker in ids for number in (1, 2)]
    shares = {batch: [f"{worker}1", f"{worker}2"] for worker, batch in batches.items()}
    evaluations.save(site.db, an_evaluation(names, id=id, name=id), shares, {})
    site.shared.evaluation(id).mkdir()
    dispatch.send(site, id, list(batches.values()))
    return batches


def pool(site: Site) -> dict[str, store.WorkerStatus]:
    """Every worker, by id."""
    return {status.info.id: status for status in store.all(site.db)}


def patterns(site: Site, id: str) -> str:
    """The line of the broker's list that says what a worker may."""
    return str(next(line for line in site.db.client.execute_command("ACL", "LIST") if f"user worker-{id} " in line))
