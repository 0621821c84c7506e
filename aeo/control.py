"""The control process's own loops, beside the Celery worker that takes merges: commit, refresh, log, repair."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from aeo import event_log, jobs, logs, reconciliation, recovery, results
from aeo.core.errors import AeoError, NotFound, Unavailable
from aeo.core.model import TrialRow
from aeo.leases import clock
from aeo.meters import Meters
from aeo.notices import Notifier
from aeo.provision.tunnels import Tunnels
from aeo.rsyncd.daemon import Daemon
from aeo.site import Site
from aeo.speeds import Pacer
from aeo.stopping import Stopper
from aeo.store import evaluations, health, inbox
from aeo.upkeep import Keeper

log = logging.getLogger(__name__)

#: Seconds an idle look into the inbox waits.
INBOX_WAIT = 1.0
#: Arrivals committed together, at most: a repair waits for as long as that takes.
GROUP = 64
#: Seconds between two looks for events that are not on disk; each look that finds some ends on the disk itself.
LOG_WAIT = 0.2
#: Seconds without a round of repairs after which nobody can say what happened meanwhile.
GAP_SECONDS = 10.0
#: Seconds between two rounds of repairs.
REPAIR_SECONDS = 2.0
#: Seconds that a notice on its way gets at the end.
LEAVE_SECONDS = 3.0
#: A refresh of summaries is followed by so many times its own duration without one.
REFRESH_REST = 10
#: Seconds a loop waits after a failure before it goes on.
AFTER_FAILURE = 1.0


def run(site: Site, stop: threading.Event) -> None:
    """Recover, then run every loop until ``stop``; returns when all have ended."""
    while not _attempt(lambda: recovery.recover(site)):
        if stop.wait(AFTER_FAILURE):
            return
    counted = Meters(site.shared.meters)
    loops: tuple[tuple[str, Callable[[], None]], ...] = (
        ("commit", lambda: _commit_next(site)),
        ("refresh", Refresher(site, stop).round),
        ("events", lambda: _write_events(site, stop, counted)),
        ("repair", Repairer(site, stop).round),
        ("summaries", Keeper(site, stop).round),
        ("stopping", Stopper(site, stop).round),
        ("speeds", Pacer(site, stop).round),
        ("tunnels", Tunnels(site, stop).round),
        ("files", Daemon(site.config, site.shared, stop).round),
    )
    threads = [threading.Thread(target=_loop, args=(one, stop), name=name, daemon=True) for name, one in loops]
    for thread in threads:
        thread.start()
    # Who is told of things may be slow to take them: that holds up no end.
    telling = threading.Thread(target=_loop, args=(Notifier(site, stop).round, stop), name="notices", daemon=True)
    telling.start()
    for thread in threads:
        thread.join()
    telling.join(LEAVE_SECONDS)
    # What happened last belongs into the log too.
    _attempt(lambda: event_log.write(site, counted.note))
    counted.keep(at_once=True)


def _loop(one: Callable[[], None], stop: threading.Event) -> None:
    while not stop.is_set():
        if not _attempt(one):
            stop.wait(AFTER_FAILURE)


def _attempt(one: Callable[[], object]) -> bool:
    """Whether it worked; a loop outlives every failure, since it is what repairs."""
    try:
        one()
    except Unavailable as error:
        log.warning("%s", error)
        return False
    except Exception:
        log.exception("unexpected failure, the loop goes on")
        return False
    return True


def _commit_next(site: Site) -> None:
    arrivals = inbox.take_all(site.db, INBOX_WAIT, most=GROUP)
    if not arrivals:
        # Whatever was taken and neither done nor put back, since the store was away just then.
        inbox.restore(site.db)
        return
    answers = results.commit_all(site, arrivals)
    failed = {arrival: answer for arrival, answer in answers.items() if isinstance(answer, Exception)}
    for arrival in failed:
        # Disk full or read-only, or a fault of our own: nothing is lost, and the others go first.
        inbox.put_back(site.db, arrival)
    taken = [arrival for arrival in arrivals if arrival not in failed]
    inbox.done(site.db, *taken)
    for id in dict.fromkeys(arrival.evaluation for arrival in taken):
        try:
            jobs.ring_if_all_in(site, id)
        except NotFound:
            log.warning("a result of %s arrived, which the store does not know", id)
    for error in failed.values():
        raise error


class Refresher:
    """Keeps running jobs' summaries up to date, reading each committed row once."""

    def __init__(self, site: Site, stop: threading.Event) -> None:
        self._site, self._stop = site, stop
        self._rows: dict[str, tuple[TrialRow, ...]] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._age = 0.0

    def round(self) -> None:
        """Refresh what changed since the last round."""
        began = clock()
        open_ids = evaluations.open_ids(self._site.db)
        for gone in set(self._rows) - set(open_ids):
            del self._rows[gone]
            self._seen.pop(gone, None)
        age = health.settled_seconds(self._site.db)
        if age is None or age < self._age:
            # Entered again from disk, in another order.
            self._rows.clear()
            self._seen.clear()
        self._age = age or 0.0
        for id in open_ids:
            status = evaluations.get(self._site.db, id)
            now = (status.done, status.running)
            if self._seen.get(id) != now:
                with logs.about(evaluation=id):
                    self._rows[id] = self._refresh(id, self._rows.get(id, ()))
                self._seen[id] = now
        # It reads every row of an evaluation: with many of them it must not take the process for itself.
        self._stop.wait(max(self._site.config.refresh_seconds, REFRESH_REST * (clock() - began)))

    def _refresh(self, id: str, known: tuple[TrialRow, ...]) -> tuple[TrialRow, ...]:
        try:
            return jobs.refresh(self._site, id, known)
        except (AeoError, OSError) as error:
            log.warning("the summary of %s was not refreshed: %s", id, error)
            return known


def _write_events(site: Site, stop: threading.Event, counted: Meters) -> None:
    counted.keep()
    if event_log.write(site, counted.note) < event_log.AT_ONCE:
        stop.wait(LOG_WAIT)


class Repairer:
    """Repairs in rounds, and knows since when it has seen the store without a gap."""

    def __init__(self, site: Site, stop: threading.Event) -> None:
        self._site, self._stop = site, stop
        self._since = self._last = clock()

    def round(self) -> None:
        """Repair what there is to repair."""
        now = clock()
        if now - self._last > GAP_SECONDS:
            self._since = now
        reconciliation.reconcile(self._site, watched_seconds=now - self._since)
        self._last = clock()
        self._stop.wait(REPAIR_SECONDS)
