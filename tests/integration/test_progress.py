"""The time to the end, as people are told it."""

from __future__ import annotations

from pathlib import Path

from engine import register, running, submit
from waiting import eventually

from aeo import evaluations, progress
from aeo.core import estimate
from aeo.core.model import EvaluationState
from aeo.progress import EvaluationDetail
from aeo.site import Site
from aeo.store import evaluations as store


def test_the_time_to_the_end_rests_on_finished_trials(site: Site, tmp_path: Path) -> None:
    register(site, "a", slots=1)
    seen: list[EvaluationDetail] = []

    def all_but_one() -> EvaluationDetail | None:
        seen.append(progress.detail(site, "off"))
        return seen[-1] if seen[-1].status.done == 5 and seen[-1].running else None

    with running(site, tmp_path, "a") as pool:
        # Planned to take a hundred times as long as they do.
        config = {"name": "off", "tasks": 6, "seconds": [0.3] * 5 + [600], "estimate": 30}
        evaluation = submit(site, config)
        last = eventually(all_but_one, 30)
        assert last is not None
        assert last.eta_seconds is not None
        assert last.eta_seconds >= 1
        for detail in seen:
            if detail.status.done < estimate.ENOUGH - 1:
                assert detail.eta_seconds is None
            if detail.eta_seconds is not None:
                assert detail.eta_seconds < 15
        assert store.move(site.db, evaluation.id, EvaluationState.PAUSED)
        assert progress.detail(site, "off").eta_seconds is None
        evaluations.cancel(site, "off")
        assert progress.detail(site, "off").eta_seconds is None
        for worker in pool.workers.values():
            worker.stopping.set()
