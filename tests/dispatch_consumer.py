"""A process that consumes one queue as a worker or the control process does, with messages that only leave a trace.

Run as ``python dispatch_consumer.py NAME QUEUE SLOTS`` with ``AEO_BROKER_URL``. What runs is pushed to the list
``trace``; while the key ``hold`` exists a batch does not end.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import redis
from redis.backoff import ConstantBackoff
from redis.exceptions import BusyLoadingError
from redis.retry import Retry

from aeo.celery import MERGE, RUN_BATCH, Stop, consume, make_app


def main(name: str, queue: str, slots: int) -> int:
    url = os.environ["AEO_BROKER_URL"]
    # A batch of the product outlives a server that is away for a while; so do these.
    store = redis.Redis.from_url(
        url, decode_responses=True, retry=Retry(ConstantBackoff(0.1), 200), retry_on_error=[BusyLoadingError]
    )
    app = make_app(url, worker=name)
    # Only the messages below: the product's need a whole site.
    app.conf.include = []

    @app.task(name=RUN_BATCH, shared=False)
    def run_batch(evaluation: str, batch: str) -> dict[str, str]:
        store.rpush("trace", f"start {batch} {name}")
        deadline = time.monotonic() + 60
        while store.exists("hold") and time.monotonic() < deadline:
            time.sleep(0.02)
        store.rpush("trace", f"end {batch} {name}")
        return {"batch": batch}

    @app.task(name=MERGE, shared=False)
    def merge(evaluation: str) -> None:
        store.rpush("trace", f"merge {evaluation} {name}")

    told = threading.Event()
    stop = Stop(warm=lambda: None, cold=lambda: store.delete("hold"), told=told)
    store.sadd("ready", name)
    return consume(app, name=name, queue=queue, slots=slots, stop=stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
