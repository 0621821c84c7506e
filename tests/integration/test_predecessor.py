"""A worker begun anew in its root: what its dead process ran is given back at once, what it had finished is sent."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from engine import closed, logged, register, running, submit, worker_site
from waiting import eventually

from aeo import evaluations, executors, lock, outbox, predecessor, processes, reconciliation, records
from aeo.core.errors import TransferFailed, Unavailable
from aeo.core.model import Batch, Claim, EvaluationState, Outcome, TrialState
from aeo.executors import TrialContext
from aeo.layout import Local, manifest_of, run_name
from aeo.site import Site, WorkerSite
from aeo.store import evaluations as store
from aeo.store import health, trials, workers

#: Seconds that no test waits for.
NEVER = 600.0


@pytest.fixture
def site(site: Site) -> Site:
    register(site, "a", slots=4)
    health.mark_recovered(site.db)
    return replace(site, config=replace(site.config, lease_seconds=NEVER, grace_seconds=NEVER, slots=4))


@pytest.fixture
def root(tmp_path: Path) -> Local:
    """The worker's root, in which a process was at work and was killed."""
    local = Local(tmp_path / "a")
    for folder in (local.batches, local.outbox):
        folder.mkdir(parents=True)
    with locked(local) as identity:
        predecessor.take_seat(local, identity)
    return local


def locked(local: Local) -> Any:
    """Whoever has this is the root's process."""
    return lock.hold(local.identity, "worker", field="--local-root")


@dataclass(kw_only=True)
class Died:
    """What a killed process was at."""

    site: WorkerSite
    batch: Batch
    claims: list[Claim]

    @property
    def evaluation(self) -> str:
        return self.batch.evaluation

    def run_dir(self, claim: Claim) -> Path:
        """Where a run went on."""
        return self.site.local.batch(claim.batch) / run_name(claim.trial, claim.token)

    def finish(self, claim: Claim) -> Path:
        """A run that was over, on its way and not sent; its folder in the outbox."""
        record = records.read(self.site.local.evaluation(self.evaluation))
        session = executors.load("sleep").open(record.evaluation, self.run_dir(claim).parent)
        context = TrialContext(trial_dir=self.run_dir(claim), content_dir=None, final_dir="", attempt=claim.attempt)
        session.run(record.trials[claim.trial], context, lambda _: None)
        now = datetime.now(timezone.utc)
        return outbox.put(self.site, claim, self.run_dir(claim), now, now)

    def state(self, claim: Claim) -> TrialState:
        """What is known of a trial now."""
        return trials.state(self.site.db, self.evaluation, claim.trial)


def killed(site: Site, root: Local, *, count: int = 2, **options: Any) -> Died:
    """A worker's process that was killed in the middle of so many trials."""
    id = submit(site, {"name": "x", "trials": count}, workers=["a"], **options).id
    batch = store.batches(site.db, id)[0].batch
    store.start_batch(site.db, batch)
    lease = site.config.lease_seconds
    claims = [trials.claim(site.db, batch, token=f"t{n}", lease_seconds=lease) for n in range(count)]
    died = Died(site=worker_site(site, root.root.parent, "a"), batch=batch, claims=[one for one in claims if one])
    shutil.copytree(site.shared.evaluation(id), root.evaluation(id))
    for claim in died.claims:
        died.run_dir(claim).mkdir(parents=True)
    return died


def left(local: Local) -> frozenset[str]:
    """What the next process finds."""
    with locked(local) as identity:
        return predecessor.runs_left(local, identity)


def of(claims: list[Claim]) -> set[str]:
    return {run_name(claim.trial, claim.token) for claim in claims}


def claimed(site: Site, id: str, trial: str) -> int:
    return sum(event["kind"] == "claimed" and event["trial"] == trial for event in logged(site, id))


