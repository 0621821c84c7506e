"""Which results are taken over, and why others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aeo.core.model import Outcome, PlannedTrial, TrialRow, TrialSummary
from aeo.core.rerun import CONTENT, NEVER_RAN, NEW, Choice, Planned, Ran, differences, match

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


def planned(
    name: str, task: str = "t", *, content: str = "c", identity: Mapping[str, Any] | None = None, **labels: str
) -> Planned:
    return Planned(
        trial=PlannedTrial(name=name, task=task, content=content, labels={"agent": "a", **labels}),
        identity=identity or {"factor": 3.0},
    )


def ran(
    name: str, task: str = "t", outcome: Outcome | None = Outcome.SCORED, *errors: str, attempt: int = 1, **more: Any
) -> Ran:
    made = planned(name, task, **more)
    row = None
    if outcome is not None:
        summary = TrialSummary(
            trial=name, task=task, outcome=outcome, error_type=errors[0] if errors else "", error_types=errors
        )
        row = TrialRow(summary=summary, worker="w", attempt=attempt, committed_at=AT)
    return Ran(trial=made.trial, identity=made.identity, row=row)


def test_good_results_are_taken_over_by_attempt_and_the_chosen_run_again() -> None:
    before = [ran("o1"), ran("o2", "t", Outcome.INFRA_ERROR, "ApiRateLimitError"), ran("o3"), ran("p1", "u")]
    now = [planned("n1"), planned("n2"), planned("n3"), planned("m1", "u")]
    found = match(before, now, Choice(errors=frozenset({"ApiRateLimitError"})))
    assert found.carried == {"n1": "o1", "n3": "o3", "m1": "p1"}
    assert found.run == {"n2": "ended with ApiRateLimitError"}
    assert found.left == ()


def test_every_recorded_error_counts_and_so_does_the_outcome() -> None:
    before = [ran("o1", "t", Outcome.SCORED, "First", "Second"), ran("o2", "t", Outcome.INVALID), ran("o3")]
    now = [planned("n1"), planned("n2"), planned("n3")]
    found = match(before, now, Choice(errors=frozenset({"Second"}), outcomes=frozenset({Outcome.INVALID})))
    assert found.run == {"n1": "ended with Second", "n2": "ended as invalid"}
    assert found.carried == {"n3": "o3"}


def test_what_was_stopped_or_never_ran_is_run_without_being_chosen() -> None:
    before = [
        ran("o1", "t", None),
        ran("o2", "t", Outcome.CANCELLED, attempt=0),
        ran("o3", "t", Outcome.CANCELLED, "CancelledError"),
        ran("o4"),
    ]
    found = match(before, [planned(f"n{i}") for i in range(1, 5)], Choice())
    assert found.run == dict.fromkeys(("n1", "n2", "n3"), NEVER_RAN)
    assert found.carried == {"n4": "o4"}


def test_a_failure_that_was_not_chosen_is_a_result_like_others() -> None:
    found = match([ran("o1", "t", Outcome.INFRA_ERROR, "E")], [planned("n1")], Choice(errors=frozenset({"F"})))
    assert found.carried == {"n1": "o1"}


def test_another_content_or_identity_makes_another_trial() -> None:
    before = [ran("o1"), ran("p1", "u")]
    found = match(before, [planned("n1", content="d"), planned("m1", "u", identity={"factor": 1.0})], Choice())
    assert found.carried == {}
    assert found.run == {"n1": CONTENT, "m1": "a good result, but of another trial: factor is 1.0, was 3.0"}
    assert found.left == ()


def test_another_agent_model_or_dataset_is_new_and_its_result_stays_behind() -> None:
    before = [ran("o1", model="m"), ran("o2", model="m", provider="p"), ran("o3", dataset="d")]
    found = match(before, [planned("n1", model="n"), planned("n2", model="m", provider="q"), planned("n3")], Choice())
    assert found.run == dict.fromkeys(("n1", "n2", "n3"), NEW)
    assert found.left == ("o1", "o2", "o3")


def test_a_bad_result_of_another_trial_is_told_as_bad() -> None:
    before = [ran("o1", "t", Outcome.INFRA_ERROR, "E")]
    found = match(before, [planned("n1", identity={"factor": 1.0})], Choice(errors=frozenset({"E"})))
    assert found.run == {"n1": "ended with E"}


def test_agents_of_one_name_get_their_own_results_in_any_order() -> None:
    one, two = {"kwargs": {"n": 1}}, {"kwargs": {"n": 2}}
    before = [ran("a1", identity=one), ran("b1", identity=two), ran("a2", identity=one), ran("b2", identity=two)]
    now = [planned("y1", identity=two), planned("x1", identity=one), planned("y2", identity=two)]
    found = match(before, now, Choice())
    assert found.carried == {"y1": "b1", "x1": "a1", "y2": "b2"}
    assert found.left == ("a2",)


def test_fewer_attempts_leave_the_last_behind_and_more_are_new() -> None:
    before = [ran("o1"), ran("o2"), ran("o3")]
    assert match(before, [planned("n1")], Choice()).left == ("o2", "o3")
    found = match(before, [planned(f"n{i}") for i in range(1, 5)], Choice())
    assert found.run == {"n4": NEW}


def test_refused_results_are_run() -> None:
    found = match([ran("o1"), ran("o2")], [planned("n1"), planned("n2")], Choice()).without({"n2": "gone"})
    assert (found.carried, found.run) == ({"n1": "o1"}, {"n2": "gone"})


def test_differences_are_told_shortly() -> None:
    before = {"a": {"b": [1, 2]}, "long": "x" * 100, "gone": True, "same": {}}
    now = {"a": {"b": [1, 3]}, "long": "y" * 100, "more": None, "same": {}, "z": 1}
    assert differences(before, now) == "a.b[1] is 3, was 2; gone is not set, was true; long is another one; and 1 more"
    assert differences({"a": {}}, {"a": {"b": 1}}) == "a.b is 1, was not set"
    assert differences({"a": {}}, {}) == "what is empty in one is left out in the other"


TASKS, IDENTITIES = st.sampled_from("tu"), st.sampled_from([{"k": 1}, {"k": 2}])
OUTCOMES = st.sampled_from([None, Outcome.SCORED, Outcome.INFRA_ERROR, Outcome.CANCELLED])


@given(
    st.lists(st.tuples(TASKS, OUTCOMES, IDENTITIES, st.sampled_from("cd"))),
    st.lists(st.tuples(TASKS, IDENTITIES, st.sampled_from("cd"))),
)
def test_nothing_is_lost_or_taken_twice(earlier: list[Any], now: list[Any]) -> None:
    before = [
        ran(f"o{i}", task, outcome, identity=identity, content=content)
        for i, (task, outcome, identity, content) in enumerate(earlier)
    ]
    new = [planned(f"n{i}", task, identity=one, content=content) for i, (task, one, content) in enumerate(now)]
    found = match(before, new, Choice(outcomes=frozenset({Outcome.INFRA_ERROR})))
    assert Counter([*found.carried, *found.run]) == Counter(item.trial.name for item in new)
    used = Counter([*found.carried.values(), *found.left])
    assert all(times == 1 for times in used.values())
    olds = {item.trial.name: item for item in before}
    news = {item.trial.name: item for item in new}
    for name, old in found.carried.items():
        a, b = news[name], olds[old]
        assert (a.trial.task, a.trial.content, a.identity) == (b.trial.task, b.trial.content, b.identity)
        assert b.row is not None
        assert b.row.summary.outcome is Outcome.SCORED
