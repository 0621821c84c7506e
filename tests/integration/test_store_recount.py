"""Whatever happens in whatever order, the counters say what a recount says, and no trial is lost or done twice."""

from __future__ import annotations

from collections import Counter

from conftest import open_fake
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store_samples import a_batch, a_row, an_evaluation

from aeo.core.model import Batch, Claim, EvaluationState, Outcome, TrialState
from aeo.store import evaluations, events, trials
from aeo.store.trials import Requeued, Standing

WORKERS = ("w0", "w1", "w2")
MOST = 2


class Life(RuleBasedStateMachine):
    """A model of one evaluation beside the store's."""

    @initialize(
        estimates=st.lists(st.floats(0, 500), min_size=1, max_size=12),
        placed=st.randoms(use_true_random=False),
    )
    def begin(self, estimates: list[float], placed: object) -> None:
        self.db = open_fake()
        names = [f"t{n}" for n in range(len(estimates))]
        self.estimates = dict(zip(names, (round(e, 3) for e in estimates), strict=True))
        self.batches = [a_batch(f"b{n}", worker) for n, worker in enumerate(WORKERS)]
        shares: dict[Batch, list[str]] = {batch: [] for batch in self.batches}
        for n, name in enumerate(names):
            if n % 4 != 3:  # some in nobody's share
                shares[self.batches[placed.randrange(3)]].append(name)  # type: ignore[attr-defined]
        self.unfit = {"w2": frozenset(names[::3])}
        evaluations.save(self.db, an_evaluation(self.estimates), shares, self.unfit)
        self.state = dict.fromkeys(names, TrialState.PENDING)
        self.current: dict[str, Claim] = {}
        self.all_claims: list[Claim] = []
        self.attempts: Counter[str] = Counter()
        self.outcomes: Counter[Outcome] = Counter()
        self.winner: dict[str, str] = {}
        self.cancelling = False
        self.ended: set[str] = set()
        #: Trials that failed somewhere: that worker leaves them to others for a while.
        self.shunned: set[str] = set()

    @rule(n=st.integers(0, 9))
    def claim(self, n: int) -> None:
        batch = self.batches[n % len(self.batches)]
        token = f"k{len(self.all_claims)}"
        claim = trials.claim(self.db, batch, token=token, lease_seconds=60)
        unfit = self.unfit.get(batch.worker, frozenset())
        free = {t for t, s in self.state.items() if s is TrialState.PENDING and t not in unfit}
        if claim is None:
            assert self.cancelling or batch.id in self.ended or not free or self.shunned & free
            return
        assert not self.cancelling
        assert batch.id not in self.ended
        assert claim.trial in free
        assert claim.attempt == self.attempts[claim.trial] + 1
        self.state[claim.trial] = TrialState.RUNNING
        self.current[claim.trial] = claim
        self.all_claims.append(claim)

    def some_claim(self, n: int) -> Claim:
        return self.all_claims[n % len(self.all_claims)]

    @precondition(lambda self: self.all_claims)
    @rule(n=st.integers(0, 99))
    def renew(self, n: int) -> None:
        claim = self.some_claim(n)
        held = Standing.CANCEL if self.cancelling else Standing.HELD
        wanted = held if self.current.get(claim.trial) == claim else Standing.LOST
        assert trials.renew(self.db, claim, lease_seconds=60) is wanted

    @precondition(lambda self: self.all_claims)
    @rule(n=st.integers(0, 99))
    def push(self, n: int) -> None:
        claim = self.some_claim(n)
        current = self.current.get(claim.trial) == claim
        assert trials.pushed(self.db, claim) is current
        if current:
            self.state[claim.trial] = TrialState.PUSHED

    @precondition(lambda self: self.all_claims)
    @rule(n=st.integers(0, 99))
    def requeue(self, n: int) -> None:
        claim = self.some_claim(n)
        got = trials.requeue(self.db, "e1", claim.trial, claim.token, reason="died", max_requeues=MOST)
        if self.current.get(claim.trial) != claim:
            assert got is Requeued.STALE
        elif self.attempts[claim.trial] >= MOST:
            assert got is Requeued.EXHAUSTED
        else:
            assert got is Requeued.AGAIN
            self.attempts[claim.trial] += 1
            self.shunned.add(claim.trial)
            self.state[claim.trial] = TrialState.PENDING
            del self.current[claim.trial]

    @rule(n=st.integers(0, 99), outcome=st.sampled_from(Outcome), own=st.booleans())
    def commit(self, n: int, outcome: Outcome, own: bool) -> None:
        if own and self.all_claims:
            trial, token = self.some_claim(n).trial, self.some_claim(n).token
        else:
            trial, token = sorted(self.state)[n % len(self.state)], "stray"
        first = trials.commit(self.db, "e1", a_row(trial, outcome=outcome), token)
        if self.state[trial] is TrialState.DONE:
            assert first is (self.winner[trial] == token)
            return
        assert first
        self.state[trial] = TrialState.DONE
        self.winner[trial] = token
        self.outcomes[outcome] += 1
        self.current.pop(trial, None)

    @rule(n=st.integers(0, 9))
    def end_batch(self, n: int) -> None:
        batch = self.batches[n % len(self.batches)]
        evaluations.end_batch(self.db, batch)
        self.ended.add(batch.id)

    @rule(n=st.integers(0, 99), own=st.booleans())
    def add_batch(self, n: int, own: bool) -> None:
        if len(self.batches) < 6:
            batch = a_batch(f"b{len(self.batches)}", WORKERS[n % 3])
            given = sorted(self.state)[: n % 5] if own else []
            evaluations.add_batches(self.db, "e1", {batch: given})
            # What is given to a worker fits it.
            self.unfit = {
                worker: names - set(given) if worker == batch.worker else names for worker, names in self.unfit.items()
            }
            self.batches.append(batch)

    @precondition(lambda self: not self.cancelling)
    @rule(n=st.integers(0, 5))
    def cancel(self, n: int) -> None:
        if n == 0:
            assert evaluations.move(self.db, "e1", EvaluationState.CANCELLING)
            self.cancelling = True

    @precondition(lambda self: self.cancelling)
    @rule()
    def cancel_pending(self) -> None:
        waiting = [t for t, s in self.state.items() if s is TrialState.PENDING]
        assert trials.cancel_pending(self.db, "e1") == len(waiting)
        for trial in waiting:
            self.state[trial] = TrialState.DONE
            self.winner[trial] = ""
            self.outcomes[Outcome.CANCELLED] += 1

    @invariant()
    def all_agrees(self) -> None:
        if not hasattr(self, "db"):
            return
        db, status = self.db, evaluations.get(self.db, "e1")
        assert trials.states(db, "e1") == self.state
        recount = Counter(self.state.values())
        assert [status.pending, status.running, status.pushed, status.done] == [recount[s] for s in TrialState]
        assert Counter(status.outcomes) == self.outcomes
        assert status.requeues == self.attempts.total()
        runs = {run.claim.trial: run.claim for run in trials.running(db, "e1")}
        assert runs == {t: c for t, c in self.current.items() if self.state[t] is TrialState.RUNNING}
        assert {c.trial for w in WORKERS for c in trials.workers_claims(db, w)} == set(runs)
        assert sorted(r.summary.trial for r in trials.rows_since(db, "e1", 0)) == sorted(self.winner)
        self.shares_agree()

    def shares_agree(self) -> None:
        shares = {b: self.db.client.zrange(f"aeo:e:e1:share:{b}", 0, -1) for b in ["", *(b.id for b in self.batches)]}
        waiting = sorted(t for t, s in self.state.items() if s is TrialState.PENDING)
        assert sorted(t for names in shares.values() for t in names) == waiting
        left = dict(self.db.client.zrange("aeo:e:e1:left", 0, -1, withscores=True))
        assert left == {b: sum(round(self.estimates[t] * 1000) for t in names) for b, names in shares.items() if names}

    def teardown(self) -> None:
        if hasattr(self, "db"):
            kinds = Counter((e.kind, e.fields.get("trial")) for _, e in events.take(self.db, 10_000))
            for trial in self.state:
                assert kinds["committed", trial] == (trial in self.winner)
            claimed = Counter(c.trial for c in self.all_claims)
            assert {t: n for (kind, t), n in kinds.items() if kind == "claimed"} == claimed
            self.db.close()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=40, stateful_step_count=40)
