"""What became of an evaluation, told from the disk: its plan, its event log, its job; and the store's invariants."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from chaos.stage import Event, Run, moment

from aeo.core import audit
from aeo.store import audit as store_audit


@dataclass
class _Held:
    """The run that holds a trial."""

    token: str
    worker: str
    at: float
    #: It is known to run no more.
    over: bool = False


def lost(run: Run) -> set[str]:
    """Planned trials without a committed result: neither in the job, nor cancelled before they ran."""
    cancelled = {event["trial"] for event in run.of("committed") if not int(event.get("attempt") or 0)}
    committed = {event["trial"] for event in run.of("committed")}
    return set(run.planned()) - ((run.results() & committed) | cancelled)


def committed_twice(run: Run) -> set[str]:
    """Trials of which two runs counted."""
    tokens: dict[str, set[str]] = {}
    for event in run.of("committed"):
        token = event.get("token", "")
        if token not in ("", audit.RECOVERED):
            tokens.setdefault(event["trial"], set()).add(token)
    return {trial for trial, of in tokens.items() if len(of) > 1}


def run_twice(run: Run) -> set[str]:
    """Trials of which a run began while another was not known dead, or of which two came to a scored end."""
    return _claimed_twice(run.events(), run.stage.deaths) | _superseded(run)


def _claimed_twice(events: Iterable[Event], deaths: Iterable[tuple[str, float]]) -> set[str]:
    held: dict[str, _Held] = {}
    twice = set()
    for event in events:
        trial, kind, at = event.get("trial", ""), event["kind"], moment(event)
        now = held.get(trial)
        if kind in ("claimed", "reclaimed"):
            if now and now.token != event["token"] and not (now.over or _died(now, at, deaths)):
                twice.add(trial)
            held[trial] = _Held(event["token"], event["worker"], at)
        elif kind == "requeued" and now and now.token == event["token"]:
            # Whoever gives back its own run has ended it; a lease that expired proves nothing.
            now.over = not str(event["reason"]).startswith("lease of worker")
    return twice


def _died(now: _Held, at: float, deaths: Iterable[tuple[str, float]]) -> bool:
    return any(worker == now.worker and now.at <= when <= at for worker, when in deaths)


def _superseded(run: Run) -> set[str]:
    found = set()
    for folder in (run.folder / "superseded").glob("*/"):
        path = folder / "result.json"
        result = json.loads(path.read_text()) if path.exists() else {}
        if (result.get("verifier_result") or {}).get("rewards"):
            found.add(folder.name.rpartition(".")[0])
    return found


def faults(run: Run) -> list[str]:
    """What the invariants of store, log and job say."""
    with run.stage.db() as db:
        snapshot = store_audit.snapshot(db, run.id)
    # Harbor's viewer looks for folders with a result, and so do we.
    folders = frozenset(path.name for path in run.job.iterdir() if path.is_dir())
    return audit.faults(replace(snapshot, planned=tuple(run.planned()), folders=folders), run.events())
