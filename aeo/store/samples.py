"""What workers measured of themselves: the first heartbeat of each minute is kept for a while."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from aeo.codec import loads
from aeo.store.connection import Db, moment
from aeo.store.keys import key

#: One sample a minute: most of them kept, and for how many seconds after the last.
SAMPLES, SAMPLES_LIFE = 90, 2 * 3600


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What a worker measured of itself at one moment, see `Heartbeat`."""

    #: On the Redis server's clock.
    at: datetime
    cpu_percent: float
    memory_percent: float
    disk_free: int
    busy: int
    clock_skew: float | None = None


def of(db: Db, ids: Sequence[str]) -> Mapping[str, tuple[Sample, ...]]:
    """What each worker measured in its last `SAMPLES` minutes, the oldest first."""
    with db.client.pipeline(transaction=False) as pipe:
        for id in ids:
            pipe.lrange(key("samples", id), 0, -1)
        return {
            id: tuple(_sample(text) for text in reversed(texts)) for id, texts in zip(ids, pipe.execute(), strict=True)
        }


def _sample(text: str) -> Sample:
    at, _, values = text.partition(" ")
    cpu, memory, disk, busy, *skew = loads(list, values)
    return Sample(
        at=moment(at),
        cpu_percent=float(cpu),
        memory_percent=float(memory),
        disk_free=int(disk),
        busy=int(busy),
        clock_skew=float(skew[0]) if skew else None,
    )
