"""Telling people what happened, beside the engine and never in its way: a thread of the control process.

What is to be told stands in ``notices.json`` together with what was seen, written in one go before anything is sent:
after a crash each notice is still told, and none is made twice. One that was sent just when the process was killed is
sent again under the same id, as losing it would be worse.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from aeo import channels, codec, folders
from aeo.channels import Channel, Undelivered
from aeo.core import notices as core
from aeo.core.errors import InputError
from aeo.core.model import WorkerState
from aeo.core.notices import EvaluationFacts, Notice, Seen, WorkerFacts
from aeo.leases import clock
from aeo.secrets import hiding
from aeo.site import Site
from aeo.store import connection, health
from aeo.store import evaluations as store
from aeo.store import workers as worker_store
from aeo.store.evaluations import EvaluationStatus

log = logging.getLogger(__name__)

#: Seconds between two looks.
ROUND_SECONDS = 2.0
#: Seconds without a look after which nobody can say what happened meanwhile.
GAP_SECONDS = 10.0
#: Evaluations looked at for those that began and ended between two looks.
NEWEST = 50
#: Notices that wait, at most; of more the oldest are let go.
MOST_WAITING = 1000


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """A notice on its way to one channel."""

    notice: Notice
    channel: str
    #: Tries that failed.
    tries: int = 0
    #: When it was made, and when it is to be tried next; seconds since 1970.
    since: float
    due: float


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """What is kept."""

    seen: Seen | None = None
    outgoing: tuple[Outgoing, ...] = ()


class Notifier:
    """Looks and tells in rounds. Of one thread."""

    def __init__(self, site: Site, stop: threading.Event, ways: Mapping[str, Channel] | None = None) -> None:
        """``ways``: other channels than those configured."""
        self._site, self._stop = site, stop
        self._ways = channels.configured(site.config) if ways is None else ways
        self._ledger = _read(site)
        self._since = self._last = clock()

    def round(self) -> None:
        """Look what is news, and send what is due; waits until the next is.

        Raises:
            Unavailable: the store is away; what waits was sent nevertheless.
        """
        if not self._ways:
            self._stop.wait()
            return
        try:
            self._look()
        finally:
            begun = clock()
            self._send()
            # A slow receiver is no gap.
            self._last += clock() - begun
        self._stop.wait(ROUND_SECONDS)

    def _look(self) -> None:
        now = clock()
        if now - self._last > GAP_SECONDS:
            self._since = now
        settled = health.settled_seconds(self._site.db)
        if settled is None:
            # Wiped or started again: what is missing may be there in a moment.
            return
        # Silence proves nothing yet when the store was away itself.
        judged = min(settled, now - self._since) >= self._site.config.grace_seconds
        before = self._ledger.seen
        seen, news = core.compare(
            before, connection.now(self._site.db), self._evaluations(before), self._workers() if judged else None
        )
        self._last = clock()
        if before is None or news or replace(seen, at=before.at) != before:
            ledger = replace(self._ledger, seen=seen, outgoing=self._with(news))
            folders.write(self._site.shared.notices, codec.dumps(ledger))
            self._ledger = ledger

    def _evaluations(self, before: Seen | None) -> list[EvaluationFacts]:
        db = self._site.db
        ids = dict.fromkeys([*store.open_ids(db), *(before.evaluations if before else ())])
        found = {status.id: status for status in store.several(db, list(ids))}
        for status in store.page(db, offset=0, limit=NEWEST)[0]:
            found.setdefault(status.id, status)
        return [self._facts(status) for status in found.values()]

    def _facts(self, status: EvaluationStatus) -> EvaluationFacts:
        return EvaluationFacts(
            id=status.id,
            name=status.name,
            state=status.state,
            reason=status.reason,
            total=status.total,
            done=status.done,
            outcomes=status.outcomes,
            submitted_at=status.submitted_at,
            finished_at=status.finished_at,
            job=str(self._site.shared.job(status.name)),
        )

    def _workers(self) -> list[WorkerFacts]:
        return [
            WorkerFacts(
                id=status.info.id,
                host=status.info.host,
                # One executor of it is news as well.
                state=WorkerState.PAUSED
                if status.paused_executors and status.state is WorkerState.ONLINE
                else status.state,
                note=status.note,
            )
            for status in worker_store.all(self._site.db)
        ]

    def _with(self, news: Sequence[Notice]) -> tuple[Outgoing, ...]:
        """What waits, and what is new, without secrets."""
        now = time.time()
        clean = hiding.redactor(self._site).text
        made = [
            replace(notice, id=uuid4().hex, subject=clean(notice.subject), text=clean(notice.text)) for notice in news
        ]
        fresh = [Outgoing(notice=notice, channel=way, since=now, due=now) for notice in made for way in self._ways]
        for notice in made:
            log.info("to be told: %s", notice.subject)
        waiting = (*self._ledger.outgoing, *fresh)
        if len(waiting) > MOST_WAITING:
            log.error("%d notices that could not be sent are let go", len(waiting) - MOST_WAITING)
        return waiting[-MOST_WAITING:]

    def _send(self) -> None:
        """Send what is due, in order; a channel that fails is left alone until its time comes."""
        resting = set()
        for item in self._ledger.outgoing:
            if self._stop.is_set():
                return
            if item.channel in resting:
                continue
            if item.due > time.time():
                resting.add(item.channel)
                continue
            after = self._try(item)
            if after is not None:
                resting.add(item.channel)
            outgoing = [after if other is item else other for other in self._ledger.outgoing]
            # Remembered before it is written: a full disk must not have it sent round after round.
            self._ledger = replace(self._ledger, outgoing=tuple(other for other in outgoing if other is not None))
            folders.write(self._site.shared.notices, codec.dumps(self._ledger))

    def _try(self, item: Outgoing) -> Outgoing | None:
        """Send it; what is left to do, None if nothing."""
        way = self._ways.get(item.channel)
        if way is None:  # not configured any more
            return None
        try:
            way(item.notice)
        except Undelivered as error:
            return self._after(item, error)
        except Exception:  # whatever it is, it must not stop the others
            log.exception("unexpected failure of %s", item.channel)
            return self._after(item, Undelivered("unexpected failure"))
        return None

    def _after(self, item: Outgoing, error: Undelivered) -> Outgoing | None:
        now, tries = time.time(), item.tries + 1
        if error.permanent or now - item.since > core.GIVEN_UP_SECONDS:
            log.error("%r is not told by %s: %s", item.notice.subject, item.channel, error)
            return None
        wait = core.pause(tries)
        log.warning("%r is not told by %s yet, again in %.0f s: %s", item.notice.subject, item.channel, wait, error)
        return replace(item, tries=tries, due=now + wait)


def _read(site: Site) -> Ledger:
    try:
        return codec.loads(Ledger, site.shared.notices.read_bytes())
    except FileNotFoundError:
        return Ledger()
    except InputError as error:
        log.error("%s is damaged, telling begins anew: %s", site.shared.notices.name, error)
        return Ledger()
