"""The summaries: what tables read from them, and that they follow the store whatever happens to their file."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from engine import closed, register, running, submit
from hypothesis import given
from hypothesis import strategies as st
from waiting import eventually

from aeo import evaluations, progress, records, recovery, rows, summaries
from aeo.codec import dumps
from aeo.core.errors import InputError, Unavailable
from aeo.core.model import (
    Evaluation,
    EvaluationState,
    Outcome,
    Plan,
    PlannedTrial,
    Spec,
    TrialRow,
    TrialState,
    TrialSummary,
)
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import health, trials
from aeo.summaries import Book, Line, standing
from aeo.summaries import book as book_module
from aeo.summaries.pictures import _lanes
from aeo.upkeep import Keeper

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    opened = Book(tmp_path / "summaries.sqlite")
    yield opened
    opened.close()


def planned(name: str, task: str, **labels: str) -> PlannedTrial:
    return PlannedTrial(name=name, task=task, labels=labels, estimated_seconds=30.0)


def an_evaluation(*trials: PlannedTrial, id: str = "e1", name: str = "job", owner: str = "") -> Evaluation:
    return Evaluation(
        id=id, spec=Spec(executor="sleep", name=name), plan=Plan(trials=trials), submitted_at=NOON, owner=owner
    )


def a_row(
    trial: str,
    outcome: Outcome = Outcome.SCORED,
    *,
    worker: str = "w1",
    start: float = 0.0,
    attempt: int = 1,
    **values: Any,
) -> TrialRow:
    """A row that began ``start`` seconds after noon."""
    summary: dict[str, Any] = {
        "rewards": {"reward": 1.0} if outcome is Outcome.SCORED else {},
        "started_at": NOON + timedelta(seconds=start),
        "finished_at": NOON + timedelta(seconds=start + 10),
        **values,
    }
    return TrialRow(
        summary=TrialSummary(trial=trial, task=trial.partition("__")[0], outcome=outcome, **summary),
        worker=worker,
        attempt=attempt,
        committed_at=NOON,
    )


GRID = an_evaluation(
    *(
        planned(f"{task}__{agent}{attempt}", task, agent=agent, model="m", dataset="d", category=f"of-{task}")
        for task in ("one", "two", "three")
        for agent in ("alpha", "beta")
        for attempt in (1, 2)
    )
)


@pytest.fixture
def grid(book: Book) -> Book:
    """Twelve trials, of which seven have ended."""
    assert summaries.enter(book, GRID)
    rows = (
        a_row("one__alpha1", input_tokens=10, output_tokens=5, cost_usd=0.5, phases={"environment": 2.0, "agent": 8.0}),
        a_row("one__alpha2", rewards={"reward": 0.0}, start=5, worker="w2"),
        a_row("one__beta1", rewards={"reward": 0.5, "style": 0.25}, start=5, finished_at=NOON + timedelta(seconds=99)),
        a_row("two__alpha1", rewards={"accuracy": 1.0, "style": 0.75}, start=20),
        a_row("two__alpha2", Outcome.INFRA_ERROR, error_type="DockerError", error_message="no space", worker="w2"),
        a_row("three__beta2", Outcome.INVALID, error_type="BadReward", start=200),
        a_row("three__beta1", Outcome.CANCELLED, started_at=None, finished_at=None, worker="", attempt=0),
    )
    for row in rows:
        assert summaries.put(book, "e1", row)
    return book


def names(found: tuple[list[Line], int]) -> list[str]:
    assert len(found[0]) <= found[1]
    return [line.trial for line in found[0]]


def test_a_line_has_the_plan_and_then_the_result(grid: Book) -> None:
    line = summaries.one(grid, "e1", "one__alpha1")
    assert line is not None
    assert (line.position, line.attempt_number, line.agent, line.category) == (0, 1, "alpha", "of-one")
    assert (line.outcome, line.reward, line.reward_name) == (Outcome.SCORED, 1.0, "reward")
    assert (line.seconds, line.input_tokens, line.cost_usd, line.worker, line.run) == (10.0, 10, 0.5, "w1", 1)
    assert (line.started_at, line.committed_at) == (NOON, NOON)
    assert list(line.phases.items()) == [("environment", 2.0), ("agent", 8.0)]
    waiting = summaries.one(grid, "e1", "three__alpha2")
    assert waiting is not None
    assert (waiting.outcome, waiting.reward, waiting.worker, waiting.run) == (None, None, "", 0)
    assert (waiting.position, waiting.attempt_number, waiting.estimated_seconds) == (9, 2, 30.0)
    assert summaries.row(waiting) is None
    assert summaries.one(grid, "e1", "nothing") is None
    assert summaries.one(grid, "e2", "one__alpha1") is None


def test_a_row_comes_back_as_it_was_put_in(book: Book) -> None:
    row = replace(
        a_row("one__alpha1", error_types=("A", "B"), retryable=False, labels={"any": "label"}, cache_tokens=3),
        notes=("dropped a link",),
    )
    summaries.enter(book, GRID)
    assert summaries.put(book, "e1", row)
    line = summaries.one(book, "e1", "one__alpha1")
    assert line is not None
    assert summaries.row(line) == row
    assert line.notes == row.notes


def test_lines_are_paged_sorted_searched_and_filtered(grid: Book) -> None:
    def page(**asked: Any) -> list[str]:
        return names(summaries.page(grid, "e1", **asked))

    everything = [trial.name for trial in GRID.plan.trials]
    assert page() == everything
    assert page(offset=3, limit=4) == everything[3:7]
    assert page(descending=True, limit=2) == everything[:-3:-1]
    assert summaries.page(grid, "e1", offset=50)[1] == 12
    assert page(sort="seconds", descending=True, limit=1) == ["one__beta1"]
    # What has no value stands last both ways, in planned order.
    assert page(sort="reward")[:3] == ["one__alpha2", "one__beta1", "one__alpha1"]
    assert page(sort="reward")[-2:] == page(sort="reward", descending=True)[-2:] == everything[-2:]
    assert page(sort="error", limit=2) == ["three__beta2", "two__alpha2"]
    assert page(outcome=Outcome.SCORED, agent="beta") == ["one__beta1"]
    assert page(task="two", done=False) == ["two__beta1", "two__beta2"]
    assert page(error="DockerError") == page(worker="w2", outcome=Outcome.INFRA_ERROR) == ["two__alpha2"]
    assert page(worker="w2", running_there=["three__alpha1"]) == ["one__alpha2", "two__alpha2", "three__alpha1"]
    assert page(search="DOCKER") == ["two__alpha2"]
    assert page(search="e__b") == ["one__beta1", "one__beta2", "three__beta1", "three__beta2"]
    assert page(search="%") == page(search="' OR 1=1 --") == page(search="\\") == []
    assert page(only=["two__beta1", "unknown"]) == ["two__beta1"]
    assert page(only=[]) == []
    assert len(page(without=everything[:10])) == 2
    assert page(category="of-three", model="m", dataset="d", difficulty="") == everything[8:]
    for sort in summaries.SORTS:
        assert sorted(page(sort=sort)) == sorted(everything)
    with pytest.raises(KeyError):
        page(sort="position; DROP TABLE lines")


def test_neighbours_are_those_of_the_plan(grid: Book) -> None:
    assert summaries.neighbours(grid, "e1", "one__alpha1") == (None, "one__alpha2")
    assert summaries.neighbours(grid, "e1", "one__alpha2") == ("one__alpha1", "one__beta1")
    assert summaries.neighbours(grid, "e1", "three__beta2") == ("three__beta1", None)
    assert summaries.neighbours(grid, "e1", "nothing") == (None, None)


def test_scores_are_per_agent_and_reward_with_interval_and_coverage(grid: Book) -> None:
    found = {(score.labels["agent"], score.reward): score for score in summaries.scores(grid, "e1")}
    assert list(found) == [
        ("alpha", "reward"),
        ("alpha", "accuracy"),
        ("alpha", "style"),
        ("beta", "reward"),
        ("beta", "style"),
    ]
    alpha = found["alpha", "reward"]
    assert (alpha.mean, alpha.count, alpha.scored, alpha.planned) == (0.5, 2, 3, 6)
    assert alpha.low is not None
    assert alpha.high is not None
    assert 0 < alpha.low < 0.5 < alpha.high < 1
    assert found["alpha", "style"].mean == 0.75
    assert found["beta", "style"].count == 1


def test_what_has_no_result_yet_has_a_score_without_a_mean(book: Book) -> None:
    summaries.enter(book, an_evaluation(planned("x__1", "x"), id="e2"))
    (score,) = summaries.scores(book, "e2")
    assert (score.labels, score.mean, score.low, score.scored, score.planned) == ({}, None, None, 0, 1)
    assert summaries.scores(book, "unknown") == ()
    assert summaries.histogram(book, "e2") == summaries.timeline(book, "e2") == summaries.errors(book, "e2") == []


def test_groups_add_up(grid: Book) -> None:
    by_category = summaries.groups(grid, "e1")
    assert [group.name for group in by_category] == ["of-one", "of-three", "of-two"]
    one = by_category[0]
    assert (one.planned, one.done, one.scored, one.mean, one.cost_usd) == (4, 3, 3, 0.5, 0.5)
    assert by_category[1].outcomes == {Outcome.INVALID: 1, Outcome.CANCELLED: 1}
    assert by_category[1].mean is None
    for by in summaries.GROUPS:
        assert sum(group.planned for group in summaries.groups(grid, "e1", by)) == 12
    with pytest.raises(ValueError, match="colour"):
        summaries.groups(grid, "e1", "colour")


def test_the_heat_map_has_a_cell_for_each_trial(grid: Book) -> None:
    heat = summaries.heatmap(grid, "e1")
    assert heat.tasks == ("one", "two", "three")
    assert heat.columns == (("alpha", "m", 1), ("alpha", "m", 2), ("beta", "m", 1), ("beta", "m", 2))
    assert [cell.trial for cell in heat.cells] == [trial.name for trial in GRID.plan.trials]
    assert Counter(cell[:2] for cell in heat.cells).most_common(1)[0][1] == 1
    cells = {cell.trial: cell for cell in heat.cells}
    assert cells["one__beta1"][:2] == (0, 2)
    assert cells["one__beta1"][3:] == ("scored", 0.5, 94.0)
    assert cells["three__alpha1"][3:] == ("", None, None)


def test_tasks_of_the_same_name_in_two_datasets_are_two(book: Book) -> None:
    trials = [planned(f"x__{dataset}", "x", dataset=dataset) for dataset in ("d1", "d2")]
    summaries.enter(book, an_evaluation(*trials))
    assert summaries.heatmap(book, "e1").tasks == ("d1/x", "d2/x")
    assert [line.attempt_number for line in summaries.each(book, "e1")] == [1, 1]


def test_runs_that_overlap_are_in_different_lanes(grid: Book) -> None:
    bars = [(bar.worker, bar.lane, bar.trial) for bar in summaries.timeline(grid, "e1")]
    assert bars == [
        ("w1", 0, "one__alpha1"),
        ("w1", 0, "two__alpha1"),
        ("w1", 0, "three__beta2"),
        ("w1", 1, "one__beta1"),
        ("w2", 0, "two__alpha2"),
        ("w2", 1, "one__alpha2"),
    ]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 10)), max_size=40))
def test_no_two_runs_share_a_lane_and_no_lane_is_wasted(runs: list[tuple[str, int, int]]) -> None:
    ordered = sorted((worker, start, start + length) for worker, start, length in runs)
    lanes = _lanes([(worker, start, end, "", "") for worker, start, end in ordered])
    placed = list(zip(ordered, lanes, strict=True))
    for index, ((worker, start, end), lane) in enumerate(placed):
        others = [run for run, other in placed[:index] if other == lane and run[0] == worker]
        assert all(other_end <= start for _, _, other_end in others)
        at_once = sum(run[0] == worker and run[1] <= start < max(run[2], run[1] + 1) for run, _ in placed)
        assert lane <= max(at_once, 1) or end == start


def test_durations_errors_and_workers_are_counted(grid: Book) -> None:
    bins = summaries.histogram(grid, "e1", bins=4)
    assert [one.count for one in bins] == [5, 0, 0, 1]
    assert (bins[0].low, bins[-1].high) == (10.0, 94.0)
    assert [(error.type, error.count, error.outcome) for error in summaries.errors(grid, "e1")] == [
        ("BadReward", 1, Outcome.INVALID),
        ("DockerError", 1, Outcome.INFRA_ERROR),
    ]
    counts = summaries.worker_counts(grid, "e1")
    assert {worker: count.done for worker, count in counts.items()} == {"w1": 4, "w2": 2}
    assert counts["w2"].outcomes == {Outcome.SCORED: 1, Outcome.INFRA_ERROR: 1}


def test_a_datasets_past_is_over_all_evaluations(grid: Book) -> None:
    again = an_evaluation(planned("one__again", "one", dataset="d"), planned("x", "one", dataset="other"), id="e2")
    summaries.enter(grid, again)
    summaries.put(grid, "e2", a_row("one__again", finished_at=NOON + timedelta(seconds=30)))
    past = summaries.past_tasks(grid, "d")
    assert set(past) == {"one", "two", "three"}
    one = past["one"]
    assert (one.runs, one.scored, one.pass_rate, one.median_seconds) == (4, 4, 0.5, 20.0)
    assert past["two"].pass_rate == 1.0
    # Cancelled before it ran is no run; invalid has no rate.
    assert (past["three"].runs, past["three"].pass_rate) == (1, None)
    assert summaries.past_tasks(grid, "") == {}


def test_evaluations_are_found_by_their_words(grid: Book) -> None:
    summaries.enter(grid, an_evaluation(planned("x", "x", model="Great/Model"), id="e2", name="Größe", owner="ann"))
    assert summaries.search(grid, text="great MODEL") == ["e2"]
    assert summaries.search(grid, text="GRÖSSE") == ["e2"]
    assert summaries.search(grid, text="alpha sleep") == ["e1"]
    assert summaries.search(grid, owner="ann") == ["e2"]
    assert sorted(summaries.search(grid)) == ["e1", "e2"]
    assert summaries.search(grid, text="%") == []


def test_putting_in_twice_changes_nothing_and_a_later_row_counts(grid: Book) -> None:
    row = a_row("one__beta1", rewards={"reward": 0.1, "other": 2.0})
    for _ in range(2):
        assert summaries.put(grid, "e1", row)
    known = standing.standing(grid, "e1")
    assert known is not None
    assert (known.done, known.total) == (7, 12)
    assert {score.reward for score in summaries.scores(grid, "e1") if score.labels["agent"] == "beta"} == {
        "reward",
        "other",
    }
    assert summaries.enter(grid, GRID)
    assert summaries.page(grid, "e1", done=True)[1] == 7


def test_what_was_not_planned_is_not_put_in(grid: Book) -> None:
    assert not summaries.put(grid, "e1", a_row("nobody"))
    assert not summaries.put(grid, "e2", a_row("one__alpha1"))


def test_odd_values_go_in(book: Book) -> None:
    summaries.enter(book, an_evaluation(planned("x", "half \ud800 'task'", agent="\ud800")))
    assert summaries.put(book, "e1", a_row("x", error_type="\udcff", input_tokens=10**30, rewards={"\ud800": -1e300}))
    line = summaries.one(book, "e1", "x")
    assert line is not None
    assert line.input_tokens == 2**63 - 1
    assert summaries.scores(book, "e1")[0].mean == -1e300


def test_a_dropped_evaluation_is_gone(grid: Book) -> None:
    assert summaries.drop(grid, "e1")
    assert summaries.page(grid, "e1") == ([], 0)
    assert list(summaries.each(grid, "e1")) == []
    assert summaries.past_tasks(grid, "d") == {}


def test_each_gives_every_line_in_chunks(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aeo.summaries.lines._CHUNK", 5)
    summaries.enter(book, GRID)
    assert [line.trial for line in summaries.each(book, "e1")] == [trial.name for trial in GRID.plan.trials]


def test_threads_and_a_fork_use_one_book(grid: Book) -> None:
    broken: list[BaseException] = []

    def look() -> None:
        try:
            for _ in range(20):
                assert summaries.page(grid, "e1")[1] == 12
                assert summaries.put(grid, "e1", a_row("one__alpha1"))
        except BaseException as error:
            broken.append(error)

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == []
    child = os.fork()
    if child == 0:
        os._exit(0 if summaries.page(grid, "e1")[1] == 12 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert summaries.page(grid, "e1")[1] == 12


# What follows needs the store.


@pytest.fixture
def here(site: Site) -> Site:
    register(site, "a", slots=4)
    return site


def commit(site: Site, id: str, count: int = 1, outcome: Outcome = Outcome.SCORED, *, put: bool = True) -> list[str]:
    """Commit the first ``count`` trials that are not, in the store and, if ``put``, in the summaries."""
    record = records.read(site.shared.evaluation(id))
    done = []
    for trial in [name for name in record.trials if trials.state(site.db, id, name) is not TrialState.DONE][:count]:
        row = a_row(trial, outcome, worker="a")
        assert rows.keep(site, id, row, "t") if put else trials.commit(site.db, id, row, "t")
        done.append(trial)
    return done


def in_line(site: Site, id: str) -> bool:
    """Whether the summaries have the store's rows, all of them and no other."""
    rows = {row.summary.trial: dumps(row) for row in trials.rows_since(site.db, id, 0)}
    known = {line.trial: line.row_text for line in summaries.each(site.book, id) if line.row_text}
    planned_trials = list(records.read(site.shared.evaluation(id)).trials)
    assert [line.trial for line in summaries.each(site.book, id)] == planned_trials
    return rows == known


