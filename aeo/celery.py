"""The Celery app and its settings, each with its reason. Messages only hint; the store's leases decide."""

from __future__ import annotations

import logging
import platform
import signal
import ssl
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from celery import Celery, signals
from celery.backends.redis import RedisBackend
from celery.exceptions import CPendingDeprecationWarning
from celery.worker import state

from aeo.store.connection import is_denial

log = logging.getLogger(__name__)

#: Message names; senders know only these, never the functions behind them.
RUN_BATCH = "aeo.run_batch"
MERGE = "aeo.merge"

#: A message that was popped but not acknowledged comes back after this. Any client that consumes a queue applies its
#: own time-out, and a batch may run for days, so every process (Flower too) must use this one value.
VISIBILITY_SECONDS = 30 * 86400

#: When the queue is looked into after a message has ended, in seconds after that.
FREE_SECONDS = (0.002, 0.02, 0.1)

#: Redis lists of one queue, by priority; 0 is served first.
PRIORITIES = (0, 3, 6, 9)


#: Set when results that cannot be stored are dropped.
_dropped = threading.Event()


class ResultDropped(Exception):
    """This process ends, and does not wait for a broker that takes no results."""


def drop_results() -> None:
    """Wait no more for the broker to take results of messages: for a process that ends. The reconciler finds them."""
    _dropped.set()


class UnreadResults(RedisBackend):
    """Results count members of chords and are never awaited.

    Celery's own subscribes to each sent message's result, on a connection that nobody here would ever drain.
    """

    def _sleep(self, amount: float) -> None:
        """Between two tries to store a result."""
        if _dropped.wait(amount):
            # No error that Celery would try again.
            raise ResultDropped

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Wait for nothing."""

    def add_pending_result(self, result: Any, *_: Any, **__: Any) -> Any:
        """Wait for nothing."""
        return result

    def remove_pending_result(self, result: Any) -> Any:
        """Nothing was waited for."""
        return result

    def mark_as_done(self, *args: Any, **kwargs: Any) -> None:
        """Without the right to it nothing is stored: what raised here would keep its slot for ever."""
        with _refusals_told():
            super().mark_as_done(*args, **kwargs)

    def mark_as_failure(self, *args: Any, **kwargs: Any) -> None:
        """Likewise."""
        with _refusals_told():
            super().mark_as_failure(*args, **kwargs)


@contextmanager
def _refusals_told() -> Iterator[None]:
    try:
        yield
    except ResultDropped:
        log.warning("a message's result was not stored, as this process ends")
    except Exception as error:
        if not is_denial(error):
            raise
        log.warning("a message's result is dropped, as its evaluation is over for this worker: %s", error)


def make_app(broker_url: str, *, worker: str = "") -> Celery:
    """Make an app for one process; ``worker`` is the id under which it consumes ("" only sends)."""
    backend = f"aeo.celery:UnreadResults+{broker_url}"
    app = Celery("aeo", broker=broker_url, backend=backend, set_as_current=False, include=["aeo.tasks"])
    app.conf.update(_SETTINGS, broker_transport_options=_transport(worker or "sender"))
    if tls := _tls(broker_url):
        app.conf.update(broker_use_ssl=tls, redis_backend_use_ssl=tls)
    if not worker:
        # A submit answers a person: give up on a dead server within seconds.
        app.conf.result_backend_transport_options = {"retry_policy": dict(_QUICK)}
    return app


@lru_cache(maxsize=8)
def sender(broker_url: str) -> Celery:
    """The app with which this process sends: one connection pool for each broker."""
    return make_app(broker_url)


@dataclass(frozen=True, kw_only=True)
class Stop:
    """What a consuming process does when it is told to stop. Both run in a signal handler."""

    #: At the first SIGTERM or SIGINT: no further message is taken, the running ones go on.
    warm: Callable[[], None]
    #: At each further one: should make the running ones end.
    cold: Callable[[], None]
    #: Set when the first signal came before Celery was there to receive it.
    told: threading.Event


def consume(app: Celery, *, name: str, queue: str, slots: int, stop: Stop) -> int:
    """Run a queue's messages in threads of this process until it is told to stop; returns the exit code."""
    _dropped.clear()
    # JSON carries no code, so root (usual in a container) is no danger of Celery's making.
    warnings.filterwarnings("ignore", message="You're running the worker with superuser")
    worker: Any = app.Worker(
        hostname=f"{name}@{platform.node()}",
        queues=[queue],
        concurrency=slots,
        task_events=True,
        loglevel=logging.INFO,
        quiet=True,
        # They would let one worker learn of, and wait for, all the others.
        without_mingle=True,
        without_gossip=True,
    )
    # What Celery will do one day with other settings than ours is nothing for people to read when the broker is away.
    # After its set-up, which shows them always.
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)
    # Celery's own handlers would make Ctrl-C drop what runs.
    worker.install_platform_tweaks = lambda _: _on_signals(stop)
    with _looking_at_once(worker):
        worker.start()
    return int(worker.exitcode or 0)


