"""What a person is told about an address that does not work."""

from __future__ import annotations

import logging
import threading

import httpx
import pytest

from aeo import reach, registration
from aeo.config import Config
from aeo.core.errors import Conflict, InputError, TransferFailed, Unavailable
from aeo.core.model import Capacity, WorkerInfo
from aeo.transfer import move

INFO = WorkerInfo(
    id="w", display_name="w", host="h", capacity=Capacity(slots=1, cpus=1, memory_mb=1), boot="b", instance="i"
)


def failing(monkeypatch: pytest.MonkeyPatch, text: str, *, permanent: bool) -> None:
    def check(*_: object, **__: object) -> None:
        raise TransferFailed(text, permanent=permanent)

    monkeypatch.setattr(move, "check", check)


@pytest.mark.parametrize(
    ("url", "text", "said"),
    [
        ("ssh://me@head:2222/x", "Permission denied (publickey)", "Check `ssh -o BatchMode=yes -p 2222 me@head true`."),
        ("rsync://me@head/aeo", "@ERROR: auth failed on module aeo", "AEO_TRANSFER_PASSWORD"),
        ("ssh://head/x", "rsync is not installed on this machine. Install the package rsync.", "package rsync."),
        ("/nowhere", "there is no such folder on this machine", "give --transfer-url ssh://USER@HOST/PATH"),
    ],
)
def test_a_transfer_address_that_never_works(monkeypatch: pytest.MonkeyPatch, url: str, text: str, said: str) -> None:
    failing(monkeypatch, text, permanent=True)
    with pytest.raises(InputError) as caught:
        reach.transfer(Config(transfer_url=url), threading.Event())
    message = str(caught.value)
    assert message.startswith("--transfer-url: ")
    assert said in message
    assert ".." not in message


def test_a_wrong_ssh_host_is_told_once_with_how_to_check(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reach, "FIRST_PAUSE", 0.01)
    failing(monkeypatch, "ssh: Could not resolve hostname haed", permanent=False)
    told = threading.Event()
    threading.Timer(0.2, told.set).start()
    with caplog.at_level(logging.WARNING), pytest.raises(Unavailable):
        reach.transfer(Config(transfer_url="ssh://me@haed/x"), told)
    (line,) = caplog.messages
    assert "Check `ssh -o BatchMode=yes me@haed true`." in line


def test_a_broker_that_is_away_is_tried_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "BROKER_SECONDS", 0.0)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 does not answer"):
        reach.broker("redis://127.0.0.1:1/0")


@pytest.mark.parametrize(
    ("url", "token", "said"),
    [
        (
            "http://127.0.0.1:1",
            "",
            "^no token: set AEO_AUTH_TOKEN or --auth-token @FILE; on the controller's machine .*AEO_SHARED_ROOT\\.$",
        ),
        ("http://127.0.0.1:1", "a b", "--auth-token"),
        ("http://127.0.0.1:1", "ü", "--auth-token"),
        ("http://127.0.0.1:99999", "t", "--controller-url"),
        ("http://", "t", "--controller-url"),
        ("127.0.0.1:7380", "t", "--controller-url"),
        ("http://xn--/", "t", "--controller-url"),
        ("http://a\x01b/", "t", "--controller-url"),
    ],
)
def test_what_cannot_be_sent_is_never_a_controller_that_is_away(url: str, token: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        registration.register(Config(controller_url=url, auth_token=token), INFO)


def test_an_illegal_request_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    def post(*_: object, **__: object) -> None:
        raise httpx.LocalProtocolError("Illegal header value b'Bearer '")

    monkeypatch.setattr(httpx, "post", post)
    with pytest.raises(InputError, match="Illegal header value"):
        registration.register(Config(auth_token="t"), INFO)


def test_a_conflict_names_its_flag_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = {"message": "The id 'w' is in use.", "field": "--worker-id", "fix": "Choose another."}
    body = {"title": "Conflict", "detail": "--worker-id: The id 'w' is in use. Choose another.", "problems": [problem]}
    monkeypatch.setattr(httpx, "post", lambda *_, **__: httpx.Response(409, json=body))
    with pytest.raises(Conflict) as caught:
        registration.register(Config(auth_token="t"), INFO)
    assert str(caught.value) == "--worker-id: The id 'w' is in use. Choose another."
