"""Keeping the summaries in line with the store, which decides, and with the records on disk.

Most of the time there is nothing to do: what is submitted is entered and what is committed is put in at once. What is
left are trials cancelled before they ran, writes that failed, a file that was deleted, evaluations from before there
were summaries, and a store that was wiped. A look at an evaluation brings that one in line, `Keeper` all of them.
"""

from __future__ import annotations

import logging
import threading
import time

from aeo import records, summaries
from aeo.core.errors import InputError, NotFound
from aeo.core.speeds import RECENT, REMEMBERED_SECONDS
from aeo.site import Site
from aeo.store import evaluations, health, history, speeds, trials
from aeo.store.evaluations import EvaluationStatus
from aeo.summaries import entries, past, standing
from aeo.summaries.standing import Standing

log = logging.getLogger(__name__)

#: Rows read and put in at once.
_CHUNK = 1000
#: Seconds between two rounds.
ROUND_SECONDS = 2.0


def catch_up(site: Site, status: EvaluationStatus) -> None:
    """Bring the summaries of one evaluation in line with the store's rows, as far as this costs little.

    A book that cannot be written stays as it is: what it has is shown.

    Raises:
        Unavailable: the store is away, or the summaries cannot be read.
    """
    known = _entered(site, status.id)
    # More than the store had a moment ago is newer, or a store that is being rebuilt: `Keeper` sees to that.
    if known is not None and known.done < status.done:
        _follow(site, status.id, known)


def _entered(site: Site, id: str) -> Standing | None:
    known = standing.standing(site.book, id)
    if known is not None:
        return known
    try:
        record = records.read(site.shared.evaluation(id))
    except InputError as error:
        # Just being submitted, or damaged: recovery says so.
        log.debug("evaluation %s cannot be entered: %s", id, error)
        return None
    summaries.enter(site.book, record.whole())
    return standing.standing(site.book, id)


def _follow(site: Site, id: str, known: Standing) -> None:
    """Read the rows committed since the last time; all of them when the store's list is another one."""
    same = known.seen > 0 and trials.committed(site.db, id, known.seen - 1) == known.last
    # Before the rows are read: what is put in meanwhile is not to be taken for something the store does not have.
    unknown = set() if same else standing.done_trials(site.book, id)
    index = known.seen if same else 0
    while True:
        rows, _ = trials.rows(site.db, id, offset=index, limit=_CHUNK)
        if not rows:
            break
        index += len(rows)
        unknown -= {row.summary.trial for row in rows}
        if not entries.follow(site.book, id, rows, seen=index, last=rows[-1].summary.trial):
            return
    if unknown:
        entries.take_back(site.book, id, unknown)


def _note_seen(site: Site, id: str, known: Standing) -> None:
    """Note that everything is in, so that the next one who has to catch up reads little."""
    if known.done > known.seen and trials.count_committed(site.db, id) == known.done:
        last = trials.committed(site.db, id, known.done - 1)
        entries.follow(site.book, id, (), seen=known.done, last=last)


class Keeper:
    """Keeps all summaries in line, round after round."""

    def __init__(self, site: Site, stop: threading.Event) -> None:
        self._site, self._stop = site, stop
        #: When the store was last brought in line with the disk, as known at the last round.
        self._mark = ""

    def round(self) -> None:
        """Bring in line what is not."""
        mark = health.mark(self._site.db)
        if mark:
            self._look(anew=mark != self._mark)
            self._mark = mark
        self._stop.wait(ROUND_SECONDS)

    def _look(self, *, anew: bool) -> None:
        # Before the ids, or one submitted just now would look like one that is gone.
        known = standing.standings(self._site.book)
        ids = evaluations.ids(self._site.db)
        live = set(evaluations.open_ids(self._site.db))
        for id in ids:
            if self._stop.is_set():
                return
            state = known.get(id)
            if state is None or state.done != state.total or id in live:
                self._bring_in_line(id, anew=anew)
        for gone in known.keys() - set(ids):
            summaries.drop(self._site.book, gone)
        if not history.is_whole(self._site.db):
            # After a wipe; only now do the summaries have all that ran.
            _restore_history(self._site)

    def _bring_in_line(self, id: str, *, anew: bool) -> None:
        known = _entered(self._site, id)
        if known is None:
            return
        try:
            done = evaluations.get(self._site.db, id).done
        except NotFound:
            return
        if known.done < done or (anew and known.done):
            _follow(self._site, id, known)
        elif known.done > done and known.done > trials.count_committed(self._site.db, id):
            _follow(self._site, id, Standing(total=known.total, done=known.done, seen=0, last=""))
        else:
            _note_seen(self._site, id, known)


def _restore_history(site: Site) -> None:
    """Tell the store how long tasks took before, from what the summaries have."""
    tasks = past.last_runs(site.book, each=history.KEPT)
    datasets = past.last_runs(site.book, each=history.KEPT_MEANT, by_dataset=True)
    speeds.restore(site.db, past.last_timed(site.book, each=RECENT, since=time.time() - REMEMBERED_SECONDS))
    history.restore(site.db, tasks, datasets)