def keep(site: Site) -> None:
    """One round of the control process."""
    stop = threading.Event()
    health.mark_recovered(site.db)
    keeper = Keeper(site, stop)
    keeper._look(anew=True)


def test_a_real_evaluation_is_summed_up_as_it_goes(here: Site, tmp_path: Path) -> None:
    with running(here, tmp_path, "a") as pool:
        config = {"name": "real", "tasks": 6, "attempts": 2, "seconds": 0.01, "per_worker_concurrency": "all"}
        evaluation = submit(here, {**config, "fail": {"task-2": "invalid", "task-3": "zero"}})
        status = closed(here, evaluation.id)
    assert pool.broken == []
    assert in_line(here, evaluation.id)
    lines = list(summaries.each(here.book, evaluation.id))
    assert Counter(line.outcome for line in lines) == {Outcome.SCORED: 10, Outcome.INVALID: 2}
    assert all(line.started_at and line.phases and line.worker == "a" for line in lines)
    detail = progress.detail(here, evaluation.id)
    assert detail.status == status
    assert detail.shares["a"].done == 12
    (score,) = detail.scores
    assert score.means["reward"] == pytest.approx(0.8)
    assert 0 < score.lows["reward"] < 0.8 < score.highs["reward"] <= 1


def test_a_commit_is_seen_at_once(here: Site) -> None:
    id = submit(here, {"name": "now", "tasks": 3}).id
    (done,) = commit(here, id)
    known = standing.standing(here.book, id)
    assert known is not None
    assert known.done == 1
    view = progress.trial(here, id, done)
    assert view.row == trials.row(here.db, id, done)