def test_what_it_ran_is_given_back_at_once(site: Site, root: Local, tmp_path: Path) -> None:
    died = killed(site, root)
    assert workers.get(site.db, "a").busy == 2
    found = left(root)
    assert found == of(died.claims)
    assert predecessor.give_back(died.site, found) == 2
    assert {died.state(claim) for claim in died.claims} == {TrialState.PENDING}
    assert workers.get(site.db, "a").busy == 0
    # It counts: the trial may have been what killed the process.
    assert set(trials.requeues(site.db, died.evaluation).values()) == {1}
    # Said again, and by whoever was late, nothing changes.
    assert predecessor.give_back(died.site, found) == 0
    store.end_batch(site.db, died.batch)
    with running(site, tmp_path, "a"):
        status = closed(site, died.evaluation)
    assert (status.state, status.done) == (EvaluationState.SUCCEEDED, 2)
    committed = [event["trial"] for event in logged(site, died.evaluation) if event["kind"] == "committed"]
    assert len(committed) == len(set(committed)) == 2


def test_what_it_had_finished_is_sent_and_not_run_again(site: Site, root: Local, tmp_path: Path) -> None:
    died = killed(site, root)
    finished, unfinished = died.claims
    died.finish(finished)
    found = left(root)
    assert found == of([unfinished])
    assert predecessor.give_back(died.site, found) == 1
    assert died.state(finished) is TrialState.RUNNING
    assert predecessor.adopt(died.site) == 1
    died.site.sender.finish(died.site)
    assert died.state(finished) is TrialState.PUSHED
    store.end_batch(site.db, died.batch)
    with running(site, tmp_path, "a"):
        status = closed(site, died.evaluation)
    assert (status.state, status.done, status.requeues) == (EvaluationState.SUCCEEDED, 2, 1)
    assert trials.winner(site.db, died.evaluation, finished.trial) == finished.token
    assert claimed(site, died.evaluation, finished.trial) == 1


def test_a_move_to_the_outbox_is_finished(site: Site, root: Local) -> None:
    died = killed(site, root)
    finished, unfinished = died.claims
    folder = died.finish(finished)
    # Killed between the manifest and the rename.
    folder.rename(died.run_dir(finished))
    assert left(root) == of([unfinished])
    assert (folder / "result.json").is_file()
    assert predecessor.adopt(died.site) == 1
    died.site.sender.finish(died.site)
    assert died.state(finished) is TrialState.PUSHED


