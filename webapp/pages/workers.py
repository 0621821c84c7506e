"""The workers: how each is, what it did of late, and what a person may want of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flask import Blueprint, Response, flash, make_response, redirect, render_template, request, url_for
from flask_babel import gettext as _
from werkzeug.wrappers import Response as AnyResponse

from aeo import credentials, workers
from aeo.core.alerts import CLOCK_SECONDS, is_low
from aeo.core.allot import MOST_WEIGHT
from aeo.core.errors import Conflict, InputError, NotFound, Problem
from aeo.core.model import WorkerState
from aeo.provision import record
from aeo.site import Site
from aeo.store import connection, samples
from aeo.store import workers as store
from aeo.store.samples import Sample
from aeo.workers import WorkerView
from webapp.auth import Role, current_user, needs
from webapp.pages import machines
from webapp.site import current_site

#: Minutes that the small lines show.
MINUTES = 60
#: A note's letters.
LONGEST_NOTE = 1000
#: Seconds after which a heartbeat is late, in poll intervals of the usual worker.
LATE_SECONDS = 20.0

bp = Blueprint("workers_page", __name__)


@bp.get("/workers")
def index() -> Response:
    """Show all workers, or the live part of that."""
    values = _all(current_site())
    part = _asked("list")
    return make_response(render_template("parts/workers_list.html" if part else "workers.html", **values))


@bp.get("/workers/<worker_id>")
def show(worker_id: str) -> Response:
    """Show one worker, or the live part of that."""
    workers.check_id(worker_id)
    return _one(worker_id)


@bp.post("/workers/<worker_id>")
@needs(Role.ADMIN)
def change(worker_id: str) -> AnyResponse:
    """Do what a person wants of a worker, and go back to where they were."""
    workers.check_id(worker_id)
    do = request.form.get("do", "")
    try:
        said = _do(current_site(), worker_id, do)
    except NotFound:
        raise
    except InputError as error:
        if do == "allow":
            raise
        return _one(worker_id, error.problems, 409 if isinstance(error, Conflict) else 422)
    flash(said, "good")
    stays = request.form.get("from") == "worker" and do not in ("remove", "revoke", "allow")
    place = url_for("workers_page.show", worker_id=worker_id) if stays else url_for("workers_page.index")
    return redirect(place, 303)


def _do(site: Site, id: str, do: str) -> str:
    """Do it and say so.

    Raises:
        InputError: it cannot be done.
    """
    if do == "weight":
        store.set_weight(site.db, id, _weight(request.form.get("weight", "").strip()))
        return str(_("The weight of %(worker)s counts from the next evaluation on.", worker=id))
    if do == "drain":
        workers.drain(site, id, by=current_user.name)
        return str(_("%(worker)s finishes what it runs and claims nothing more.", worker=id))
    if do == "pause":
        workers.pause(site, id, by=current_user.name, note=request.form.get("note", "").strip()[:LONGEST_NOTE])
        return str(_("%(worker)s claims nothing until it is resumed.", worker=id))
    if do == "resume":
        workers.resume(site, id)
        return str(_("%(worker)s takes work again.", worker=id))
    if do == "remove":
        removed = workers.remove(site, id, force=request.form.get("force") == "1")
        return str(_("%(worker)s is removed; trials given back: %(count)s.", worker=id, count=removed.given_back))
    if do == "revoke":
        removed = workers.revoke(site, id)
        return str(_("%(worker)s is revoked; trials given back: %(count)s.", worker=id, count=removed.given_back))
    if do == "allow":
        revoked = id in credentials.read(site).revoked
        workers.allow(site, id)
        if revoked:
            return str(_("%(worker)s may come back; it gets new credentials at its next start.", worker=id))
        return str(_("%(worker)s may come back; it registers at its next heartbeat.", worker=id))
    raise InputError("is none of weight, drain, pause, resume, remove, revoke and allow.", field="do")


def _weight(given: str) -> float | None:
    try:
        return float(given) if given else None
    except ValueError:
        raise InputError(
            f"{given[:40]!r} is no weight.", field="weight", fix=f"Use a number from 0 to {MOST_WEIGHT}."
        ) from None


def _asked(part: str) -> bool:
    return "HX-Request" in request.headers and request.args.get("part") == part


def _all(site: Site) -> dict[str, Any]:
    views = workers.views(site)
    book = credentials.read(site)
    measured = samples.of(site.db, [view.info.id for view in views])
    now = connection.now(site.db)
    return {
        "workers": [(view, lines(measured[view.info.id], view, now.timestamp())) for view in views],
        "removed": store.removed(site.db),
        "revoked": sorted(book.revoked),
        "shared": book.shared,
        "machines": machines.listed(site) if current_user.may(Role.ADMIN) else [],
        "machine_words": machines.words(),
        "flower_url": site.config.flower_url,
        **_common(),
    }


def _one(id: str, problems: tuple[Problem, ...] = (), status: int = 200) -> Response:
    site = current_site()
    detail = workers.detail(site, id)
    values = {
        "detail": detail,
        "worker": detail.worker,
        "lines": lines(detail.samples, detail.worker, connection.now(site.db).timestamp()),
        "now": connection.now(site.db),
        "problems": problems,
        "longest_note": LONGEST_NOTE,
        "provisioned": record.find(site.shared, id) is not None,
        **_common(),
    }
    return make_response(
        render_template("parts/worker_live.html" if _asked("live") else "worker.html", **values), status
    )


def _common() -> dict[str, Any]:
    return {
        "may_change": current_user.may(Role.ADMIN),
        "WorkerState": WorkerState,
        "is_low": is_low,
        "late_seconds": LATE_SECONDS,
        "clock_seconds": CLOCK_SECONDS,
        "ahead": ahead,
    }


def ahead(seconds: float) -> str:
    """Write how far a clock is ahead; what is less than a tenth is nothing."""
    return f"{seconds:+.1f} s" if abs(seconds) >= 0.05 else "±0 s"


def lines(samples: Sequence[Sample], view: WorkerView, now: float) -> dict[str, list[float | None]]:
    """What the small lines show: a value for each of the last `MINUTES`, None where there is none.

    CPU and memory in percent, the disk as its used share where its size is known, else its free bytes.
    """
    total = view.heartbeat.disk_total if view.heartbeat else 0
    made: dict[str, list[float | None]] = {name: [None] * MINUTES for name in ("cpu", "memory", "disk")}
    for sample in samples:
        place = MINUTES - 1 - (int(now // 60) - int(sample.at.timestamp() // 60))
        if 0 <= place < MINUTES:
            made["cpu"][place] = sample.cpu_percent
            made["memory"][place] = sample.memory_percent
            made["disk"][place] = 100 * (1 - sample.disk_free / total) if total else float(sample.disk_free)
    return made