def test_an_evaluation_from_before_is_entered_when_it_is_looked_at(here: Site) -> None:
    id = submit(here, {"name": "before", "tasks": 4}).id
    summaries.drop(here.book, id)
    commit(here, id, 2)
    assert standing.standing(here.book, id) is None
    assert progress.trials(here, id, state=TrialState.DONE)[1] == 2
    assert in_line(here, id)


def test_the_control_process_enters_what_is_missing(here: Site) -> None:
    ids = [submit(here, {"name": f"n{number}", "tasks": 3}).id for number in range(3)]
    for id in ids:
        commit(here, id, 3)
    for state in (EvaluationState.MERGING, EvaluationState.SUCCEEDED):
        assert store.move(here.db, ids[0], state)
    here.shared.summaries.unlink()
    keep(here)
    assert all(in_line(here, id) for id in ids)
    assert len(summaries.search(here.book)) == 3


def test_the_control_process_does_so_by_itself(here: Site, tmp_path: Path) -> None:
    id = submit(here, {"name": "self", "tasks": 3, "seconds": 0.01}).id
    summaries.drop(here.book, id)
    with running(here, tmp_path, "a"):
        closed(here, id)
        eventually(lambda: standing.standing(here.book, id))
        eventually(lambda: in_line(here, id))
        here.shared.summaries.unlink()
        eventually(lambda: standing.standing(here.book, id) and in_line(here, id))


