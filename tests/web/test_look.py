"""Every page in light and dark, wide and narrow: nobody is shut out, and a picture of each is kept to be looked at."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect
from programs import TOKEN
from waiting import eventually
from web.conftest import SHOTS, Site, Visit

PLACES = ("light-wide", "dark-narrow")


@pytest.fixture(scope="module")
def pages(site: Site) -> dict[str, str]:
    """Name to address, with something to see on each."""
    site.api.submit(
        {
            "executor": "sleep",
            "name": "shown",
            "tasks": [f"task-{number}" for number in range(12)],
            "attempts": 3,
            "seconds": {"min": 0.05, "max": 0.4, "seed": 1},
            "reward": [1, 0, 1, 0.5],
            "per_worker_concurrency": 2,
            "agent": "sleeper",
            "model": "acme/large-2",
            "labels": {"category": "text", "difficulty": "hard"},
            "fail": {"task-3": "infra", "task-5": "invalid"},
            "max_requeues": 1,
        }
    )
    site.closed("shown")
    running = {"executor": "sleep", "name": "running", "trials": 300, "seconds": 5, "agent": "sleeper"}
    site.api.submit(running)
    trial = site.api.get("/api/evaluations/shown/trials?limit=1")["trials"][0]["trial"]
    return {
        "dashboard": "/",
        "evaluation": "/evaluations/shown",
        "evaluation-running": "/evaluations/running",
        "trial": f"/evaluations/shown/trials/{trial}",
        "new": "/evaluations/new",
        "new-yaml": "/evaluations/new?mode=yaml",
        "rerun": "/evaluations/new?rerun=shown",
        "workers": "/workers",
        "worker": "/workers/alpha",
        "datasets": "/datasets",
        "dataset": "/datasets/terminal-bench-2",
        "users": "/users",
        "missing": "/evaluations/none-of-this-name",
    }


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, browser: Browser, site: Site, visits: list[Visit]) -> Visit:
    """A browser of one kind."""
    scheme, width = str(request.param).split("-")
    size = {"width": 1280, "height": 900} if width == "wide" else {"width": 390, "height": 844}
    made = Visit(browser, site, color_scheme=scheme, viewport=size)
    made.kind = str(request.param)  # type: ignore[attr-defined]
    visits.append(made)
    return made


def test_every_page(place: Visit, pages: dict[str, str]) -> None:
    SHOTS.mkdir(exist_ok=True)
    page = place.go("/sign-in")
    place.check_access()
    page.screenshot(path=SHOTS / f"sign-in-{place.kind}.png", full_page=True)  # type: ignore[attr-defined]
    place.sign_in(TOKEN)
    for name, address in pages.items():
        place.go(address)
        expect(page.locator("h1")).to_be_visible()
        place.complete()
        place.check_access()
        # No page is wider than what it is looked at through; charts fit themselves to it after a moment.
        eventually(lambda address=address: _check_width(page, address))
        page.screenshot(path=SHOTS / f"{name}-{place.kind}.png", full_page=True)  # type: ignore[attr-defined]


def _check_width(page: Page, address: str) -> bool:
    over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert over <= 0, f"{address} is {over} px too wide"
    return True


def test_everything_is_reached_by_keys(visit: Visit, pages: dict[str, str]) -> None:
    page = visit.sign_in()
    page.keyboard.press("Tab")
    # The first stop leads past the header.
    expect(page.locator(":focus")).to_have_attribute("href", "#main")
    page.keyboard.press("Enter")
    stops = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        stops.add(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.id"))
    assert "shown" in stops
