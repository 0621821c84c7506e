"""A lease that ended under a worker that lives: whether its trial waits for the grace is the worker's word."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine import register, submit
from waiting import eventually

from aeo import reconciliation
from aeo.core.model import Heartbeat, TrialState
from aeo.site import Site
from aeo.store import connection, health, trials, workers
from aeo.store import evaluations as store


@pytest.mark.parametrize("known", [False, True], ids=["restarted", "hung"])
def test_a_run_that_its_worker_does_not_know_waits_for_no_grace(
    site: Site, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(site, "a", slots=1)
    health.mark_recovered(site.db)
    # The store's own age would else hold back all that needs the grace.
    monkeypatch.setattr(health, "settled_seconds", lambda _: 1000.0)
    site = replace(site, config=replace(site.config, grace_seconds=600))
    id = submit(site, {"name": "x", "trials": 1}, workers=["a"]).id
    (status,) = store.batches(site.db, id)
    store.start_batch(site.db, status.batch)
    claim = trials.claim(site.db, status.batch, token="t", lease_seconds=0.05)
    assert claim is not None
    eventually(lambda: trials.expired(site.db, id))
    batches = (status.batch.id,) if known else ()
    beat = Heartbeat(boot="boot", at=connection.now(site.db), batches=batches)
    workers.beat(site.db, "a", beat, ttl_seconds=600)
    reconciliation.reconcile(site)
    wanted = TrialState.RUNNING if known else TrialState.PENDING
    assert trials.state(site.db, id, claim.trial) is wanted
