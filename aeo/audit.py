"""Proving, from the store, the event log and the job folder, that nothing is lost and nothing counted twice."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aeo import event_log, records
from aeo.core import audit
from aeo.core.errors import InputError, NotFound
from aeo.core.model import EvaluationState
from aeo.site import Site
from aeo.store import audit as store_audit
from aeo.store import evaluations, events
from aeo.store.events import Event

#: A commit is a rename and then a step of the store: a look in between sees only the first. Nobody is that slow.
LOOKS, BETWEEN_SECONDS = 3, 0.5
_PAGE = 1000
_EVENTS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a look at one evaluation found."""

    evaluation: str
    #: Empty where only the store knows it, or only the disk and it is damaged.
    name: str = ""
    #: Empty when the store does not know it.
    state: str = ""
    faults: tuple[str, ...] = ()
    #: What was not looked at, and why.
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class _Look:
    finding: Finding
    #: Faults that another look may not find, as two places were read one after the other.
    passing: frozenset[str] = field(default_factory=frozenset)


def known_ids(site: Site) -> tuple[list[str], list[str]]:
    """The evaluations the store knows, and those on disk."""
    stored: list[str] = []
    while page := evaluations.page(site.db, offset=len(stored), limit=_PAGE)[0]:
        stored += [status.id for status in page]
    folders = (path.name for path in site.shared.evaluations.iterdir() if (path / records.EVALUATION).exists())
    return sorted(set(stored)), sorted(name for name in folders if not name.startswith("new."))


def check(site: Site, ids: Sequence[str] = ()) -> list[Finding]:
    """Look at these evaluations, or all, while they run or not; reads only.

    Raises:
        NotFound: one of ``ids`` is neither an id nor a name.
        Unavailable: the store is away.
    """
    stored, on_disk = known_ids(site)
    wanted = [_id(site, id, on_disk) for id in ids] or sorted({*stored, *on_disk})
    found = {id: _look(site, id) for id in wanted}
    for _ in range(LOOKS - 1):
        again = [id for id, look in found.items() if look.finding.faults]
        if not again:
            break
        time.sleep(BETWEEN_SECONDS)
        found.update((id, _still(found[id], _look(site, id))) for id in again)
    return [look.finding for look in found.values()]


def _still(before: _Look, now: _Look) -> _Look:
    """What a later look found, without what is passing and was not found by the earlier one."""
    seen = set(before.finding.faults)
    left = tuple(fault for fault in now.finding.faults if fault not in now.passing or fault in seen)
    return replace(now, finding=replace(now.finding, faults=left))


def _id(site: Site, id_or_name: str, on_disk: Iterable[str]) -> str:
    return id_or_name if id_or_name in on_disk else evaluations.find(site.db, id_or_name).id


def _look(site: Site, id: str) -> _Look:
    # This order misses nothing: an event leaves the store only once it is on disk.
    snapshot = _snapshot(site, id)
    waiting = [(entry, event) for entry, event in events.take(site.db, _EVENTS) if event.evaluation == id]
    return _judge(site, id, snapshot, waiting)


def _snapshot(site: Site, id: str) -> audit.Snapshot | None:
    try:
        return store_audit.snapshot(site.db, id)
    except NotFound:
        return None


def _judge(site: Site, id: str, seen: audit.Snapshot | None, waiting: Iterable[tuple[str, Event]]) -> _Look:
    try:
        record = records.read(site.shared.evaluation(id))
    except InputError as error:
        # The folder of one that is just being submitted comes last.
        faults = (f"it cannot be read from disk: {error}",)
        state = seen.state if seen else ""
        return _Look(finding=Finding(evaluation=id, state=state, faults=faults), passing=frozenset(faults))
    name = record.evaluation.spec.name
    if seen is None:
        faults = ("it is on disk, but the store does not know it: `aeo recover` enters it again",)
        return _Look(finding=Finding(evaluation=id, name=name, faults=faults), passing=frozenset(faults))
    seen = replace(seen, planned=tuple(record.trials))
    certain = audit.faults(seen, _log(site.shared.events(id), waiting))
    folders, note = _folders(Path(record.evaluation.job_dir), final=EvaluationState(seen.state).final)
    all_faults = tuple(certain) + tuple(audit.folder_faults(replace(seen, folders=folders)))
    return _Look(
        finding=Finding(evaluation=id, name=name, state=seen.state, faults=all_faults, note=note),
        passing=frozenset(all_faults) - frozenset(certain),
    )


def _folders(job_dir: Path, *, final: bool) -> tuple[frozenset[str] | None, str]:
    if final and not job_dir.is_dir():
        return None, f"its job folder was taken away, so it is not compared: {job_dir}"
    if not job_dir.is_dir():
        return frozenset(), ""
    return frozenset(path.name for path in job_dir.iterdir() if path.is_dir() and path.name[0] != "."), ""


def _log(path: Path, waiting: Iterable[tuple[str, Event]]) -> Iterator[Mapping[str, Any]]:
    """The events on disk, then those that are not there yet."""
    on_disk = set()
    for event in event_log.read(path):
        on_disk.add(event.get("id"))
        yield event
    for entry, late in waiting:
        if entry not in on_disk:
            yield json.loads(late.line(entry))
