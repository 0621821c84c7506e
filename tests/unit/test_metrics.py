"""What is counted from events, and what it becomes for Prometheus; the dashboard asks for nothing else."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from aeo import metrics
from aeo.config import Config
from aeo.layout import Shared
from aeo.meters import BOUNDS, Meters, Reading, read
from aeo.site import Site
from aeo.store.connection import Db
from aeo.store.events import Event
from aeo.users import Role, add
from webapp import create_app

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
TOKEN = "s3cret-token-of-this-test"
DASHBOARD = Path(__file__).parents[2] / "deploy/grafana/aeo.json"


def event(kind: str, trial: str = "t", after: float = 0.0, **fields: str) -> Event:
    at = NOW + timedelta(seconds=after)
    return Event(evaluation="e", kind=kind, at=at, fields={"trial": trial, "token": "1", **fields})


def samples(text: bytes) -> dict[str, float]:
    """Each sample by its name and labels, as a query writes them."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


@pytest.fixture
def web_site(tmp_path: Path, fake_db: Db) -> Site:
    (tmp_path / "jobs").mkdir()
    return Site(config=Config(auth_token=TOKEN), shared=Shared(tmp_path, tmp_path / "jobs"), db=fake_db)


def test_events_are_counted_and_outlive_a_restart(tmp_path: Path) -> None:
    meters = Meters(tmp_path / "meters.json")
    for one in (
        event("pushed", "a"),
        event("committed", "a", 0.2, outcome="scored"),
        event("requeued", "b"),
        event("pushed", "b", 1),
        event("committed", "b", 1000, outcome="infra_error"),
        event("committed", "c", outcome="cancelled"),
        event("superseded", "a", 3),
        event("claimed", "d"),
    ):
        meters.note(one)
    meters.keep(at_once=True)
    again = Meters(tmp_path / "meters.json")
    again.note(event("committed", "d", outcome="scored"))
    reading = again.reading()
    assert reading.outcomes == {"scored": 2, "infra_error": 1, "cancelled": 1, "invalid": 0}
    assert (reading.requeued, reading.superseded) == (1, 1)
    # 0.2 s, and 999 s beyond the last bound; the others' arrival was never seen.
    assert reading.commits == (0, 0, 1, *[0] * (len(BOUNDS) - 3), 1)
    assert reading.commit_seconds == pytest.approx(999.2)


@given(seconds=st.lists(st.floats(0, 1000), max_size=20))
def test_every_commit_is_in_the_class_of_its_time(
    seconds: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    meters = Meters(tmp_path_factory.getbasetemp() / "none.json")
    for place, after in enumerate(seconds):
        meters.note(event("pushed", str(place)))
        meters.note(event("committed", str(place), after, outcome="scored"))
    reading = meters.reading()
    taken = [timedelta(seconds=after).total_seconds() for after in seconds]
    for place, bound in enumerate(BOUNDS):
        assert sum(reading.commits[: place + 1]) == sum(value <= bound for value in taken)
    assert sum(reading.commits) == len(seconds)


@pytest.mark.parametrize("text", ["", "{", '{"outcomes": 3}', '{"commits": [1]}'])
def test_a_damaged_file_begins_anew(text: str, tmp_path: Path) -> None:
    (tmp_path / "meters.json").write_text(text)
    assert read(tmp_path / "meters.json") == Reading()


def test_without_the_store_the_page_says_so(web_site: Site) -> None:
    meters = Meters(web_site.shared.meters)
    meters.note(event("committed", outcome="scored"))
    meters.keep(at_once=True)
    text, content_type = metrics.page(web_site, alive=False)
    found = samples(text)
    assert content_type.startswith("text/plain")
    assert found["aeo_store_up"] == 0
    assert found["aeo_trials_ended_total{outcome=scored}"] == 1
    assert found["aeo_disk_free_bytes{folder=shared_root}"] > 0
    assert not [name for name in found if name.startswith("aeo_worker")]


def test_it_asks_for_a_token_and_a_viewers_is_enough(web_site: Site) -> None:
    client = create_app(web_site).test_client()
    refused = client.get("/metrics")
    assert (refused.status_code, refused.content_type) == (401, "application/problem+json")
    assert client.get(f"/metrics?token={TOKEN}").status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 401
    token = add(web_site.shared, "prometheus", Role.VIEWER)
    answer = client.get("/metrics", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    assert TOKEN not in answer.text
    assert token not in answer.text


def test_the_dashboard_asks_only_for_what_there_is(web_site: Site) -> None:
    text, _ = metrics.page(web_site, alive=False)
    offered = {name.partition("{")[0] for name in samples(text)} | {
        *("aeo_store_settled", "aeo_inbox_results", "aeo_control_silent_seconds"),
        *("aeo_evaluations", "aeo_trials", "aeo_workers"),
        *(f"aeo_worker_{name}" for name in metrics._OF_WORKERS),
    }
    dashboard = json.loads(DASHBOARD.read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        for name in re.findall(r"\baeo_\w+", target["expr"])
    }
    assert asked <= offered
    # What the issue names: queue depth, slots, trials by outcome, commit latency, heartbeat age, disk.
    assert {
        *("aeo_worker_queued_batches", "aeo_worker_slots", "aeo_trials_ended_total", "aeo_commit_seconds_bucket"),
        *("aeo_worker_heartbeat_age_seconds", "aeo_disk_free_bytes", "aeo_worker_disk_free_bytes"),
    } <= asked
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
