"""The form and the text of an evaluation being written stay in step."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from aeo import drafts
from aeo.core.errors import InputError
from aeo.core.model import Evaluation, Plan, Spec
from aeo.executors import document
from aeo.executors.forms import AgentRow, Values
from aeo.submission import Submission
from aeo.submission import read as read_submission

TEXT = """\
# nightly
executor: harbor
workers: [w2, w1]
per_worker_concurrency: all
datasets:
  - path: /data/tasks   # the small ones
agents: [{name: oracle, kwargs: {x: 1}}]
verifier: {disable: true}
"""

plain = st.none() | st.booleans() | st.integers(-99, 99) | st.floats(allow_nan=False, width=16) | st.text(max_size=6)
value = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
)
headers = st.fixed_dictionaries(
    {},
    optional={
        "executor": st.sampled_from(["harbor", "sleep", "command", "nobody"]),
        "name": value,
        "workers": st.lists(st.sampled_from(["w1", "w2"]), max_size=2) | value,
        "per_worker_concurrency": st.sampled_from(["all", None, 2]) | value,
        "priority": value,
        "agent_timeout_multiplier": value,
        "max_requeues": value,
    },
)
configs = st.fixed_dictionaries(
    {}, optional={"datasets": value, "agents": value, "n_attempts": value, "other": value, "retry": value}
)


def texts() -> st.SearchStrategy[str]:
    def dumped(parts: tuple[dict[str, Any], dict[str, Any]]) -> str:
        parts = parts if "executor" in parts[0] else ({}, parts[1])
        return yaml.safe_dump({**parts[0], **parts[1]}, sort_keys=False, allow_unicode=True)

    return st.tuples(headers, configs).map(dumped).filter(readable)


def readable(text: str) -> bool:
    try:
        document.read(text, "")
    except InputError:
        return False
    return True


@given(texts())
def test_a_text_nobody_changed_stays(text: str) -> None:
    assert drafts.write(drafts.read(text), text) == text
    assert all(isinstance(place, str) for place in drafts.hidden(text))


word = st.text(st.characters(categories=["L", "N"]), max_size=5)
#: Null of these is a default, so an empty text reads back as it.
EMPTY = {"per_worker_concurrency": "1", "priority": "0", "max_requeues": "2"}
changes = st.fixed_dictionaries(
    {},
    optional={
        "name": word,
        "workers": st.lists(word.filter(bool), max_size=2).map(tuple),
        "per_worker_concurrency": word | st.sampled_from(["all", "3"]),
        "priority": word | st.just("-5"),
        "agent_timeout_multiplier": word | st.sampled_from(["", "1.5"]),
        "max_requeues": word,
        "values": st.builds(Values, dataset=word, attempts=word),
    },
)


@given(texts(), changes)
def test_what_was_typed_is_read_back_and_everything_else_kept(text: str, change: dict[str, Any]) -> None:
    draft = drafts.read(text)
    if draft.executor == "nobody":
        change.pop("values", None)
    if "values" in change and draft.executor != "command":
        values = replace(draft.values, attempts=change["values"].attempts)
        change["values"] = replace(values, dataset=change["values"].dataset) if draft.executor == "harbor" else values
    elif "values" in change:
        change["values"] = replace(
            draft.values, **{key: getattr(change["values"], key) for key in ("dataset", "attempts")}
        )
    made = drafts.read(drafts.write(replace(draft, **change), text))
    for key, wanted in change.items():
        if key == "values":
            assert made.values.dataset == wanted.dataset
            assert made.values.attempts == _normal(wanted.attempts)
        else:
            assert getattr(made, key) == (_normal(wanted) if key not in ("name", "workers") else wanted) or (
                wanted == "" and getattr(made, key) == EMPTY[key]
            )
    kept = set(drafts.Draft.__dataclass_fields__) - set(change) - {"values"}
    assert {key: getattr(made, key) for key in kept} == {key: getattr(draft, key) for key in kept}
    other = (document.read(text, "") or {}).get("other")
    assert (document.read(drafts.write(replace(draft, **change), text) or "{}", "") or {}).get("other") == other


def _normal(text: str) -> str:
    return str(int(text)) if text.isascii() and text.isdigit() else text


def test_a_usual_text() -> None:
    draft = drafts.read(TEXT)
    assert (draft.executor, draft.workers, draft.per_worker_concurrency) == ("harbor", ("w2", "w1"), "all")
    assert (draft.priority, draft.agent_timeout_multiplier, draft.max_requeues) == ("0", "3.0", "2")
    assert draft.values.agents == (AgentRow(agent="oracle", origin=0),)
    assert set(drafts.hidden(TEXT)) == {"verifier", "agents[0].kwargs"}


def test_one_change_leaves_the_rest_as_it_means() -> None:
    draft = drafts.read(TEXT)
    made = drafts.write(replace(draft, priority="4", values=replace(draft.values, attempts="2")), TEXT)
    assert yaml.safe_load(made) == {**yaml.safe_load(TEXT), "priority": 4, "n_attempts": 2}
    assert list(yaml.safe_load(made))[:4] == ["executor", "workers", "per_worker_concurrency", "priority"]


def test_a_plain_configuration_stays_one_until_our_header_is_needed() -> None:
    text = "datasets: [{name: a}]\n"
    draft = drafts.read(text)
    assert draft.agent_timeout_multiplier == ""
    assert yaml.safe_load(drafts.write(replace(draft, values=replace(draft.values, attempts="2")), text)) == {
        "datasets": [{"name": "a"}],
        "n_attempts": 2,
    }
    headed = drafts.write(replace(draft, priority="1"), text)
    assert yaml.safe_load(headed)["agent_timeout_multiplier"] is None
    # Agents keep the time they had.
    assert read_submission(Submission(text=headed))[0].agent_timeout_multiplier is None
    own = drafts.write(
        replace(drafts.read(f"{text}agent_timeout_multiplier: 2.0\n"), priority="1"),
        f"{text}agent_timeout_multiplier: 2.0\n",
    )
    assert read_submission(Submission(text=own))[0].agent_timeout_multiplier == 2.0


def test_another_executor_takes_the_common_words_along() -> None:
    draft = drafts.read(TEXT)
    made = drafts.write(replace(draft, executor="sleep"), TEXT)
    assert yaml.safe_load(made) == {
        "executor": "sleep",
        "workers": ["w2", "w1"],
        "per_worker_concurrency": "all",
        "agent": "oracle",
    }


def test_a_dataset_brings_what_belongs_to_it() -> None:
    text = "executor: harbor\ndatasets: [{name: a, task_names: [x]}, {name: b}]\n"
    draft = drafts.read(text)
    chosen = replace(draft, values=replace(draft.values, dataset="c"))
    whole = {"datasets": [{"name": "c", "registry_url": "r"}], "metrics": [{"type": "mean"}]}
    assert yaml.safe_load(drafts.write(chosen, text, whole)) == {
        "executor": "harbor",
        "datasets": [{"name": "c", "registry_url": "r", "task_names": ["x"]}],
        "metrics": [{"type": "mean"}],
    }
    assert yaml.safe_load(drafts.write(chosen, text, {"datasets": [{"name": "c"}]}))["datasets"][1] == {"name": "b"}
    assert drafts.write(draft, text, whole) == text


@pytest.mark.parametrize("text", ["- a\n", "words", "a: [\n"])
def test_what_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"line|:\d"):
        drafts.read(text)


def test_nothing_yet_is_a_form_with_the_defaults() -> None:
    assert drafts.read("").executor == "harbor"
    assert drafts.read(drafts.new()).agent_timeout_multiplier == "3.0"
    assert drafts.read(drafts.new("sleep")).per_worker_concurrency == "1"


@pytest.mark.parametrize(
    ("place", "word"),
    [
        ("line 12: agents[1].model_name", "agents.1"),
        ("job.yaml:3: n_attempts", "attempts"),
        ("job.yaml:3", ""),
        ("line 4: priority", "priority"),
        ("agents[0]", "agents.0"),
        ("worker w1", "workers"),
        ("task a", ""),
        ("", ""),
    ],
)
def test_a_problem_finds_its_field(place: str, word: str) -> None:
    assert drafts.word(place, "harbor") == word


def test_again() -> None:
    spec = Spec(
        executor="harbor", name="nightly", per_worker_concurrency=None, config={"agent_timeout_multiplier": 2.0}
    )
    evaluation = Evaluation(id="e", spec=spec, plan=Plan(trials=()), submitted_at=datetime.now(timezone.utc))
    assert yaml.safe_load(drafts.again(evaluation, taken={"nightly-2"}.__contains__)) == {
        "executor": "harbor",
        "name": "nightly-3",
        "per_worker_concurrency": "all",
        "agent_timeout_multiplier": 2.0,
        "max_requeues": 2,
    }


@pytest.mark.parametrize(
    ("name", "following"),
    [
        ("a", "a-2"),
        ("a-2", "a-3"),
        ("a-9", "a-10"),
        ("gpt-5", "gpt-6"),
        ("2026-01-02--03-04-05-ab12", ""),
        ("a-0", "a-0-2"),
    ],
)
def test_the_next_name(name: str, following: str) -> None:
    assert drafts.next_name(name, lambda _: False) == following
