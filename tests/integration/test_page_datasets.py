"""The pages of datasets: what they show, what they let whom do, and what is asked again while a download runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import browsing
import pytest
from downloading import Scripted
from flask.testing import FlaskClient
from waiting import eventually

from aeo import datasets, summaries, users
from aeo.config import Config
from aeo.datasets import DownloadState, downloads
from aeo.executors.harbor.datasets import HarborDatasets
from aeo.site import Site, open_site
from aeo.summaries import Book, Past
from aeo.users import Role

TOKEN = "token-of-this-test"


@pytest.fixture
def web_site(redis_url: str, tmp_path: Path) -> Site:
    return open_site(Config(shared_root=tmp_path / "shared", broker_url=redis_url, auth_token=TOKEN))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scripted:
    knows = Scripted(gate=tmp_path / "gate")
    monkeypatch.setattr(HarborDatasets, "download", staticmethod(knows.download))
    monkeypatch.setattr(HarborDatasets, "tasks", staticmethod(knows.tasks))
    return knows


@pytest.fixture
def mine(web_site: Site, tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    tasks = [
        {"name": f"task-{n:03d}", "command": "true", "labels": {"category": ("text", "sums")[n % 2]}, "memory_mb": 2048}
        for n in range(130)
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    datasets.add(web_site.shared, "mine", executor="command", path=str(folder))
    return folder


def browser(site: Site, token: str = TOKEN) -> FlaskClient:
    return browsing.browser(site, token)


def send(client: FlaskClient, page: str, /, **form: str) -> tuple[int, str]:
    answer = browsing.post(client, page, **form)
    return answer.status_code, answer.text


def tasks_in(text: str) -> list[str]:
    return re.findall(r"task-\d{3}(?=</td>)", text)


def test_the_list_has_what_is_configured_and_what_to_do(web_site: Site, mine: Path) -> None:
    page = browser(web_site).get("/datasets").text
    for words in ("terminal-bench-2", "swe-bench-verified", "not here yet", "mine", "130", "sums", "Add a dataset"):
        assert words in page
    assert "hx-trigger" not in page.split("<main", 1)[1].split("<details", 1)[0]


def test_nothing_configured_says_what_to_do(web_site: Site) -> None:
    for name in list(datasets.read(web_site.shared)):
        datasets.remove(web_site.shared, name)
    assert "aeo datasets add" in browser(web_site).get("/datasets").text


def test_tasks_are_paged_searched_and_sorted(web_site: Site, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = {
        "task-007": Past(runs=4, scored=4, pass_rate=0.25, median_seconds=90.0),
        "task-003": Past(runs=2, scored=2, pass_rate=1.0, median_seconds=30.0),
    }
    asked: list[str] = []

    def past_tasks(book: Book, dataset: str) -> dict[str, Past]:
        asked.append(dataset)
        return past

    monkeypatch.setattr(summaries, "past_tasks", past_tasks)
    client = browser(web_site)
    first = client.get("/datasets/mine").text
    assert tasks_in(first) == [f"task-{n:03d}" for n in range(100)]
    assert "1–100" in first
    assert asked == ["mine"]
    assert len(tasks_in(client.get("/datasets/mine?offset=100").text)) == 30
    assert tasks_in(client.get("/datasets/mine?sort=pass_rate").text)[:3] == ["task-007", "task-003", "task-000"]
    slow = client.get("/datasets/mine?sort=median&desc=1").text
    assert tasks_in(slow)[:2] == ["task-007", "task-003"]
    assert "25 %" in slow
    assert "1 min 30 s" in slow
    assert tasks_in(client.get("/datasets/mine?search=012").text) == ["task-012"]
    assert len(tasks_in(client.get("/datasets/mine?category=sums").text)) == 65
    assert "No task is like that" in client.get("/datasets/mine?search=nothing").text
    for odd in ("sort=colour", "offset=x", "offset=-1", "desc=2", "search=%00", "category=%F0%9F"):
        assert client.get(f"/datasets/mine?{odd}").status_code == 200
    assert client.get("/datasets/nothing").status_code == 404
    assert client.get("/datasets/mine?part=dataset_download").status_code == 286


def test_a_path_is_registered_by_the_form_and_refused_with_words(web_site: Site, tmp_path: Path) -> None:
    client = browser(web_site)
    status, text = send(client, "/datasets", name="new", executor="command", path=str(tmp_path / "nowhere"))
    assert status == 422
    assert "does not exist on the controller" in text
    assert f'value="{tmp_path}/nowhere"' in text
    (tmp_path / "tasks.yaml").write_text("- {name: '<b>', command: 'true'}\n- {name: fine, command: 'true'}\n")
    status, text = send(client, "/datasets", name="new", executor="command", path=str(tmp_path))
    assert (status, "<b>" in text.split("<main", 1)[1].split("problems", 1)[1].split("</div>", 1)[0]) == (422, False)
    (tmp_path / "tasks.yaml").write_text("- {name: fine, command: 'true'}\n")
    assert send(client, "/datasets", name="new", executor="command", path=str(tmp_path))[0] == 303
    assert "new is configured" in client.get("/datasets/new").text
    assert send(client, "/datasets", name="new", executor="command", path=str(tmp_path))[0] == 409
    assert send(client, "/datasets/new", do="remove")[0] == 303
    assert "new" not in datasets.read(web_site.shared)
    assert send(client, "/datasets/new", do="remove")[0] == 404
    assert send(client, "/datasets/terminal-bench-2", do="dance")[0] == 422
    assert client.post("/datasets/terminal-bench-2", data={"do": "remove"}).status_code in (400, 403)


def test_a_download_is_live_until_it_ends(web_site: Site, scripted: Scripted) -> None:
    client, page = browser(web_site), "/datasets/terminal-bench-2"
    assert send(client, page, do="download")[0] == 303
    assert eventually(lambda: "1 of 2 tasks" in client.get(page).text)
    assert send(client, page, do="download")[0] == 409
    part = client.get(f"{page}?part=dataset_download")
    assert (part.status_code, "HX-Refresh" in part.headers) == (200, False)
    assert "every 1s" in part.text
    assert "<html" not in part.text
    whole = client.get("/datasets?part=datasets_list")
    assert (whole.status_code, "every 2s" in whole.text) == (200, True)
    assert send(client, page, do="cancel")[0] == 303
    assert "download stopped" in client.get(page).text
    assert send(client, page, do="cancel")[0] == 409
    scripted.gate.touch()
    assert send(client, page, do="download")[0] == 303
    assert eventually(lambda: _state(web_site) is DownloadState.DONE)
    ended = client.get(f"{page}?part=dataset_download")
    assert (ended.status_code, ended.headers["HX-Refresh"]) == (286, "true")
    assert client.get("/datasets?part=datasets_list").status_code == 286
    assert "Download again" in client.get(page).text


def _state(site: Site) -> DownloadState | None:
    found = downloads.status(site.shared, "terminal-bench-2")
    return found.state if found else None


def test_a_failed_download_says_why_and_what_to_do(web_site: Site, scripted: Scripted) -> None:
    scripted.script = """echo '{"failed": {"message": "<i>away</i>", "fix": "Try later."}}'"""
    client = browser(web_site)
    send(client, "/datasets/terminal-bench-2", do="download")
    assert eventually(lambda: _state(web_site) is DownloadState.FAILED)
    page = client.get("/datasets/terminal-bench-2").text
    assert "&lt;i&gt;away&lt;/i&gt;" in page
    assert "Try later." in page
    assert "Go on" in page


def test_who_may_not_change_sees_no_buttons(web_site: Site, mine: Path) -> None:
    for role in (Role.VIEWER, Role.MEMBER):
        client = browser(web_site, users.add(web_site.shared, role.value, role))
        pages = "".join(client.get(path).text for path in ("/datasets", "/datasets/mine", "/datasets/terminal-bench-2"))
        for words in ("Add a dataset", 'value="download"', 'value="remove"'):
            assert words not in pages
        assert ("/evaluations/new?dataset=mine" in pages) == (role is Role.MEMBER)
        assert send(client, "/datasets/terminal-bench-2", do="download")[0] == 403
        assert send(client, "/datasets", name="new", path="/tmp")[0] == 403
