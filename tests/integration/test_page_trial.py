"""A trial's page and its files: what is shown of a run, and that nothing in a run can do anything."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine import closed, register, running, submit
from flask.testing import FlaskClient

from aeo import evaluations, progress
from aeo.artifacts import windows
from aeo.config import Config
from aeo.core.model import Evaluation, TrialState
from aeo.embedded import server as embedded
from aeo.layout import LIVE
from aeo.site import Site, open_site
from aeo.store import trials
from aeo.submission import Submission
from webapp import create_app, streams

TOKEN = "token-of-this-page-test"
KEY = "sk-0123456789abcdef"
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 30


@pytest.fixture(scope="module")
def web_site(server: embedded.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    config = Config(
        shared_root=tmp_path_factory.mktemp("trial") / "shared",
        broker_url=server.url,
        auth_token=TOKEN,
        secret_names=("MODEL_KEY",),
        refresh_seconds=0.2,
    )
    site = open_site(config)
    site.db.client.flushall()
    register(site, "a", slots=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODEL_KEY", KEY)
        yield site
    site.db.close()


class Client(FlaskClient):
    """Takes every answer whole unless told otherwise, as a server does; else it would stay open."""

    def open(self, *args: Any, **kwargs: Any) -> Any:
        return super().open(*args, **{"buffered": True, **kwargs})


@pytest.fixture
def client(web_site: Site) -> FlaskClient:
    app = create_app(web_site)
    app.test_client_class = Client
    client = app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {TOKEN}"
    return client


@pytest.fixture(scope="module")
def ended(web_site: Site, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    """Three trials of which the second was run twice."""
    with running(web_site, tmp_path_factory.mktemp("worker"), "a"):
        evaluation = submit(
            web_site,
            {
                "name": "ended",
                "tasks": 3,
                "seconds": 0.05,
                "model": "vendor/small",
                "fail": {"task-2": ["infra"], "task-3": "invalid"},
            },
        )
        closed(web_site, evaluation.id)
    return evaluation


def named(evaluation: Evaluation, task: str) -> str:
    return next(trial.name for trial in evaluation.plan.trials if trial.task == task)


def page(client: FlaskClient, evaluation: Evaluation, task: str, query: str = "", status: int = 200) -> str:
    answer = client.get(f"/evaluations/{evaluation.id}/trials/{named(evaluation, task)}{query}")
    assert answer.status_code == status, answer.text
    return answer.text


def folder(evaluation: Evaluation, task: str) -> Path:
    return Path(evaluation.job_dir) / named(evaluation, task)


#: What tests wrote, to be taken away again.
written: list[Path] = []


def write(evaluation: Evaluation, task: str, files: dict[str, bytes | str | dict[str, Any]]) -> None:
    for name, content in files.items():
        path = folder(evaluation, task) / name
        written.append(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps(content) if isinstance(content, dict) else content
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_how_a_trial_went(client: FlaskClient, ended: Evaluation) -> None:
    shown = text_of(page(client, ended, "task-1"))
    for words in ("scored", "reward 1", "sleeper", "vendor/small", "task-1", "Worker a", "Phases agent"):
        assert words in shown
    # Nobody reported them: that is not nothing.
    assert "Input tokens unknown" in shown
    assert "Cost unknown" in shown
    assert "Runs of this trial" not in shown
    head = page(client, ended, "task-1").split('id="head"')[1].split(">")[0]
    assert "hx-get" not in head
    answer = client.get(f"/evaluations/{ended.id}/trials/{named(ended, 'task-1')}?part=head")
    assert answer.status_code == 286


def test_the_trials_before_and_after(client: FlaskClient, ended: Evaluation) -> None:
    first, second, third = (trial.name for trial in ended.plan.trials)
    middle = page(client, ended, "task-2")
    assert f'rel="prev" href="/evaluations/{ended.id}/trials/{first}"' in middle
    assert f'rel="next" href="/evaluations/{ended.id}/trials/{third}"' in middle
    assert 'rel="prev"' not in page(client, ended, "task-1")
    assert second not in page(client, ended, "task-1").split("<main")[0]


def test_an_error_and_the_runs_before_with_their_reasons_and_files(client: FlaskClient, ended: Evaluation) -> None:
    shown = page(client, ended, "task-2")
    assert "run again" in text_of(shown)
    assert "EnvironmentStartTimeoutError: The environment did not start, as configured." in text_of(shown)
    assert "in its run 2" in text_of(shown)
    (token,) = set(re.findall(r"\?run=([0-9a-f]+)", shown))
    aside = page(client, ended, "task-2", f"?run={token}&view=files")
    assert "does not count" in aside
    assert "exception.txt" in aside
    text = client.get(f"/evaluations/{ended.id}/trials/{named(ended, 'task-2')}/files/exception.txt?run={token}")
    assert "did not start" in text.text
    invalid = text_of(page(client, ended, "task-3"))
    assert "RewardFileNotFoundError : No reward was left, as configured." in invalid
    assert page(client, ended, "task-2", "?run=none", 404)
    assert page(client, ended, "task-2", "?run=../x", 422)


def test_a_trial_that_is_none(client: FlaskClient, ended: Evaluation) -> None:
    for address in (f"{ended.id}/trials/none", "none/trials/none", f"{ended.id}/trials/none/files/x"):
        assert client.get(f"/evaluations/{address}").status_code == 404
    assert client.get(f"/evaluations/ended/trials/{named(ended, 'task-1')}").status_code == 200


def trajectory(count: int) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"step_id": 1, "source": "user", "message": "<script>alert(1)</script> do it"},
        *(
            {
                "step_id": number,
                "source": "agent",
                "message": f"Step {number} " + ("long " * 4000 if number == 2 else ""),
                "tool_calls": [
                    {
                        "tool_call_id": "c",
                        "function_name": "edit" if number == 3 else "bash",
                        "arguments": {"command": f"ls {number} # {KEY}"},
                    }
                ],
                "observation": {"results": [{"source_call_id": "c", "content": "<b>out</b>"}]},
            }
            for number in range(2, count + 1)
        ),
    ]
    return {"schema_version": "ATIF-v1.8", "agent": {"name": "terminus", "version": "2"}, "steps": steps}


def test_a_trajectory_of_two_thousand_steps_a_page_at_a_time(client: FlaskClient, ended: Evaluation) -> None:
    write(ended, "task-1", {"agent/trajectory.json": trajectory(2000)})
    shown = page(client, ended, "task-1")
    assert len(re.findall(r'<article class="step', shown)) == 40
    assert "<script>alert" not in shown
    assert "&lt;script&gt;alert(1)" in shown
    assert KEY not in shown
    assert "${MODEL_KEY}" in shown
    assert re.search(r"<th scope=\"row\"><a[^>]*>bash</a></th>", shown)
    assert text_of(shown).count("1 998") or "1\u202f998" in shown
    assert len(shown) < 1_000_000
    more = re.search(r'hx-get="([^"]*part=steps[^"]*offset=40[^"]*)"', shown)
    assert more
    further = client.get(more[1].replace("&amp;", "&")).text
    assert "<html" not in further
    assert 'id="step-41"' in further
    assert 'id="step-80"' in further
    last = page(client, ended, "task-1", "?view=trajectory&step=1990")
    assert 'id="step-2000"' in last
    assert "Further steps" not in last
    edits = page(client, ended, "task-1", "?view=trajectory&tool=edit")
    assert re.findall(r'<article class="step[^"]*" id="(step-\d+)"', edits) == ["step-3"]
    whole = re.search(r'hx-get="([^"]*whole=2[^"]*)"', shown)
    assert whole
    text = client.get(whole[1].replace("&amp;", "&")).text
    assert text.count("long ") == 4000
    assert len(re.findall("<article", text)) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"steps": 3}', "\0\0"])
def test_a_trajectory_that_is_none_is_said(client: FlaskClient, ended: Evaluation, content: str) -> None:
    write(ended, "task-1", {"agent/trajectory.json": content})
    assert "cannot be shown" in page(client, ended, "task-1", "?view=trajectory")
    assert page(client, ended, "task-1", "?part=steps", 422)


def test_what_the_verifier_left(client: FlaskClient, ended: Evaluation) -> None:
    report = {
        "results": {
            "tool": {"name": "pytest"},
            "tests": [
                {"name": "test_good", "status": "passed", "duration": 12},
                {"name": "test_bad", "status": "failed", "trace": f"\x1b[31mE assert <1> {KEY}"},
            ],
        }
    }
    write(ended, "task-1", {"verifier/ctrf.json": report, "verifier/test-stdout.txt": "\x1b[32mall said\x1b[0m\n"})
    shown = page(client, ended, "task-1", "?view=tests")
    assert "failed 1" in text_of(shown)
    assert shown.index("test_bad") < shown.index("test_good")
    assert "E assert &lt;1&gt; ${MODEL_KEY}" in shown
    assert '<span class="t-f2">all said</span>' in shown
    write(ended, "task-1", {"verifier/ctrf.json": "no report"})
    assert "is no test report" in page(client, ended, "task-1", "?view=tests")


def test_a_log_by_its_end_and_what_is_before(client: FlaskClient, ended: Evaluation) -> None:
    lines = "".join(f"line {number:06}\n" for number in range(20_000))
    write(
        ended, "task-1", {"agent/run.log": f"begin {KEY}\n" + lines + "\x1b[1;31mred\x1b[0m \x1b]0;title\x07\xff<i>end"}
    )
    shown = page(client, ended, "task-1", "?view=logs&file=agent/run.log")
    assert '<span class="t-f1 t-bold">red</span>' in shown
    assert "\x1b" not in shown
    assert "title" not in shown.split("<main")[1].replace("log-title", "").replace("title=", "")
    assert "&lt;i&gt;end" in shown
    assert "line 019999" in shown
    assert "line 000000" not in shown
    seen, address = shown.split('id="log"')[1], ""
    for _ in range(100):
        found = re.search(r'hx-get="([^"]*part=window[^"]*end=\d+[^"]*)"', seen)
        if not found:
            break
        address = found[1].replace("&amp;", "&")
        part = client.get(address).text
        assert "<html" not in part
        seen = part + seen.replace(found[0], "")
    assert re.findall(r"line (\d{6})", seen) == [f"{number:06}" for number in range(20_000)]
    assert KEY not in seen
    start = page(client, ended, "task-1", "?view=logs&file=agent/run.log&begin=0")
    assert "begin ${MODEL_KEY}" in start


def test_invalid_text_is_shown(client: FlaskClient, ended: Evaluation) -> None:
    write(ended, "task-1", {"agent/run.log": b"ok \xff\xfe end\r\nprogress 1%\rprogress 2%"})
    shown = page(client, ended, "task-1", "?view=logs&file=agent/run.log")
    assert "ok \ufffd\ufffd end\nprogress 1%\nprogress 2%" in shown
    answer = client.get(f"/evaluations/{ended.id}/trials/{named(ended, 'task-1')}/files/agent/run.log")
    assert answer.text.startswith("ok \ufffd\ufffd end")


def served(client: FlaskClient, evaluation: Evaluation, name: str, kind: str = "files") -> Any:
    return client.get(f"/evaluations/{evaluation.id}/trials/{named(evaluation, 'task-1')}/{kind}/{name}")


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.html", "<script>alert(1)</script>", "text/plain; charset=utf-8"),
        ("a.svg", "<svg onload='alert(1)'/>", "text/plain; charset=utf-8"),
        ("a.js", "alert(1)", "text/plain; charset=utf-8"),
        ("a.xhtml", '<?xml version="1.0"?><html/>', "text/plain; charset=utf-8"),
        ("a b ü.txt", "text", "text/plain; charset=utf-8"),
        ("a.png", PNG, "image/png"),
        ("html.png", "<html><script>alert(1)</script>", "text/plain; charset=utf-8"),
        ("a.pdf", b"%PDF-1.4 \0", "application/octet-stream"),
    ],
)
def test_nothing_that_is_served_runs(
    client: FlaskClient, ended: Evaluation, name: str, content: bytes | str, kind: str
) -> None:
    write(ended, "task-1", {f"artifacts/{name}": content})
    answer = served(client, ended, f"artifacts/{name}")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == kind
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Security-Policy"].startswith("sandbox; default-src 'none'")
    assert answer.data == (content.encode() if isinstance(content, str) else content)
    kept = served(client, ended, f"artifacts/{name}", "download")
    assert kept.headers["Content-Disposition"].startswith("attachment; filename=")
    assert kept.headers["Content-Type"] == "application/octet-stream"
    assert kept.data == answer.data
    listed = page(client, ended, "task-1", "?view=files")
    assert "artifacts/a" in listed or "artifacts/html" in listed


def test_a_preview_of_text_and_of_a_picture(client: FlaskClient, ended: Evaluation) -> None:
    write(ended, "task-1", {"artifacts/a.html": f"<b>{KEY}", "artifacts/a.png": PNG, "artifacts/a.bin": b"\0\1"})
    shown = page(client, ended, "task-1", "?view=files&file=artifacts/a.html")
    assert "&lt;b&gt;${MODEL_KEY}" in shown
    shown = page(client, ended, "task-1", "?view=files&file=artifacts/a.png")
    assert re.search(r'<img class="picture"[^>]*src="[^"]*/files/artifacts/a.png"', shown)
    assert "neither text nor a picture" in page(client, ended, "task-1", "?view=files&file=artifacts/a.bin")


def test_nothing_outside_the_folder_is_served(client: FlaskClient, ended: Evaluation, web_site: Site) -> None:
    place = folder(ended, "task-1")
    (place / "link.txt").symlink_to(web_site.shared.root / "token")
    (place / "way").symlink_to("/etc")
    written.extend((place / "link.txt", place / "way"))
    other = named(ended, "task-2")
    for name in ("link.txt", "way/passwd", "none", "agent"):
        assert served(client, ended, name).status_code == 404
    for name in (
        "../config.json",
        f"../{other}/result.json",
        "..%2fconfig.json",
        "%2e%2e/config.json",
        "a%00b",
        "a//b",
    ):
        for kind in ("files", "download"):
            assert served(client, ended, name, kind).status_code in (404, 422)
    for query in (
        "file=../config.json",
        "file=/etc/passwd",
        "file=link.txt",
        f"file=../{other}/result.json",
        "file=a%00",
    ):
        assert page(client, ended, "task-1", f"?part=window&{query}", 404 if "link" in query else 422)
        answer = client.get(f"/evaluations/{ended.id}/trials/{named(ended, 'task-1')}/tail?{query}")
        assert answer.status_code == 422 or "link" in query
    assert "link.txt" not in page(client, ended, "task-1", "?view=files")


def test_a_log_of_a_gigabyte_is_shown_by_its_end_in_little_memory(client: FlaskClient, ended: Evaluation) -> None:
    path = folder(ended, "task-1") / "agent" / "huge.log"
    written.append(path)
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.write(b"first line\n")
        file.seek(1 << 30)
        file.write(b"\nlast line\n")
    address = f"/evaluations/{ended.id}/trials/{named(ended, 'task-1')}"
    client.get(f"{address}?view=logs&file=trial.log")
    tracemalloc.start()
    try:
        shown = client.get(f"{address}?part=window&file=agent/huge.log&begin={(1 << 30) - 1000}")
        answer = client.get(f"{address}/files/agent/huge.log", buffered=False)
        begun = next(iter(answer.response))
        answer.close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Its beginning is text, so it counts as such.
    assert shown.status_code == 422
    assert "no text" in shown.text
    assert len(begun) <= 256 * 1024
    assert peak < 8 * 1024 * 1024


def test_a_large_text_is_read_by_range(client: FlaskClient, ended: Evaluation) -> None:
    path = folder(ended, "task-1") / "agent" / "huge.log"
    written.append(path)
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.write(b"first line\n" * 1000)
        file.seek(1 << 30)
        file.write(b"\nlast line\n")
    address = f"/evaluations/{ended.id}/trials/{named(ended, 'task-1')}?view=logs&file=agent/huge.log"
    client.get(address)
    tracemalloc.start()
    try:
        shown = client.get(address).text
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "last line" in shown
    assert peak < 8 * 1024 * 1024
    assert "first line" in client.get(f"{address}&begin=0").text


def test_answers_that_go_on_are_bounded(
    client: FlaskClient, ended: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(ended, "task-1", {"a.txt": "text"})
    address = f"/evaluations/{ended.id}/trials/{named(ended, 'task-1')}/tail?file=a.txt"
    monkeypatch.setattr(streams, "_free", streams.BoundedSemaphore(2))
    open_ones = [client.get(address, buffered=False) for _ in range(2)]
    refused = client.get(address)
    assert refused.status_code == 503
    assert refused.headers["Retry-After"]
    assert served(client, ended, "a.txt").status_code == 503
    for one in open_ones:
        one.close()
    assert "event: text" in client.get(address).text


def test_the_tail_of_an_ended_trial_gives_the_rest_and_ends(client: FlaskClient, ended: Evaluation) -> None:
    write(ended, "task-1", {"a.log": f"one\n\x1b[31mtwo {KEY}\n"})
    address = f"/evaluations/{ended.id}/trials/{named(ended, 'task-1')}/tail?file=a.log"
    answer = client.get(address)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    data = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert data[0]["runs"] == [["", "one\n"], ["t-f1", "two ${MODEL_KEY}\n"]]
    assert answer.text.rstrip().splitlines()[-3] == "event: end"
    again = client.get(address, headers={"Last-Event-ID": "committed:0:4"})
    assert json.loads(re.findall("data: (.*)", again.text)[0])["runs"][0] == ["t-f1", "two ${MODEL_KEY}\n"]


def test_a_trial_that_waits_says_what_will_be(client: FlaskClient, web_site: Site) -> None:
    evaluation = submit(web_site, {"name": "waits", "tasks": 1})
    shown = page(client, evaluation, "task-1")
    assert "waiting" in text_of(shown)
    assert "Its files appear here when it runs." in shown
    assert "?part=head" in shown
    assert "?part=view" in shown
    evaluations.cancel(web_site, evaluation.id)
    closed(web_site, evaluation.id)
    shown = page(client, evaluation, "task-1")
    assert "cancelled before it ran" in shown
    assert "?part=view" not in shown


def test_secrets_are_taken_out_before_a_result_is_committed(
    client: FlaskClient, web_site: Site, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(KEY)
    command = f"echo key $(cat {tmp_path}/key); cat {tmp_path}/key >&2; exit 3"
    tasks = [
        {"name": "leaks", "command": command},
        {"name": "silent", "command": "echo nothing"},
    ]
    with running(web_site, tmp_path, "a"):
        request = Submission(config={"executor": "command", "name": "secret", "tasks": tasks})
        evaluation = evaluations.submit(web_site, request).evaluation
        closed(web_site, evaluation.id)
    for path in [*web_site.shared.root.rglob("*"), *Path(evaluation.job_dir).rglob("*")]:
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    out = folder(evaluation, "leaks") / "agent" / "command-0" / "stdout.txt"
    assert out.read_text() == "key ${MODEL_KEY}\n"
    row = trials.row(web_site.db, evaluation.id, named(evaluation, "leaks"))
    assert row is not None
    assert any("secrets were taken out of" in note and "stdout.txt" in note for note in row.notes)
    silent = trials.row(web_site.db, evaluation.id, named(evaluation, "silent"))
    assert silent is not None
    assert not silent.notes
    assert "secrets were taken out of" in page(client, evaluation, "leaks")
    assert list(web_site.shared.inbox.glob("*/*")) == []


def test_a_commit_that_died_while_secrets_were_taken_out_is_finished(
    web_site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aeo import redaction, results
    from aeo.store import inbox

    (tmp_path / "key").write_text(KEY + "\n")
    task = {"name": "leaks", "command": f"cat {tmp_path}/key; cat {tmp_path}/key >&2"}
    with running(web_site, tmp_path, "a", with_control=False):
        request = Submission(config={"executor": "command", "name": "half", "tasks": [task]})
        evaluation = evaluations.submit(web_site, request).evaluation
        arrival = None
        while arrival is None:
            arrival = inbox.take(web_site.db, 5)
    rewrite, times = redaction.rewrite, []

    def once(*arguments: Any) -> None:
        rewrite(*arguments)
        times.append(1)
        if len(times) == 1:
            raise OSError("no space")

    monkeypatch.setattr(redaction, "rewrite", once)
    with pytest.raises(OSError, match="no space"):
        results.commit(web_site, arrival)
    assert results.commit(web_site, arrival)
    out = folder(evaluation, "leaks") / "agent" / "command-0"
    assert (out / "stdout.txt").read_text() == (out / "stderr.txt").read_text() == "${MODEL_KEY}\n"
    assert progress.line(web_site, evaluation.id, named(evaluation, "leaks")).state is TrialState.DONE
    assert list(web_site.shared.inbox.glob(f"*/{LIVE}/*")) == []


def test_windows_are_bounded_whatever_is_asked(web_site: Site, ended: Evaluation) -> None:
    from aeo import artifacts

    write(ended, "task-1", {"a.log": "x" * 3_000_000})
    place = artifacts.find(web_site, ended.id, named(ended, "task-1"))
    assert place is not None
    assert len(windows.before(place, "a.log", limit=1 << 40).text) == windows.MOST


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    """No test leaves an answer open, nor a file to the next."""
    yield
    while written:
        written.pop().unlink(missing_ok=True)
    assert streams._free._value == streams.MOST


def api(client: FlaskClient, evaluation: Evaluation, what: str, status: int = 200) -> Any:
    answer = client.get(f"/api/evaluations/{evaluation.id}/trials/{named(evaluation, 'task-1')}/{what}")
    assert answer.status_code == status, answer.text
    return answer.json


def test_the_api_gives_what_the_page_shows(client: FlaskClient, ended: Evaluation) -> None:
    report = {"results": {"tests": [{"name": "a", "status": "passed"}]}}
    write(
        ended,
        "task-1",
        {"agent/trajectory.json": trajectory(60), "verifier/ctrf.json": report, "a.log": f"one\n{KEY}\nthree\n"},
    )
    assert [run["end"] for run in api(client, ended, "runs")["runs"]] == ["committed"]
    found = api(client, ended, "files")
    assert not found["live"]
    assert {"a.log", "result.json"} <= {entry["name"] for entry in found["files"]}
    assert found["views"]["parts"][0]["reports"] == ["verifier/ctrf.json"]
    window = api(client, ended, "text?file=a.log&begin=4")
    assert window["text"] == "${MODEL_KEY}\nthree\n"
    assert api(client, ended, "text?file=a.log&limit=6")["text"] == "three\n"
    seen = api(client, ended, "trajectory?tool=bash&offset=50&limit=10")
    assert (seen["overview"]["tools"], seen["total"], len(seen["steps"])) == ({"bash": 58, "edit": 1}, 58, 8)
    assert api(client, ended, "tests")["reports"]["verifier/ctrf.json"]["counts"] == {"passed": 1}


def test_the_api_says_what_is_not_there(client: FlaskClient, ended: Evaluation) -> None:
    api(client, ended, "trajectory", 404)
    api(client, ended, "text?file=none", 404)
    api(client, ended, "text?file=../config.json", 422)
    api(client, ended, "text", 422)
    api(client, ended, "text?file=a&limit=0", 422)
    api(client, ended, "files?run=none", 404)
    api(client, ended, "files?run=..%2Fx", 422)
    assert api(client, ended, "tests")["reports"] == {}
    assert client.get(f"/api/evaluations/{ended.id}/trials/none/files").status_code == 404
