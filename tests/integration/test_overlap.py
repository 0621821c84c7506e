"""Results travel while the next trial runs: with their leases, so many at most, several together, and none is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine import closed, logged, register, running, submit, worker_site
from waiting import eventually

from aeo import batches, evaluations, outbox, sender
from aeo.core.errors import TransferFailed
from aeo.core.model import EvaluationState, TrialState
from aeo.layout import manifest_of
from aeo.leases import Hold, Leases, Stopped
from aeo.site import Site, WorkerSite
from aeo.store import evaluations as store
from aeo.store import health, trials

TASKS = 12


@pytest.fixture
def site(site: Site) -> Site:
    register(site, "a", slots=1)
    health.mark_recovered(site.db)
    return replace(site, config=replace(site.config, lease_seconds=2.0, slots=1))


class Line:
    """The line to the controller, which can be held up."""

    def __init__(self, push: Callable[..., None]) -> None:
        self.free, self.pushes, self._push = threading.Event(), [], push

    def push_all(self, remote: Any, root: Path, names: Sequence[str], target: str, *, password: str = "") -> None:
        assert self.free.wait(60)
        self.pushes.append(list(names))
        self._push(remote, root, names, target, password=password)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    line = Line(outbox.move.push_all)
    monkeypatch.setattr(outbox.move, "push_all", line.push_all)
    yield line
    line.free.set()


def ran(site: Site, id: str) -> int:
    return len(store_states(site, id, TrialState.RUNNING))


def store_states(site: Site, id: str, state: TrialState) -> list[str]:
    return [name for name, found in trials.states(site.db, id).items() if found is state]


def test_trials_run_on_while_the_line_is_held_up_and_keep_their_leases(site: Site, tmp_path: Path, line: Line) -> None:
    id = submit(site, {"name": "x", "trials": TASKS}, workers=["a"]).id
    with running(site, tmp_path, "a"):
        # So many as may wait, and the one whose slot waits with it.
        eventually(lambda: ran(site, id) == sender.BACKLOG + 1)
        held = set(store_states(site, id, TrialState.RUNNING))
        threading.Event().wait(4.5)  # longer than two leases
        assert set(store_states(site, id, TrialState.RUNNING)) == held
        assert trials.expired(site.db, id) == []
        line.free.set()
        status = closed(site, id)
    assert (status.state, status.requeues) == (EvaluationState.SUCCEEDED, 0)
    claimed = [event["trial"] for event in logged(site, id) if event["kind"] == "claimed"]
    assert len(claimed) == len(set(claimed)) == TASKS
    assert max(len(names) for names in line.pushes) > 1
    order = [name for names in line.pushes for name in names]
    # The manifest says that the folder is whole.
    assert all(order.index(name) > order.index(name[:-5]) for name in order if name.endswith(".json"))


def test_a_batch_returns_when_its_results_are_in_the_outbox(site: Site, tmp_path: Path, line: Line) -> None:
    id = submit(site, {"name": "x", "trials": 3}, workers=["a"]).id
    place = worker_site(site, tmp_path, "a")
    (status,) = store.batches(site.db, id)
    assert batches.run(place, status.batch)["ran"] == 3
    assert len(list(place.local.outbox.glob("*/*.json"))) == 3
    assert not place.local.batch(status.batch.id).exists()
    assert ran(site, id) == 3
    line.free.set()
    place.sender.finish(place)
    assert len(store_states(site, id, TrialState.PUSHED)) == 3
    assert place.sending == set()


def test_a_worker_told_to_stop_leaves_results_to_the_outbox(site: Site, tmp_path: Path, line: Line) -> None:
    id = submit(site, {"name": "x", "trials": 2}, workers=["a"]).id
    place = worker_site(site, tmp_path, "a")
    push, line._push = line._push, _fails
    line.free.set()
    (status,) = store.batches(site.db, id)
    batches.run(place, status.batch)
    assert ran(site, id) == 2
    place.stopping.set()
    place.sender.finish(place)
    line._push = push
    again: WorkerSite = worker_site(site, tmp_path, "a")
    stop = threading.Event()
    thread = threading.Thread(target=outbox.keep, args=(again, stop))
    thread.start()
    eventually(lambda: len(store_states(site, id, TrialState.PUSHED)) == 2)
    stop.set()
    thread.join()


def _fails(*_: Any, **__: Any) -> None:
    raise TransferFailed("no line")


def test_one_result_that_cannot_be_pushed_holds_up_no_other(site: Site, tmp_path: Path, line: Line) -> None:
    id = submit(site, {"name": "x", "trials": 5}, workers=["a"]).id
    push, bad = line._push, next(iter(sorted(trials.states(site.db, id))))

    def push_others(remote: Any, root: Path, names: Sequence[str], target: str, *, password: str = "") -> None:
        if any(bad in name for name in names):
            raise TransferFailed("a file cannot be read", permanent=True)
        push(remote, root, names, target, password=password)

    line._push = push_others
    with running(site, tmp_path, "a"):
        eventually(lambda: ran(site, id) >= 4)
        line.free.set()
        eventually(lambda: store.get(site.db, id).done == 4)
        assert store_states(site, id, TrialState.RUNNING) == [bad]
        line._push = push
        assert closed(site, id, 60).requeues == 0


def test_a_cancel_reaches_the_run_and_not_the_one_after_it(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 2}, workers=["a"]).id
    (status,) = store.batches(site.db, id)
    store.start_batch(site.db, status.batch)
    told: list[str] = []
    leases, holds = Leases(), []
    for token in ("one", "two"):
        claim = trials.claim(site.db, status.batch, token=token, lease_seconds=0.4)
        assert claim is not None
        hold = Hold(
            leases,
            site.db,
            claim,
            lease_seconds=0.4,
            deadline_seconds=60,
            stop_seconds=1,
            stop=lambda _, token=token: told.append(token),  # type: ignore[misc]
            stopping=lambda: False,
        )
        hold.begin()
        holds.append(hold)
    holds[0].trial_over()
    evaluations.cancel(site, id)
    eventually(lambda: holds[1].stopped is Stopped.CANCELLED and told)
    assert holds[0].cancelled
    assert set(told) == {"two"}
    for hold in holds:
        hold.end()


def test_what_a_batch_left_is_known_by_its_manifest(site: Site, tmp_path: Path) -> None:
    id = submit(site, {"name": "x", "trials": 1}, workers=["a"]).id
    place = worker_site(site, tmp_path, "a")
    (status,) = store.batches(site.db, id)
    batches.run(place, status.batch)
    place.sender.finish(place)
    (folder,) = (path for path in (place.local.outbox / id).iterdir() if path.is_dir())
    # The controller was told of it, and so its name says.
    assert folder.with_name(folder.name + ".sent").is_file()
    assert not manifest_of(folder).exists()
    outbox.tidy(place, id)
    assert folder.exists(), "it is not committed"