def test_trials_cancelled_before_they_ran_are_in(here: Site) -> None:
    id = submit(here, {"name": "stop", "tasks": 5}).id
    commit(here, id)
    evaluations.cancel(here, id)
    views, total = progress.trials(here, id, outcome=Outcome.CANCELLED)
    assert total == len(views) == 4
    assert all(view.attempt == 0 and view.task.startswith("task-") for view in views)
    assert in_line(here, id)


def test_a_file_deleted_under_everybody_is_made_anew(here: Site) -> None:
    id = submit(here, {"name": "gone", "tasks": 4}).id
    commit(here, id, 2)
    other = Book(here.shared.summaries)
    assert summaries.page(other, id)[1] == 4
    here.shared.summaries.unlink()
    commit(here, id)
    assert progress.detail(here, id).shares["a"].done == 3
    assert in_line(here, id)
    # The other process finds the new file too.
    assert summaries.page(other, id, done=True)[1] == 3


@pytest.mark.parametrize("damage", ["garbage", "torn", "empty", "foreign", "tables"])
def test_a_damaged_file_fails_no_commit_and_is_made_anew(here: Site, damage: str) -> None:
    id = submit(here, {"name": "hurt", "tasks": 40}).id
    commit(here, id, 20)
    here.book.close()
    path = here.shared.summaries
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if damage == "tables":
            connection.execute("DROP TABLE texts")
    connection.close()
    content = path.read_bytes()
    if damage == "garbage":
        path.write_bytes(content[:4096] + os.urandom(len(content) - 4096))
    elif damage == "torn":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "foreign":
        path.write_bytes(b"this is no database at all. " * 500)
    assert commit(here, id)
    eventually(lambda: _looked(here, id, 21), 5)
    assert commit(here, id)
    assert _looked(here, id, 22)


