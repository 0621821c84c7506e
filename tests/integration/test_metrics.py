"""Metrics of an engine that runs, read as Prometheus reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import engine
from prometheus_client.parser import text_string_to_metric_families
from waiting import eventually

from aeo.site import Site
from aeo.store import workers
from webapp import create_app

TOKEN = "s3cret-token-of-this-test"


def value(text: str, name: str, **labels: str) -> float:
    """One sample."""
    return next(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_a_run_shows_in_every_metric(site: Site, tmp_path: Path) -> None:
    client = create_app(replace(site, config=replace(site.config, auth_token=TOKEN))).test_client()

    def scrape() -> str:
        return client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).text

    for id in ("w1", "w2"):
        engine.register(site, id)
    engine.beat(site, "w2", 0.001)
    eventually(lambda: workers.get(site.db, "w2").heartbeat is None)
    id = engine.submit(site, {"name": "m", "tasks": 4, "seconds": 0.01}).id
    before = scrape()
    assert value(before, "aeo_store_up") == 1
    assert value(before, "aeo_trials", state="pending") == 4
    assert value(before, "aeo_evaluations", state="running") == 1
    assert value(before, "aeo_worker_slots", worker="w1") == 2
    assert value(before, "aeo_worker_slots", worker="w2") == 0
    assert value(before, "aeo_worker_up", worker="w2") == 0
    assert value(before, "aeo_worker_heartbeat_age_seconds", worker="w2") >= 0
    assert value(before, "aeo_workers", state="lost") == 1
    assert value(before, "aeo_trials_ended_total", outcome="scored") == 0

    with engine.running(site, tmp_path, "w1"):
        engine.closed(site, id)
    # The loops have ended, and with them what is counted is kept.
    after = scrape()
    assert value(after, "aeo_trials_ended_total", outcome="scored") == 4
    assert value(after, "aeo_commit_seconds_count") == 4
    assert 0 < value(after, "aeo_commit_seconds_sum") < 60
    assert value(after, "aeo_evaluations", state="succeeded") == 1
    assert value(after, "aeo_trials", state="pending") == 0
    assert value(after, "aeo_worker_takes_work", worker="w1") == 1
