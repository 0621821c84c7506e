"""What a person hands in: header or plain, options win, every fault named with its place."""

from __future__ import annotations

import pytest

from aeo.core.errors import InputError
from aeo.submission import Submission, read


def problem(**fields: object) -> str:
    with pytest.raises(InputError) as caught:
        read(Submission(**fields))  # type: ignore[arg-type]
    return str(caught.value)


def test_a_plain_configuration_is_left_as_its_executor_reads_it() -> None:
    text = "job_name: x\nn_attempts: 2\nagent_timeout_multiplier: 1.5\n"
    spec, file = read(Submission(text=text, file_name="job.yaml", working_dir="/home/me"))
    assert spec.executor == "harbor"
    assert spec.agent_timeout_multiplier is None
    assert spec.config == {"job_name": "x", "n_attempts": 2, "agent_timeout_multiplier": 1.5}
    assert (file.name, file.text, file.folder) == ("job.yaml", text, "/home/me")


def test_our_header_takes_its_keys_out_and_sets_its_defaults() -> None:
    spec, _ = read(Submission(text="executor: sleep\nname: n\nworkers: [a, b]\ntrials: 3\n"))
    assert (spec.executor, spec.name, spec.workers) == ("sleep", "n", ("a", "b"))
    assert spec.per_worker_concurrency == 1
    assert spec.agent_timeout_multiplier == 3.0
    assert spec.config == {"trials": 3}


@pytest.mark.parametrize(("value", "expected"), [("all", None), (3, 3), ("4", 4), (None, None)])
def test_concurrency(value: object, expected: int | None) -> None:
    spec, _ = read(Submission(config={"executor": "sleep", "per_worker_concurrency": value}))
    assert spec.per_worker_concurrency == expected


def test_options_win_and_none_does_not_count() -> None:
    options = {"name": "other", "workers": "c, d", "priority": 5, "per_worker_concurrency": None}
    spec, _ = read(Submission(config={"executor": "sleep", "name": "n", "workers": ["a"]}, options=options))
    assert (spec.name, spec.workers, spec.priority, spec.per_worker_concurrency) == ("other", ("c", "d"), 5, 1)


def test_an_option_alone_makes_no_header() -> None:
    spec, _ = read(Submission(config={"datasets": []}, options={"name": "n"}))
    assert spec.agent_timeout_multiplier is None


def test_json_is_read_too() -> None:
    assert read(Submission(text='{"executor": "sleep", "trials": 1}'))[0].config == {"trials": 1}


def test_faulty_yaml_names_the_line() -> None:
    assert "job.yaml:2" in problem(text="a: 1\n b: [\n", file_name="job.yaml")


@pytest.mark.parametrize(
    "text", ["", "   \n", "- a\n- b\n", "just words", "1: x\n", "\x00", "a: !!python/object:os.system x"]
)
def test_what_is_no_mapping_is_refused(text: str) -> None:
    assert problem(text=text, file_name="f.yaml").startswith("f.yaml")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "../up"),
        ("name", "/abs"),
        ("name", "a/b"),
        ("name", ""),
        ("name", 7),
        ("name", "a..b"),
        ("name", "x" * 201),
        ("name", "new\nline"),
        ("executor", ["sleep"]),
        ("executor", None),
        ("name", "sk-abcdefghijklmnopqrstuvwxyz123456"),
        ("workers", 5),
        ("workers", ["a", "a"]),
        ("workers", ["-bad"]),
        ("per_worker_concurrency", 0),
        ("per_worker_concurrency", 1.5),
        ("per_worker_concurrency", True),
        ("priority", "high"),
        ("agent_timeout_multiplier", 0),
        ("agent_timeout_multiplier", float("nan")),
        ("agent_timeout_multiplier", "3"),
        ("max_requeues", -1),
        ("max_requeues", 10**12),
        ("priority", "9" * 5000),
        ("priority", "²"),
        ("priority", -(10**12)),
    ],
)
def test_bad_header_values_name_their_key(key: str, value: object) -> None:
    assert problem(config={"executor": "sleep", key: value}).startswith(f"{key}: ")


def test_an_unknown_option_suggests_the_known_one() -> None:
    assert "per_worker_concurrency" in problem(config={"executor": "sleep"}, options={"per_worker_concurency": 2})


def test_what_json_has_no_word_for_is_refused_wherever_it_comes_from() -> None:
    text = "datasets: []\nagents:\n  - kwargs: {since: 2024-01-01}\n"
    assert problem(text=text, file_name="j.yaml").startswith("j.yaml:3: agents[0].kwargs.since: is a date")
    assert problem(config={"agents": [{"kwargs": {"x": float("nan")}}]}).startswith("agents[0].kwargs.x: ")
    assert problem(config={}, options={"priority": 10**30}).startswith("options.priority: ")


def test_a_key_given_twice_is_refused() -> None:
    assert problem(text="n_attempts: 1\nn_attempts: 2\n", file_name="j.yaml").startswith("j.yaml:2: n_attempts")
