"""Several evaluations at once, over real worker processes: who gets a slot when a trial ends."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from platforms import Platform
from waiting import eventually


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    made = Platform(tmp_path_factory.mktemp("platform"))
    try:
        made.ready()
        made.worker("one", "--slots", "1", "--poll-interval", "0.5")
        made.api.await_worker("one", timeout=60)
        yield made
        made.stop()
    finally:
        made.destroy()


def submit(platform: Platform, name: str, trials: int, seconds: float, **fields: Any) -> str:
    config = {"executor": "sleep", "name": name, "trials": trials, "seconds": seconds, **fields}
    return platform.api.submit({"per_worker_concurrency": "all", **config})


def done(platform: Platform, id: str, timeout: float = 60) -> None:
    eventually(lambda: platform.api.status(id)["state"] == "succeeded", timeout, pause=0.1)


def times(platform: Platform, id: str, kind: str) -> list[float]:
    """Seconds, in order, of one kind of event."""
    found = [event["at"] for event in platform.events(id) if event["kind"] == kind]
    return sorted(datetime.fromisoformat(at).timestamp() for at in found)


def test_a_small_one_behind_a_big_one_starts_within_a_trials_time(platform: Platform) -> None:
    big = submit(platform, "big", 8, 0.8)
    eventually(lambda: platform.api.status(big)["done"] >= 2, pause=0.05)
    small = submit(platform, "small", 2, 0.2)
    done(platform, small)
    assert platform.api.status(big)["state"] == "running"
    done(platform, big)
    (submitted,) = times(platform, small, "submitted")
    # The trial that ran has its 0.8 s; the rest is what a turn and a message cost on a busy machine.
    assert times(platform, small, "claimed")[0] - submitted < 0.8 + 1.0
    for id in (big, small):
        platform.check_once_each(id)
        assert len(times(platform, id, "closed")) == 1
    assert times(platform, big, "batch_turned")


def test_a_higher_priority_goes_first_and_a_lower_one_last(platform: Platform) -> None:
    usual = submit(platform, "usual", 8, 0.5)
    eventually(lambda: platform.api.status(usual)["done"] >= 1, pause=0.05)
    low, high = submit(platform, "low", 2, 0.1, priority=-1), submit(platform, "high", 4, 0.3, priority=5)
    for id in (usual, low, high):
        done(platform, id)
    first, last = times(platform, high, "claimed")[0], times(platform, high, "claimed")[-1]
    assert not [at for at in times(platform, usual, "claimed") if first < at < last]
    assert times(platform, low, "claimed")[0] > times(platform, usual, "claimed")[-1]


def test_equals_take_turns(platform: Platform) -> None:
    ids = [submit(platform, name, 3, 1.1) for name in ("left", "right")]
    for id in ids:
        done(platform, id)
    order = sorted((at, id) for id in ids for at in times(platform, id, "claimed"))
    changes = sum(before[1] != after[1] for before, after in pairwise(order))
    assert changes >= 4, order


def test_a_worker_that_joins_late_helps_within_seconds(platform: Platform) -> None:
    id = submit(platform, "long", 10, 0.8)
    eventually(lambda: platform.api.status(id)["done"] >= 1, pause=0.05)
    platform.worker("late", "--slots", "2", "--poll-interval", "0.5")
    platform.api.await_worker("late", timeout=60)
    done(platform, id)
    assert platform.check_once_each("long") == {"one", "late"}
    (added, *_) = times(platform, id, "batch_added")
    claims = [event for event in platform.events(id) if event["kind"] == "claimed" and event["worker"] == "late"]
    assert datetime.fromisoformat(claims[0]["at"]).timestamp() - added < 2.0
