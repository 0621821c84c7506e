"""The page of an evaluation: what it shows, how it follows, what it lets whom do, and the data of its charts."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import seeded
from apiflask import APIFlask
from flask.testing import FlaskClient

from aeo import charts, users
from aeo.charts import Run
from aeo.config import Config
from aeo.core.model import EvaluationState, Outcome
from aeo.site import Site, open_site
from aeo.store import evaluations as store
from aeo.users import Role
from webapp import create_app
from webapp.pages import evaluation as evaluation_page

TOKEN = "token-of-the-page-test"
POLL = {"HX-Request": "true"}

Client = Callable[..., FlaskClient]


@pytest.fixture
def page_site(redis_url: str, tmp_path: Path) -> Iterator[Site]:
    opened = open_site(
        Config(
            shared_root=tmp_path / "shared",
            broker_url=redis_url,
            auth_token=TOKEN,
            viewer_url="http://viewer.test/",
            secret_names=("PAGE_TEST_KEY",),
        )
    )
    yield opened
    opened.db.close()


@pytest.fixture
def app(page_site: Site) -> APIFlask:
    return create_app(page_site)


@pytest.fixture
def sign_in(app: APIFlask, page_site: Site) -> Client:
    """A browser of somebody: without a name the operator's, else a new user's of this role."""

    def made(name: str = "", role: Role = Role.MEMBER) -> FlaskClient:
        token = users.add(page_site.shared, name, role) if name else TOKEN
        client = app.test_client()
        assert client.get(f"/?token={token}").status_code == 303
        return client

    return made


def text_of(answer: Any, status: int = 200) -> str:
    """The words of a page, without its tags."""
    assert answer.status_code == status, answer.text
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", answer.text)))


def section(answer: Any, id: str) -> str:
    """The words of one element of a page that no element of its kind is inside of."""
    kind, inner = re.search(rf'<(\w+)[^>]* id="{id}".*?(?=</main>|\Z)', answer.text, re.S).group(1, 0)  # type: ignore[union-attr]
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", inner.partition(f"</{kind}>")[0])))


def csrf(client: FlaskClient, path: str) -> str:
    found = re.search(r'name="csrf-token" content="([^"]+)"', client.get(path).text)
    assert found
    return found.group(1)


def act(client: FlaskClient, id: str, what: str, **form: str) -> Any:
    return client.post(f"/evaluations/{id}/{what}", data={"csrf_token": csrf(client, f"/evaluations/{id}"), **form})


def names(answer: Any) -> list[str]:
    """The trials in the table, in its order."""
    table = answer.text[answer.text.index('id="trials"') :]
    return re.findall(r'href="/evaluations/\w+/trials/([^"]+)"', table)


def test_a_running_evaluation(page_site: Site, sign_in: Client) -> None:
    seeded.evaluation(page_site, done=24, running=3, owner="ann", warnings=("Two folders have no task.",))
    client = sign_in()
    page = client.get("/evaluations/e1")
    words = text_of(page)
    assert "24 of 36" in words
    assert "Two folders have no task." in words
    assert "AgentSetupError" in words
    assert re.search(r"Time left \d", words)
    assert re.search(r"0\.\d{3} 0\.\d{3}–0\.\d{3} \d+ of 36 \(\d+ %\)", words), "mean, interval and coverage together"
    assert len(re.findall("task-00", section(page, "running"))) == 3
    assert re.search(r"alpha \d+ \d+ \d+", section(page, "shares"))
    assert "note: as asked" in words
    assert 'href="http://viewer.test/jobs/nightly"' in page.text
    assert client.get("/evaluations/nightly").status_code == 200
    assert client.get("/evaluations/e1", headers={"Accept-Language": "zh"}).status_code == 200


def test_an_evaluation_that_has_just_begun(page_site: Site, sign_in: Client) -> None:
    seeded.evaluation(page_site, tasks=3, attempts=1, done=0)
    page = sign_in().get("/evaluations/e1")
    words = text_of(page)
    assert "no score yet" in words
    assert "it waits for a free slot" in words
    assert "No trial has ended with one." in words
    assert "Time left" not in words
    assert len(names(page)) == 3


def test_scores_are_told_apart_by_what_differs(page_site: Site, sign_in: Client) -> None:
    seeded.evaluation(page_site, models=("model-a", "model-b"), parent="e0", close=True)
    client = sign_in()
    for headers in ({}, POLL):
        answer = client.get("/evaluations/e1?part=live", headers=headers)
        words = section(answer, "live")
        assert "Agent terminus Dataset bench" in words
        assert re.search(r"Model Score, 95 % interval, coverage model-a 0\.\d+ .* model-b 0\.\d+", words)
        assert 'Rerun of</dt><dd><a href="/evaluations/e0">' in answer.text


def test_there_is_none(sign_in: Client) -> None:
    client = sign_in()
    assert client.get("/evaluations/nothing").status_code == 404
    assert client.get("/evaluations/a%20b").status_code == 422
    for what in ("heatmap", "timeline", "histogram", "errors", "groups"):
        assert client.get(f"/api/evaluations/nothing/{what}").status_code == 404


def test_a_part_is_polled_while_it_runs_and_no_longer(page_site: Site, sign_in: Client) -> None:
    seeded.evaluation(page_site, done=24, running=2)
    client = sign_in()
    whole = client.get("/evaluations/e1").text
    polled = [html.unescape(url) for url in re.findall(r'hx-get="([^"]+)" hx-trigger="every', whole)]
    assert {parse_qs(urlsplit(url).query)["part"][0] for url in polled} == {"live", "trials", "groups"}
    for url in polled:
        answer = client.get(url, headers=POLL)
        assert answer.status_code == 200
        assert "<html" not in answer.text
        assert "every" in answer.text
        assert "HX-Push-Url" not in answer.headers
    assert store.move(page_site.db, "e1", EvaluationState.MERGING)
    assert store.move(page_site.db, "e1", EvaluationState.FAILED)
    for url in polled:
        answer = client.get(url, headers=POLL)
        assert answer.status_code == 286
        assert "every" not in answer.text
    # A person who comes back by history gets the page, whatever part was asked for last.
    back = client.get("/evaluations/e1?part=trials", headers={**POLL, "HX-History-Restore-Request": "true"})
    assert back.status_code == 200
    assert "<html" in back.text
    assert "every" not in back.text


def test_a_poll_brings_other_parts_along_and_buttons_only_when_the_state_changed(
    page_site: Site, sign_in: Client
) -> None:
    seeded.evaluation(page_site, done=24, running=2)
    client = sign_in()
    answer = client.get("/evaluations/e1?part=live&was=running", headers=POLL).text
    assert re.findall(r'id="(\w+)"[^>]*hx-swap-oob="true"', answer) == ["running", "shares", "errors"]
    store.move(page_site.db, "e1", EvaluationState.PAUSED, "for lunch")
    answer = client.get("/evaluations/e1?part=live&was=running", headers=POLL).text
    assert "actions" in re.findall(r'id="(\w+)"[^>]*hx-swap-oob="true"', answer)
    assert "for lunch" in answer
    assert "/evaluations/e1/resume" in answer
    assert "was=paused" in answer
    whole = client.get("/evaluations/e1").text
    assert "hx-swap-oob" not in whole
    ids = re.findall(r' id="([^"]+)"', whole)
    assert len(ids) == len(set(ids))


def test_pause_resume_and_cancel(page_site: Site, sign_in: Client) -> None:
    seeded.evaluation(page_site, done=10, running=1, owner="ann")
    ann = sign_in("ann")

    def state() -> str:
        return store.get(page_site.db, "e1").state.value

    assert act(ann, "e1", "pause", reason=" a new model comes ").headers["Location"].endswith("/evaluations/e1")
    assert state() == "paused"
    words = text_of(ann.get("/evaluations/e1"))
    assert "a new model comes" in words
    assert "What runs goes on to its end." in words
    act(ann, "e1", "pause")
    assert "is paused" in text_of(ann.get("/evaluations/e1"))
    act(ann, "e1", "resume")
    assert state() == "running"
    act(ann, "e1", "cancel")
    assert state() == "cancelling"
    page = ann.get("/evaluations/e1").text
    assert "/cancel" not in page
    assert "/pause" not in page


@pytest.mark.parametrize(
    ("name", "role", "may_change", "may_submit"),
    [
        ("ann", Role.MEMBER, True, True),
        ("bob", Role.MEMBER, False, True),
        ("eve", Role.VIEWER, False, False),
        ("ada", Role.ADMIN, True, True),
    ],
)
def test_buttons_are_only_for_those_who_may(
    page_site: Site, sign_in: Client, name: str, role: Role, may_change: bool, may_submit: bool
) -> None:
    seeded.evaluation(page_site, done=10, running=1, owner="ann")
    seeded.evaluation(page_site, id="e2", name="ended", close=True)
    client = sign_in(name, role)
    page = client.get("/evaluations/e1").text
    assert ("/evaluations/e1/cancel" in page) == may_change
    assert ("/evaluations/e1/pause" in page) == may_change
    assert ("/evaluations/new?clone=e1" in page) == may_submit
    ended = client.get("/evaluations/e2").text
    assert ("/evaluations/new?rerun=e2" in ended) == may_submit
    assert ('value="AgentSetupError" aria-label="Rerun' in ended) == may_submit
    status = 303 if may_change else 403
    for what in ("pause", "resume", "cancel"):
        assert act(client, "e1", what).status_code == status
    assert (store.get(page_site.db, "e1").state is EvaluationState.CANCELLING) == may_change


def test_a_change_needs_the_token_of_the_page(page_site: Site, sign_in: Client) -> None:
    seeded.evaluation(page_site, done=1)
    client = sign_in()
    assert client.post("/evaluations/e1/cancel").status_code == 403
    assert store.get(page_site.db, "e1").state is EvaluationState.RUNNING


def test_chosen_errors_lead_to_a_rerun(page_site: Site, sign_in: Client) -> None:
    seeded.evaluation(page_site, close=True)
    page = sign_in().get("/evaluations/e1").text
    part = page[page.index('id="errors"') :].partition("</section>")[0]
    assert re.search(r'<form id="rerun-form"[^>]* method="get" action="/evaluations/new"', part)
    assert 'name="rerun" value="e1"' in part
    ticks = re.findall(r'type="checkbox" name="error" form="rerun-form" value="([^"]+)"', part)
    assert "AgentSetupError" in ticks
    assert len(ticks) == len(set(ticks))


def test_the_table_is_in_the_address(page_site: Site, sign_in: Client) -> None:
    seeded.evaluation(page_site, tasks=40, attempts=2, models=("model-a", "model-b"), done=100, running=3)
    client = sign_in()

    def shown(query: str) -> list[str]:
        return names(client.get(f"/evaluations/e1?{query}"))

    first = shown("")
    assert len(first) == 50
    assert shown("offset=50")[0] not in first
    assert len(shown("offset=150")) == 10
    assert shown("offset=100000") == []
    assert sorted(first) == first
    descending = shown("sort=trial&desc=1")
    assert sorted(descending, reverse=True) == descending
    assert all("task-0007" in name for name in shown("search=task-0007"))
    assert len(shown("search=task-0007")) == 4
    assert len(shown("status=running")) == 3
    assert len(shown("model=model-b&search=task-0007")) == 2
    assert len(shown("category=coding&status=pending")) + len(shown("category=coding&status=running")) > 0
    assert shown("error=AgentSetupError")
    assert shown("worker=alpha")
    assert shown("task=task-0003") == shown("search=task-0003")
    assert set(shown("status=infra_error")) == set(shown("error=AgentSetupError"))
    # What means nothing does no harm.
    assert shown("sort=colour&offset=x&status=odd&desc=7&by=moon&tasks=-4") == first
    nothing = client.get("/evaluations/e1?search=%25%25nowhere")
    assert "No trial is like that" in nothing.text


def test_what_a_person_filters_is_put_into_the_address_without_empty_fields(page_site: Site, sign_in: Client) -> None:
    seeded.evaluation(page_site, close=True)
    client = sign_in()
    asked = "/evaluations/e1?search=task-0001&status=&worker=&sort=seconds"
    answer = client.get(asked, headers={**POLL, "HX-Target": "trials"})
    assert "<html" not in answer.text
    assert len(names(answer)) == 3
    assert answer.headers["HX-Push-Url"] == "/evaluations/e1?search=task-0001&sort=seconds"


def test_each_part_changes_its_own_words_of_the_address(page_site: Site, sign_in: Client) -> None:
    seeded.evaluation(page_site, close=True)
    client = sign_in()

    def pushed(part: str, query: str, shown: str) -> str:
        headers = {**POLL, "HX-Target": part, "HX-Current-URL": f"https://elsewhere.test/x{shown}"}
        return str(client.get(f"/evaluations/e1{query}", headers=headers).headers["HX-Push-Url"])

    assert pushed("groups", "?by=model&search=old", "?search=new&tasks=20") == (
        "/evaluations/e1?search=new&tasks=20&by=model"
    )
    assert pushed("trials", "?offset=50", "?by=model&tasks=40&search=old") == (
        "/evaluations/e1?by=model&tasks=40&offset=50"
    )
    assert pushed("trials", "", "?search=old") == "/evaluations/e1"


def test_hostile_text_stays_text(page_site: Site, sign_in: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGE_TEST_KEY", "hunter2-hunter2")
    seeded.evaluation(page_site, done=5, warnings=("<script>alert(1)</script>", "the key is hunter2-hunter2"))
    client = sign_in()
    store.move(page_site.db, "e1", EvaluationState.PAUSED, "<b>why</b>")
    page = client.get("/evaluations/e1?search=%22%3E%3Cscript%3E&task=%3Ci%3E").text
    assert "<script>" not in page
    assert "<b>why" not in page
    assert "<i>" not in page
    assert " style=" not in page
    assert not re.search(r"\son\w+=", page)


def test_the_heat_map(page_site: Site, sign_in: Client) -> None:
    evaluation = seeded.evaluation(page_site, tasks=5, attempts=2, models=("model-a", "model-b"), done=12, running=2)
    client = sign_in()
    data = client.get("/api/evaluations/e1/heatmap").json
    assert data is not None
    assert data["rows"] == [f"task-000{task}" for task in range(5)]
    assert data["columns"] == ["1 · model-a", "2 · model-a", "1 · model-b", "2 · model-b"]
    assert data["base"] == "/evaluations/e1/trials/"
    assert data["final"] is False
    assert data["total"] == 5
    assert [cell[5] for cell in data["cells"]] == [trial.name for trial in evaluation.plan.trials]
    kinds = [cell[2] for cell in data["cells"]]
    assert kinds.count("running") == 2
    assert kinds.count("pending") == 6
    assert all((cell[3] is not None) == (cell[2] == "scored") for cell in data["cells"])
    page = client.get("/api/evaluations/e1/heatmap?offset=3&limit=1").json
    assert page is not None
    assert page["rows"] == ["task-0003"]
    assert [cell[0] for cell in page["cells"]] == [0, 0, 0, 0]
    assert client.get("/api/evaluations/e1/heatmap?offset=9").json["cells"] == []  # type: ignore[index]
    assert client.get("/api/evaluations/e1/heatmap?limit=0").status_code == 422


def test_a_large_heat_map_has_pages(page_site: Site, sign_in: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "CELLS", 60)
    seeded.evaluation(page_site, tasks=45, attempts=3, close=True)
    client = sign_in()
    page = client.get("/evaluations/e1").text
    assert "Tasks 1–20 of 45" in page
    assert 'href="/evaluations/e1?tasks=20#heat-title"' in page
    last = client.get("/evaluations/e1?tasks=40").text.partition('id="trials"')[0]
    assert "Tasks 41–45 of 45" in last
    assert "offset=40&amp;limit=20" in last
    assert 'rel="prev"' in last
    assert 'rel="next"' not in last


def test_groups_of_a_large_evaluation_come_after_the_page(
    page_site: Site, sign_in: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_page, "LARGE", 10)
    seeded.evaluation(page_site, done=12)
    client = sign_in()
    page = client.get("/evaluations/e1?by=model")
    (asked,) = re.findall(r'hx-get="([^"]+)" hx-trigger="load"', page.text)
    assert "model-a" not in section(page, "groups")
    part = client.get(html.unescape(asked), headers=POLL)
    assert "model-a" in section(part, "groups")
    assert "every" in part.text


def test_the_timeline(page_site: Site, sign_in: Client) -> None:
    seeded.evaluation(page_site, done=24, running=2)
    data = sign_in().get("/api/evaluations/e1/timeline").json
    assert data is not None
    bars = data["bars"]
    assert len(bars) == 26
    running = [bar for bar in bars if bar[3] == "running"]
    assert len(running) == 2
    assert all(bar[2] is None for bar in running)
    assert {lane.partition(" · ")[0] for lane in data["lanes"]} == {"alpha", "beta"}
    assert all(bar[5] == f"/evaluations/e1/trials/{bar[4]}" for bar in bars)


def test_histogram_errors_and_groups(page_site: Site, sign_in: Client) -> None:
    seeded.evaluation(page_site, close=True)
    client = sign_in()
    histogram = client.get("/api/evaluations/e1/histogram?bins=7").json
    assert histogram is not None
    assert len(histogram["edges"]) == len(histogram["counts"]) + 1 == 8
    assert sum(histogram["counts"]) == 36
    errors = client.get("/api/evaluations/e1/errors").json
    assert errors is not None
    assert (
        sum(item["count"] for item in errors["errors"]) == 36 - store.get(page_site.db, "e1").outcomes[Outcome.SCORED]
    )
    groups = client.get("/api/evaluations/e1/groups?by=difficulty").json
    assert groups is not None
    assert [group["name"] for group in groups["groups"]] == ["easy", "hard", "medium"]
    assert sum(group["planned"] for group in groups["groups"]) == 36
    for group in groups["groups"]:
        assert group["low"] <= group["mean"] <= group["high"]
    assert groups["links"][0] == "/evaluations/e1?difficulty=easy#trials-title"
    assert groups["final"] is True
    assert client.get("/api/evaluations/e1/groups?by=moon").status_code == 422
    page = client.get("/evaluations/e1?by=difficulty")
    assert "medium" in section(page, "groups")


def test_nothing_has_ended_yet(page_site: Site, sign_in: Client) -> None:
    seeded.evaluation(page_site, tasks=2, attempts=1, done=0)
    client = sign_in()
    for what in ("histogram", "errors", "timeline"):
        data = client.get(f"/api/evaluations/e1/{what}").json
        assert data is not None
        assert not any(data.get(key) for key in ("edges", "errors", "bars"))


def test_lanes_do_not_overlap_and_short_runs_are_joined() -> None:
    def run(worker: str, start: float, end: float, outcome: Outcome | None = Outcome.SCORED) -> Run:
        begin = seeded.BEGIN
        return Run(
            worker=worker,
            started_at=begin + seeded.seconds(start),
            finished_at=begin + seeded.seconds(end),
            outcome=outcome,
            trial=f"{worker}-{start}",
        )

    found = charts.lanes([run("a", 0, 10), run("a", 5, 15), run("a", 10, 20), run("b", 0, 1), run("a", 12, 13)])
    assert [(lane.worker, lane.slot, len(lane.runs)) for lane in found] == [
        ("a", 1, 2),
        ("a", 2, 1),
        ("a", 3, 1),
        ("b", 1, 1),
    ]
    many = [
        run("a", at, at + 0.9, Outcome.INFRA_ERROR if at < 5 or at == 4000 else Outcome.SCORED) for at in range(5000)
    ]
    (lane,) = charts.lanes([*many, run("a", 5000, 5001, None)])
    assert len(lane.runs) <= 2 * charts.MOST_PARTS
    assert sum(item.size for item in lane.runs) == 5001
    assert lane.runs[-1].outcome is None, "what runs stays apart"
    assert [item.outcome for item in lane.runs].count(Outcome.INFRA_ERROR) == 1, "what most of them are"
    assert lane.runs[0].outcome is Outcome.INFRA_ERROR
    assert [item.trial for item in lane.runs[:2]] == ["", ""]
    for before, after in zip(lane.runs, lane.runs[1:], strict=False):
        assert before.finished_at <= after.started_at
    wide = charts.lanes([run(f"w{at % 100}", at, at + 90) for at in range(20_000)])
    assert len(wide) == 100
    assert sum(len(lane.runs) for lane in wide) <= 2 * 100 * charts.LEAST_PARTS


@pytest.mark.parametrize(
    ("address", "link"),
    [
        ("", None),
        ("http://v.test", "http://v.test/jobs/nightly"),
        ("https://v.test/x?job={job}", "https://v.test/x?job=nightly"),
    ],
)
def test_the_link_to_a_viewer(redis_url: str, tmp_path: Path, address: str, link: str | None) -> None:
    opened = open_site(Config(shared_root=tmp_path / "s", broker_url=redis_url, auth_token=TOKEN, viewer_url=address))
    seeded.evaluation(opened, tasks=1, attempts=1, close=True)
    client = create_app(opened).test_client()
    page = client.get("/evaluations/e1", headers={"Authorization": f"Bearer {TOKEN}"}).text
    assert (f'href="{link}"' in page) if link else (">Viewer<" not in page)
    opened.db.close()
