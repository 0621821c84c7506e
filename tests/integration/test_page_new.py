"""The page of a new evaluation, as a browser without scripts uses it."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from flask.testing import FlaskClient

from aeo import evaluations, users
from aeo.core.model import Capacity, WorkerInfo
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import workers
from aeo.submission import Submission
from aeo.users import Role
from webapp import create_app

TOKEN = "s3cret-token-of-this-test"
PAGE = "/evaluations/new"
SLEEP = "executor: sleep  # for a test\nname: first\ntasks: 2\nseconds: 0\nlabels: {category: text}\nagent: a\n"


def sign_in(site: Site, token: str = TOKEN) -> FlaskClient:
    client = create_app(site).test_client()
    assert client.get(f"/?token={token}").status_code == 303
    return client


@pytest.fixture
def web_site(site: Site) -> Site:
    return replace(site, config=replace(site.config, auth_token=TOKEN))


@pytest.fixture
def client(web_site: Site) -> FlaskClient:
    return sign_in(web_site)


@pytest.fixture
def worker(site: Site) -> None:
    info = WorkerInfo(
        id="w1",
        display_name="First",
        host="h",
        capacity=Capacity(slots=2, cpus=4.0, memory_mb=8192),
        boot="b",
        instance="i",
        executors={"sleep": ""},
    )
    workers.register(site.db, info)


class Form:
    """The form on a page, to be filled in and sent as a browser does."""

    def __init__(self, client: FlaskClient, text: str):
        self.client, self.page = client, text
        self.fields: list[tuple[str, str]] = []
        form = text[text.index('<form id="new-form"') :]
        pattern = r"<input\b([^>]*)>|<textarea\b([^>]*)>\n?(.*?)</textarea>|<select\b([^>]*)>(.*?)</select>"
        for one in re.finditer(pattern, form, re.DOTALL):
            attributes = one[1] or one[2] or one[4] or ""
            name = re.search(r'\bname="([^"]*)"', attributes)
            if not name or ('type="checkbox"' in attributes and "checked" not in attributes):
                continue
            if one[4] is not None:
                chosen = re.search(r'value="([^"]*)" selected', one[5]) or re.search(r'value="([^"]*)"', one[5])
                value = chosen[1] if chosen else ""
            else:
                found = re.search(r'\bvalue="([^"]*)"', attributes)
                value = one[3] if one[2] is not None else found[1] if found else ""
            self.fields.append((html.unescape(name[1]), html.unescape(value).replace("\n", "\r\n")))

    def __getitem__(self, name: str) -> list[str]:
        return [value.replace("\r\n", "\n") for key, value in self.fields if key == name]

    def send(self, do: str, **changes: Any) -> Any:
        renamed = {name.replace("__", "."): value for name, value in changes.items()}
        data: dict[str, list[str]] = {}
        for name, value in self.fields:
            data.setdefault(name, []).append(value)
        for name, value in renamed.items():
            data[name] = value if isinstance(value, list) else [value]
        return self.client.post(PAGE, data={**data, "do": do}, headers={"Origin": "http://localhost"})

    def then(self, do: str, **changes: Any) -> Form:
        return Form(self.client, self.send(do, **changes).text)


def opened(client: FlaskClient, query: str = "") -> Form:
    answer = client.get(PAGE + query)
    assert answer.status_code == 200, answer.text
    return Form(client, answer.text)


def text_of(form: Form) -> str:
    assert form["mode"] == ["yaml"], form.page
    return form["text"][0]


def test_it_begins_with_what_people_are_used_to(client: FlaskClient) -> None:
    form = opened(client)
    assert form["executor"] == ["harbor"]
    assert form["agent_timeout_multiplier"] == ["3.0"]
    assert form["per_worker_concurrency"] == ["1"]
    assert form["max_requeues"] == ["2"]
    assert {name for name, _ in form.fields if name.startswith("own.")} == {
        "own.n_tasks",
        "own.timeout_multiplier",
        "own.verifier_timeout_multiplier",
        "own.agent_setup_timeout_multiplier",
        "own.environment_build_timeout_multiplier",
        "own.max_retries",
    }
    # The configured ones are offered.
    assert "terminal-bench-2" in form.page
    assert "swe-bench-verified" in form.page


def test_form_and_yaml_are_in_step(client: FlaskClient) -> None:
    form = opened(client, "?mode=yaml")
    given = "# mine\nexecutor: harbor\nverifier: {disable: true}\ndatasets: [{path: /data/t, overwrite: true}]\n"
    form = form.then("form", text=given)
    assert form["dataset"] == ["/data/t"]
    assert "<code>verifier</code>" in form.page
    # Nothing typed, nothing changed: comments too.
    assert text_of(form.then("yaml")) == given
    form = form.then("add", include="a*\r\nb*", agent="oracle", model="", own__max_retries="3")
    assert form["agent"] == ["oracle", ""]
    form = form.then("add", agent=["oracle", "terminus-2"], model=["", "openai/gpt-5"])
    assert form["agent"] == ["oracle", "terminus-2", ""]
    form = form.then("remove.0")
    assert (form["agent"], form["model"]) == (["terminus-2", ""], ["openai/gpt-5", ""])
    made = text_of(form.then("yaml", attempts="4", priority="2", per_worker_concurrency="all"))
    assert yaml.safe_load(made) == {
        "executor": "harbor",
        "per_worker_concurrency": "all",
        "priority": 2,
        "verifier": {"disable": True},
        "datasets": [{"path": "/data/t", "overwrite": True, "task_names": ["a*", "b*"]}],
        "agents": [{"name": "terminus-2", "model_name": "openai/gpt-5"}],
        "n_attempts": 4,
        "retry": {"max_retries": 3},
    }
    back = Form(client, opened(client).send("form", mode="yaml", text=made).text)
    assert (back["include"], back["attempts"], back["own.max_retries"]) == (["a*\nb*"], ["4"], ["3"])


def test_a_chosen_dataset_is_written(client: FlaskClient) -> None:
    made = text_of(opened(client).then("yaml", dataset_choice="terminal-bench/terminal-bench-2"))
    assert yaml.safe_load(made)["datasets"] == [{"name": "terminal-bench/terminal-bench-2"}]
    form = opened(client, "?dataset=terminal-bench-2")
    assert form["dataset_choice"] == ["terminal-bench/terminal-bench-2"]
    assert form["dataset"] == [""]


def test_text_that_is_no_mapping_stays_text(client: FlaskClient) -> None:
    form = opened(client, "?mode=yaml").then("form", text="a: [\n")
    assert form["mode"] == ["yaml"]
    assert form["text"] == ["a: [\n"]
    assert 'role="alert"' in form.page


def test_another_executor_has_another_form(client: FlaskClient) -> None:
    form = opened(client).then("executor", executor="sleep", attempts="3", agent="a")
    assert (form["executor"], form["attempts"], form["agent"]) == (["sleep"], ["3"], ["a"])
    assert "own.seconds" in dict(form.fields)
    assert form["dataset"] == []


@pytest.mark.usefixtures("worker")
def test_a_check_shows_shares_and_makes_nothing(client: FlaskClient, site: Site) -> None:
    form = opened(client, "?mode=yaml").then("check", text=SLEEP)
    assert "It can be run" in form.page
    assert re.search(r"<dt>Trials</dt><dd>2</dd>", form.page)
    assert "unknown" in form.page
    assert store.page(site.db, offset=0, limit=1)[1] == 0


@pytest.mark.usefixtures("worker")
def test_problems_stand_at_their_fields(client: FlaskClient) -> None:
    form = opened(client, "?mode=yaml").then("form", text=SLEEP)
    answer = form.send("check", own__seconds="soon", priority="high", attempts="0")
    page = answer.text
    for field in ("priority", "own.seconds", "attempts"):
        assert re.search(rf'id="{re.escape(field)}"[^>]*aria-invalid="true"', page), field
    assert "must be a whole number from 1 to 1000" in page
    # What was typed is still there.
    assert Form(client, page)["own.seconds"] == ["soon"]


def test_a_problem_of_a_row_stands_in_its_row(client: FlaskClient) -> None:
    form = opened(client).then("add", agent="oracle").then("add")
    page = form.send("check", agent=["", "x", "y"], model=["", "AKIA" + "A" * 16, ""]).text
    assert re.findall(r'id="agent-\d" [^>]*value="(\w)"[^>]*aria-invalid="true"', page) == ["x"]


@pytest.mark.usefixtures("worker")
def test_submit_goes_to_the_evaluation_and_names_its_owner(client: FlaskClient, site: Site) -> None:
    form = opened(client, "?mode=yaml").then("form", text=SLEEP)
    answer = form.send("submit", workers=["w1"], priority="7")
    assert answer.status_code == 303, answer.text
    status = store.page(site.db, offset=0, limit=1)[0][0]
    assert answer.headers["Location"] == f"/evaluations/{status.id}"
    assert (status.name, status.owner, status.priority, status.total) == ("first", "operator", 7, 2)


@pytest.mark.usefixtures("worker")
def test_a_wrong_one_is_not_submitted(client: FlaskClient, site: Site) -> None:
    form = opened(client, "?mode=yaml").then("form", text=SLEEP)
    answer = form.send("submit", own__tasks="x", own__cpus="y")
    assert answer.status_code == 422
    assert len(re.findall('aria-invalid="true"', answer.text)) == 2
    assert store.page(site.db, offset=0, limit=1)[1] == 0


@pytest.mark.usefixtures("worker")
def test_htmx_is_told_where_to_go(client: FlaskClient) -> None:
    form = opened(client, "?mode=yaml")
    csrf = form["csrf_token"][0]
    data = {"text": SLEEP, "mode": "yaml", "do": "submit", "csrf_token": csrf}
    answer = client.post(PAGE, data=data, headers={"Origin": "http://localhost", "HX-Request": "true"})
    assert answer.status_code == 200
    assert re.fullmatch(r"/evaluations/[0-9a-f]{12}", answer.headers["HX-Redirect"])
    wrong = client.post(PAGE, data={**data, "text": "executor: sleep\n"}, headers={"HX-Request": "true"})
    assert wrong.status_code == 200
    assert 'role="alert"' in wrong.text


@pytest.mark.usefixtures("worker")
def test_clone(client: FlaskClient, site: Site) -> None:
    made = evaluations.submit(site, Submission(text=SLEEP + "priority: 3\nworkers: [w1]\n"))
    form = opened(client, f"?clone={made.evaluation.id}")
    assert (form["name"], form["priority"], form["workers"], form["agent"]) == (["first-2"], ["3"], ["w1"], ["a"])
    assert "<code>labels</code>" in form.page
    assert form.send("submit").status_code == 303
    assert store.find(site.db, "first-2").total == 2
    assert client.get(f"{PAGE}?clone=nobody").status_code == 404


@pytest.mark.usefixtures("worker")
def test_rerun_is_prefilled_and_carried_along(client: FlaskClient, site: Site) -> None:
    made = evaluations.submit(site, Submission(text=SLEEP))
    form = opened(client, f"?rerun={made.evaluation.id}&error=AgentTimeoutError&error=Other")
    assert "Rerun of first" in form.page
    assert form["rerun"] == [made.evaluation.id]
    form = form.then("yaml").then("form")
    assert (form["rerun"], form["error"]) == ([made.evaluation.id], ["AgentTimeoutError", "Other"])


def test_tasks_are_counted_while_the_filter_is_typed(client: FlaskClient, tmp_path: Path) -> None:
    for name in ("a1", "a2", "b1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "task.toml").touch()
    query = {"executor": "harbor", "dataset": str(tmp_path), "include": "a*", "attempts": "3"}
    answer = client.get(
        f"{PAGE}/count", query_string={**query, "agent": ["x", "y"], "model": ["", ""], "origin": ["", ""]}
    )
    assert re.search(r"2 of 3 tasks × 2 agents × 3 attempts = <b>12 trials</b>", " ".join(answer.text.split()))
    unknown = client.get(f"{PAGE}/count", query_string={"executor": "harbor", "dataset": "org/name"})
    assert "told by Check" in unknown.text
    assert "told by Check" in client.get(f"{PAGE}/count?executor=nobody").text


def test_viewers_have_no_such_page(web_site: Site) -> None:
    viewer = sign_in(web_site, users.add(web_site.shared, "vera", Role.VIEWER))
    assert viewer.get(PAGE).status_code == 403
    member = sign_in(web_site, users.add(web_site.shared, "mara", Role.MEMBER))
    assert member.get(PAGE).status_code == 200


@pytest.mark.usefixtures("worker")
def test_a_member_owns_what_they_submit(web_site: Site) -> None:
    member = sign_in(web_site, users.add(web_site.shared, "mara", Role.MEMBER))
    assert opened(member, "?mode=yaml").send("submit", text=SLEEP).status_code == 303
    assert store.find(web_site.db, "first").owner == "mara"


def test_what_comes_from_outside_is_shown_as_text(client: FlaskClient) -> None:
    odd = 'executor: harbor\n"<b>x": 1\ndatasets: [{path: "/<script>"}]\nworkers: ["\\"><i>"]\n'
    page = opened(client, "?mode=yaml").send("form", text=odd).text
    assert "<b>x" not in page
    assert "<script>" not in page
    assert "<i>" not in page