class Line:
    """The line to the controller, which is away at first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away, self.tries, self._push = True, 0, outbox.move.push_all
        monkeypatch.setattr(outbox.move, "push_all", self.push_all)

    def push_all(self, *args: Any, **kwargs: Any) -> None:
        self.tries += 1
        if self.away:
            raise TransferFailed("it is away")
        self._push(*args, **kwargs)


def test_what_it_had_finished_keeps_its_lease_while_the_line_is_away(
    site: Site, root: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = replace(site, config=replace(site.config, lease_seconds=1.0))
    died = killed(site, root, count=1)
    (claim,) = died.claims
    folder, line = died.finish(claim), Line(monkeypatch)
    assert predecessor.adopt(died.site) == 1
    assert claim.token in died.site.sending
    assert died.site.leases.running() == 0
    eventually(lambda: line.tries > 2)
    # Longer than the lease.
    assert not threading.Event().wait(2.0)
    assert trials.expired(site.db, died.evaluation) == []
    line.away = False
    eventually(lambda: died.state(claim) is TrialState.PUSHED)
    died.site.sender.finish(died.site)
    assert not manifest_of(folder).exists()
    assert died.site.sending == set()


def test_a_cancel_does_not_wait_for_the_line(site: Site, root: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    site = replace(site, config=replace(site.config, lease_seconds=1.0))
    died = killed(site, root, count=1)
    died.finish(died.claims[0])
    Line(monkeypatch)
    assert predecessor.adopt(died.site) == 1
    evaluations.cancel(site, died.evaluation)
    died.site.sender.finish(died.site)
    eventually(lambda: trials.expired(site.db, died.evaluation))


def test_a_result_whose_trial_was_given_back_is_left_to_the_outbox(site: Site, root: Local) -> None:
    died = killed(site, root, count=1)
    (claim,) = died.claims
    died.finish(claim)
    trials.requeue(site.db, died.evaluation, claim.trial, claim.token, reason="late", max_requeues=2)
    assert predecessor.adopt(died.site) == 0


def test_one_that_may_not_run_again_fails_at_once(site: Site, root: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    died = killed(site, root, count=1, max_requeues=0)
    (claim,) = died.claims
    assert predecessor.give_back(died.site, left(root)) == 0
    # The store's own age would else hold back all that needs the grace.
    monkeypatch.setattr(health, "settled_seconds", lambda _: 2 * NEVER)
    eventually(lambda: trials.expired(site.db, died.evaluation))
    register(site, "a", slots=4)
    reconciliation.reconcile(site)
    row = trials.row(site.db, died.evaluation, claim.trial)
    assert row is not None
    assert (row.summary.outcome, row.summary.error_type) == (Outcome.INFRA_ERROR, "WorkerLost")


def test_of_others_nothing_is_given_back(site: Site, root: Local, tmp_path: Path) -> None:
    died = killed(site, root)
    ours, theirs = died.claims
    # Claimed by a process of this id that had another root.
    shutil.rmtree(died.run_dir(theirs))
    found = left(root)
    assert predecessor.give_back(died.site, found) == 1
    assert died.state(theirs) is TrialState.RUNNING
    assert predecessor.give_back(worker_site(site, tmp_path, "b"), of([theirs])) == 0
    assert died.state(theirs) is TrialState.RUNNING
    assert died.state(ours) is TrialState.PENDING


@pytest.fixture
def elsewhere(root: Local, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Local:
    """The root as a process finds it whose predecessor may live."""
    batch = root.batches / "e-1" / "trial.t0"
    batch.mkdir(parents=True)
    if request.param == "copied":
        shutil.copytree(root.root, tmp_path / "copy")
        return Local(tmp_path / "copy")
    if request.param == "its lock deleted":
        # Kept, or its number would be given to the next file.
        root.identity.rename(tmp_path / "deleted")
    if request.param == "another kernel":
        kernel = tmp_path / "boot_id"
        kernel.write_text("another\n")
        monkeypatch.setattr(predecessor, "_KERNEL", kernel)
    if request.param == "no kernel told":
        monkeypatch.setattr(predecessor, "_KERNEL", tmp_path / "nothing")
    if request.param == "never told":
        root.seat.unlink()
    return root


@pytest.mark.parametrize(
    "elsewhere", ["copied", "its lock deleted", "another kernel", "no kernel told", "never told"], indirect=True
)
def test_where_it_may_live_the_grace_stays(elsewhere: Local) -> None:
    assert left(elsewhere) == frozenset()
    with locked(elsewhere) as identity:
        # What could not be removed is never taken for this process's own.
        predecessor.take_seat(elsewhere, identity)
        assert predecessor.runs_left(elsewhere, identity) == frozenset()


def test_a_seat_that_another_one_has_had_is_taken_anew(root: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """One on another machine, to which the lock says nothing, may run what this one would find when it comes back."""
    stuck = root.batches / "e-1" / "trial.t0"
    stuck.mkdir(parents=True)
    with monkeypatch.context() as patch, locked(root) as identity:
        other = root.root / "boot_id"
        other.write_text("another\n")
        patch.setattr(predecessor, "_KERNEL", other)
        # What lies there it could not remove, and it begins a run of its own.
        predecessor.take_seat(root, identity)
        (root.batches / "e-2" / "trial.t1").mkdir(parents=True)
    assert left(root) == frozenset()


@pytest.mark.parametrize("fails", [False, True])
def test_what_could_not_be_swept_may_run_on(root: Local, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(_: Path) -> None:
        if fails:
            raise OSError("no engine")

    monkeypatch.setattr(executors.load("sleep"), "sweep", sweep)
    (root.batches / "e-1" / "trial.t0").mkdir(parents=True)
    with locked(root) as identity:
        assert ("trial.t0" in processes._clear(root, identity)) is not fails
        # Of what is gone nothing is known a second time.
        assert processes._clear(root, identity) == frozenset()
    assert list(root.batches.iterdir()) == []


def test_what_cannot_be_told_is_left_to_the_leases(site: Site, root: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    died = killed(site, root)
    found = left(root)
    with monkeypatch.context() as patch:
        patch.setattr(trials, "workers_claims", _away)
        assert (predecessor.give_back(died.site, found), predecessor.adopt(died.site)) == (0, 0)
    with monkeypatch.context() as patch:
        patch.setattr(trials, "requeue", _away)
        assert predecessor.give_back(died.site, found) == 0
    assert {died.state(claim) for claim in died.claims} == {TrialState.RUNNING}


def _away(*_: object, **__: object) -> None:
    raise Unavailable("the store is away")
