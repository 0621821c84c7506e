"""A process that consumes one queue as a worker or the control process does, with messages that only leave a trace.

Run as ``python dispatch_consumer.py NAME QUEUE SLOTS`` with ``AEO_BROKER_URL``. What runs is pushed to the list
``trace``; while the key ``hold`` exists a batch does not end. One in the set ``again`` gives its turn once.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import redis
from celery.exceptions import Ignore
from redis.backoff import ConstantBackoff
from redis.exceptions import BusyLoadingError
from redis.retry import Retry

from aeo import dispatch
from aeo.celery import MERGE, RUN_BATCH, Stop, consume, make_app
from aeo.config import Config
from aeo.core.model import Batch
from aeo.layout import Shared
from aeo.site import Site
from aeo.store import evaluations
from aeo.store.connection import connect


def main(name: str, queue: str, slots: int) -> int:
    url = os.environ["AEO_BROKER_URL"]
    # A batch of the product outlives a server that is away for a while; so do these.
    store = redis.Redis.from_url(
        url, decode_responses=True, retry=Retry(ConstantBackoff(0.1), 200), retry_on_error=[BusyLoadingError]
    )
    site = Site(config=Config(broker_url=url), shared=Shared(Path(), Path()), db=connect(url))
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
        if store.srem("again", batch):
            member = Batch(id=batch, evaluation=evaluation, worker=name)
            dispatch.resend(site, replace(member, message=evaluations.message_of(site.db, member)))
            raise Ignore
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
