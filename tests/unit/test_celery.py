"""Settings that must hold in every process, and messages, without a broker."""

from __future__ import annotations

from typing import Any

import pytest

from aeo import dispatch, tasks
from aeo.celery import VISIBILITY_SECONDS, UnreadResults, make_app
from aeo.config import Config
from aeo.core.errors import Unavailable
from aeo.core.model import Batch
from aeo.site import WorkerSite

URL = "redis://:pass%20word@127.0.0.1:1/0"


def test_every_process_keeps_messages_as_long() -> None:
    apps = [make_app(URL), make_app(URL, worker="a"), make_app(URL, worker="b"), make_app(URL, worker="control")]
    for app in apps:
        assert app.conf.broker_transport_options["visibility_timeout"] == VISIBILITY_SECONDS == 30 * 86400


def test_no_worker_restores_anothers_messages() -> None:
    options = [make_app(URL, worker=worker).conf.broker_transport_options for worker in ("", "a", "b")]
    for name in ("unacked_key", "unacked_index_key", "unacked_mutex_key"):
        assert len({item[name] for item in options}) == len(options)


@pytest.mark.parametrize("worker", ["", "a"])
def test_only_json(worker: str) -> None:
    conf = make_app(URL, worker=worker).conf
    assert (conf.task_serializer, conf.result_serializer, conf.accept_content) == ("json", "json", ["json"])


def test_early_acknowledgement_without_prefetch_in_threads() -> None:
    conf = make_app(URL, worker="a").conf
    assert conf.task_acks_late is False
    assert conf.worker_disable_prefetch is True
    assert conf.worker_prefetch_multiplier == 1
    assert conf.worker_pool == "threads"
    assert conf.result_backend_always_retry is True
    assert conf.worker_cancel_long_running_tasks_on_connection_loss is False


def test_results_are_kept_beyond_any_gap_in_a_chord() -> None:
    conf = make_app(URL).conf
    assert conf.result_chord_expires >= VISIBILITY_SECONDS
    assert isinstance(make_app(URL).backend, UnreadResults)


def test_the_address_is_used_as_given() -> None:
    app = make_app(URL)
    assert app.backend.connparams["password"] == "pass word"  # type: ignore[attr-defined]
    assert app.connection().password == "pass word"


def test_tls_reaches_the_backend() -> None:
    app = make_app("rediss://:x@127.0.0.1:1/0?ssl_cert_reqs=required")
    assert "ssl" in str(app.backend.connparams["connection_class"]).lower()  # type: ignore[attr-defined]


def test_queues() -> None:
    assert dispatch.queue_of("gpu-1") == "worker.gpu-1"
    assert dispatch.queue_of("control") != dispatch.CONTROL


@pytest.mark.parametrize(("mine", "other"), [(1, 0), (0, -1), (7, -7)])
def test_a_higher_priority_is_a_lower_step(mine: int, other: int) -> None:
    assert dispatch._step(mine) < dispatch._step(other)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Config:
    config = Config(worker_id="gpu-1")
    monkeypatch.setitem(tasks._bound, "site", WorkerSite(config=config, local=None, db=None, remote=None))  # type: ignore[arg-type]
    return config


def test_run_batch_names_the_worker_that_runs_it(bound: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Batch] = []

    def run(site: WorkerSite, batch: Batch) -> dict[str, Any]:
        seen.append(batch)
        return {"batch": batch.id, "ran": 3}

    monkeypatch.setattr(tasks.batches, "run", run)
    app = make_app(URL, worker="gpu-1")
    assert app.tasks["aeo.run_batch"]("e1", "e1-b1") == {"batch": "e1-b1", "ran": 3}
    assert (seen[0].id, seen[0].evaluation, seen[0].worker) == ("e1-b1", "e1", "gpu-1")


def test_run_batch_never_raises(bound: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(site: WorkerSite, batch: Batch) -> dict[str, Any]:
        raise RuntimeError("no disk")

    monkeypatch.setattr(tasks.batches, "run", run)
    app = make_app(URL, worker="gpu-1")
    result = app.tasks["aeo.run_batch"]("e1", "e1-b1")
    assert result == {"batch": "e1-b1", "ran": 0, "error": "RuntimeError: no disk"}


def test_an_outage_of_the_store_is_told_in_a_line(
    bound: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def run(site: WorkerSite, batch: Batch) -> dict[str, Any]:
        raise Unavailable("The store does not answer.")

    monkeypatch.setattr(tasks.batches, "run", run)
    monkeypatch.setattr(tasks.turns, "await_store", lambda *_, **__: True)
    app = make_app(URL, worker="gpu-1")
    assert app.tasks["aeo.run_batch"]("e1", "e1-b1")["error"] == "Unavailable: The store does not answer."
    (told,) = [record for record in caplog.records if "ended early" in record.getMessage()]
    assert (told.levelname, told.exc_info) == ("WARNING", None)