@contextmanager
def _looking_at_once(worker: Any) -> Iterator[None]:
    """Let the loop look into the queue when a slot becomes free: by itself it sleeps up to a second before it does."""

    def wake(**_: Any) -> None:
        hub = getattr(worker, "hub", None)
        if hub is not None:
            # The slot is given back a moment after this signal, in the thread that sends it.
            for seconds in FREE_SECONDS:
                hub.call_soon(hub.call_later, seconds, lambda: None)

    signals.task_postrun.connect(wake, weak=False)
    try:
        yield
    finally:
        signals.task_postrun.disconnect(wake)


def messages_running() -> tuple[str, ...]:
    """Ids of the messages this process works on."""
    return tuple(sorted(str(request.id) for request in list(state.active_requests)))


def _on_signals(stop: Stop) -> None:
    def handle(*_: object) -> None:
        if state.should_stop is None:
            stop.warm()
            state.should_stop = 0  # type: ignore[assignment]  # an exit code, says Celery's own code
        else:
            stop.cold()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    if stop.told.is_set():
        handle()


def _tls(url: str) -> dict[str, Any]:
    """What Celery must be told of ``rediss://``, which redis-py takes from the address: the certificate is checked."""
    parts = urlsplit(url)
    if parts.scheme != "rediss":
        return {}
    given = {name: value for name, value in parse_qsl(parts.query) if name.startswith("ssl_")}
    return {**given, "ssl_cert_reqs": _CHECKS.get(given.get("ssl_cert_reqs", ""), ssl.CERT_REQUIRED)}


_CHECKS = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL}


def _transport(worker: str) -> dict[str, Any]:
    return {
        "visibility_timeout": VISIBILITY_SECONDS,
        # One hash for all would let any worker restore (and so re-run) the messages of every other.
        "unacked_key": f"unacked.{worker}",
        "unacked_index_key": f"unacked.{worker}.index",
        "unacked_mutex_key": f"unacked.{worker}.mutex",
        "priority_steps": list(PRIORITIES),
        # Without time-outs a half-open connection (a laptop's lid, a tunnel that died) hangs the worker for minutes.
        "socket_timeout": 10,
        "socket_connect_timeout": 3,
        "socket_keepalive": True,
        "health_check_interval": 10,
    }


_QUICK: Mapping[str, float] = {"max_retries": 2, "interval_start": 0.2, "interval_step": 0.2, "interval_max": 0.5}

_SETTINGS: dict[str, Any] = {
    # JSON carries no code: who can write to Redis must not thereby run code on every worker.
    "task_serializer": "json",
    "result_serializer": "json",
    "accept_content": ["json"],
    "enable_utc": True,
    # Acknowledged before it runs. Late acknowledgement on Redis re-runs long messages after a reset connection and
    # restores a dead worker's message into a queue nobody reads.
    "task_acks_late": False,
    "task_reject_on_worker_lost": False,
    # A message beyond the free slots stays in its Redis list, where it can be seen, moved and survives us.
    "worker_prefetch_multiplier": 1,
    "worker_disable_prefetch": True,
    # A slot only supervises the executor's own processes, so a thread is enough, for 1/15 of the memory. It cannot be
    # terminated; we stop the processes ourselves and never use revoke(terminate=True).
    "worker_pool": "threads",
    # A STARTED write while Redis is away would fail the message before it ran.
    "task_track_started": False,
    # A batch that ends while Redis is away must still count in its chord, else finished work becomes a FAILURE.
    "result_backend_always_retry": True,
    "result_backend_max_retries": 10**6,
    # Longer than any gap between two batches of one chord, else the callback never fires.
    "result_expires": 7 * 86400,
    "result_chord_expires": 30 * 86400,
    "redis_socket_timeout": 10,
    "redis_socket_connect_timeout": 3,
    "redis_socket_keepalive": True,
    "redis_backend_health_check_interval": 15,
    # A worker outlives any outage of the broker.
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "broker_connection_timeout": 3,
    # The trials that run need no broker: an outage must not cancel them.
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    # One that expires is kept alive by scripts, which clean up after others too: no worker's affair.
    "control_queue_expires": None,
    # Flower shows what runs.
    "worker_send_task_events": True,
    # The same for a message that cannot be published; the reconciler sends again.
    "task_publish_retry_policy": dict(_QUICK),
    # Our processes configure logging; Celery only adds to it.
    "worker_hijack_root_logger": False,
    "worker_redirect_stdouts": False,
}