def _looked(site: Site, id: str, done: int) -> bool:
    """Whether a look shows so many results; one that meets the damage may say that it cannot."""
    try:
        return progress.detail(site, id).shares["a"].done == done and in_line(site, id)
    except Unavailable:
        return False


def test_a_full_disk_fails_no_commit(
    here: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    id = submit(here, {"name": "full", "tasks": 400}).id
    commit(here, id, 5)
    connect = Book._connect

    def full(book: Book) -> sqlite3.Connection:
        connection = connect(book)
        connection.execute("PRAGMA max_page_count = 1")  # SQLite raises it to what there is
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(Book, "_connect", full)
        here.book.close()
        with caplog.at_level(logging.WARNING, "aeo.summaries"):
            commit(here, id, 200)
        assert [record for record in caplog.records if "full" in record.getMessage()][1:] == []
        assert store.get(here.db, id).done == 205
        # What is known is still shown.
        assert progress.trials(here, id, limit=1)[1] == 400
    here.book.close()
    assert progress.detail(here, id).shares["a"].done == 205
    assert in_line(here, id)


def test_a_locked_file_fails_no_commit(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "BUSY_SECONDS", 0.05)
    id = submit(here, {"name": "busy", "tasks": 3}).id
    here.book.close()
    with sqlite3.connect(here.shared.summaries, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        assert commit(here, id)
        assert progress.trials(here, id)[1] == 3
        other.execute("ROLLBACK")
    assert progress.trials(here, id, state=TrialState.DONE)[1] == 1


def test_a_place_that_cannot_be_written_fails_no_submission(here: Site) -> None:
    here.shared.summaries.mkdir()
    id = submit(here, {"name": "nowhere", "tasks": 2}).id
    assert commit(here, id)
    with pytest.raises(Unavailable):
        progress.detail(here, id)
    here.shared.summaries.rmdir()
    assert progress.detail(here, id).shares["a"].done == 1


def test_a_wiped_store_leaves_no_result_that_is_not_there(here: Site, tmp_path: Path) -> None:
    with running(here, tmp_path, "a") as pool:
        id = submit(here, {"name": "wiped", "tasks": 8, "seconds": [0.01] * 7 + [60], "per_worker_concurrency": 2}).id
        eventually(lambda: store.get(here.db, id).done == 7, 30)
        evaluations.pause(here, id)
        pool.workers["a"].stopping.set()
    gone = next(line.trial for line in summaries.each(here.book, id) if line.outcome)
    here.db.client.flushall()
    for path in sorted((here.shared.job("wiped") / gone).rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    recovery.recover(here)
    keep(here)
    assert store.get(here.db, id).done == 6
    line = summaries.one(here.book, id, gone)
    assert line is not None
    assert (line.outcome, line.row_text) == (None, "")
    assert in_line(here, id)
    # The same number of results, but others: only the order of commits tells.
    commit(here, id)
    keep(here)
    assert in_line(here, id)


def test_a_result_that_comes_in_while_all_are_read_stays(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    id = submit(here, {"name": "meanwhile", "tasks": 6}).id
    commit(here, id, 3)
    read = trials.rows

    def rows(*args: Any, **values: Any) -> tuple[list[TrialRow], int]:
        found = read(*args, **values)
        if not found[0]:
            commit(here, id)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(trials, "rows", rows)
        keep(here)
    assert store.get(here.db, id).done == 4
    assert in_line(here, id)


def test_an_evaluation_the_store_does_not_know_is_dropped(here: Site) -> None:
    id = submit(here, {"name": "off", "tasks": 2}).id
    store.delete(here.db, id)
    keep(here)
    assert standing.standing(here.book, id) is None


def test_a_store_that_is_being_rebuilt_is_not_followed(here: Site) -> None:
    id = submit(here, {"name": "wait", "tasks": 2}).id
    commit(here, id)
    here.db.client.flushall()
    stop = threading.Event()
    stop.set()
    Keeper(here, stop).round()
    assert summaries.page(here.book, id, done=True)[1] == 1


def test_states_of_what_has_no_result_come_from_the_store(here: Site) -> None:
    id = submit(here, {"name": "states", "tasks": 6, "per_worker_concurrency": 1}).id
    (batch,) = (status.batch for status in store.batches(here.db, id))
    claims = [trials.claim(here.db, batch, token=f"t{n}", lease_seconds=60) for n in range(3)]
    first, second, third = [claim for claim in claims if claim]
    assert trials.pushed(here.db, second)
    rows.keep(here, id, a_row(third.trial, worker="b"), third.token)

    def shown(**asked: Any) -> list[str]:
        views, total = progress.trials(here, id, **asked)
        assert total == len(views)
        return [view.trial for view in views]

    assert shown(state=TrialState.RUNNING) == [first.trial]
    assert shown(state=TrialState.PUSHED) == [second.trial]
    assert shown(state=TrialState.DONE) == [third.trial]
    assert len(shown(state=TrialState.PENDING)) == 3
    assert sorted(shown(worker="a")) == sorted([first.trial, second.trial])
    assert shown(worker="a", state=TrialState.RUNNING) == [first.trial]
    assert shown(worker="b") == [third.trial]
    view = progress.trial(here, id, first.trial)
    assert (view.state, view.worker, view.attempt, view.row) == (TrialState.RUNNING, "a", 1, None)
    placed = progress.line(here, id, second.trial)
    assert (placed.state, placed.claim and placed.claim.token) == (TrialState.PUSHED, second.token)


def test_the_history_is_searched_filtered_and_paged(here: Site) -> None:
    for number in range(5):
        submit(here, {"name": f"night-{number}", "tasks": 1, "model": f"lab/model-{number % 2}"})
    for name in ("night-0", "night-3"):
        evaluations.cancel(here, name)

    def found(**asked: Any) -> list[str]:
        page, total = progress.history(here, **asked)
        assert total >= len(page)
        return [status.name for status in page]

    newest = [f"night-{number}" for number in (4, 3, 2, 1, 0)]
    assert found() == newest
    assert found(search="model-0") == ["night-4", "night-2", "night-0"]
    assert found(search="night model-1", state=EvaluationState.CANCELLING) == ["night-3"]
    assert found(state=[EvaluationState.CANCELLING, EvaluationState.RUNNING], offset=1, limit=2) == newest[1:3]
    assert found(owner="nobody") == []
    assert progress.history(here, search="night", limit=2)[1] == 5


def test_the_plan_is_not_read_to_look(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """No look at an evaluation that is in line reads all its trials or all its rows."""
    id = submit(here, {"name": "light", "tasks": 5}).id
    commit(here, id, 2)

    def never(*args: Any, **values: Any) -> Mapping[str, Any]:
        raise AssertionError("read")

    for where, what in ((records, "read"), (trials, "rows_since"), (trials, "rows"), (trials, "states")):
        monkeypatch.setattr(where, what, never)
    progress.detail(here, id)
    assert progress.trials(here, id)[1] == 5
    progress.trials(here, id, state=TrialState.PENDING)


def test_a_damaged_record_is_not_entered_and_hides_no_other(here: Site) -> None:
    bad, good = (submit(here, {"name": name, "tasks": 2}).id for name in ("bad", "good"))
    for id in (bad, good):
        summaries.drop(here.book, id)
    (here.shared.evaluation(bad) / records.TRIALS).write_text("{")
    keep(here)
    assert in_line(here, good)
    assert standing.standing(here.book, bad) is None
    with pytest.raises(InputError):
        records.read(here.shared.evaluation(bad))
