"""The real all-in-one and a real browser: one of each for a file of tests."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import require
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, expect, sync_playwright
from programs import TOKEN, Api, Program, free_port
from waiting import eventually

SHOTS = Path(__file__).parent / "screenshots"
AXE = Path(__file__).parent / "axe-4.14.1.min.js"
WORKERS = ("--worker", "alpha=2", "--worker", "beta=1")
#: As a part that asks by itself would replace nodes below axe's hands, no answer is taken in meanwhile.
LOOK = """async () => {
  const hold = (event) => event.preventDefault();
  document.addEventListener("htmx:beforeSwap", hold);
  try { return (await axe.run()).violations } finally { document.removeEventListener("htmx:beforeSwap", hold) }
}"""
#: Milliseconds the browser waits for a page, and for what a test expects of it: on a crowded machine both are slow.
PATIENCE_MS = 60_000


class Site:
    """An ``aeo up`` with two workers."""

    def __init__(self, folder: Path):
        port = free_port()
        self.url, self.folder = f"http://127.0.0.1:{port}", folder
        self.api = Api(self.url)
        self.program = Program(
            ["up", "--port", str(port), "--shared-root", str(folder / "data"), "--poll-interval", "1", *WORKERS],
            folder,
        )

    def ready(self) -> Site:
        """Wait until both workers take work."""
        eventually(self.api.healthy, 60, pause=0.1)
        for id in ("alpha", "beta"):
            self.api.await_worker(id, timeout=60)
        return self

    def closed(self, id: str, *, timeout: float = 60) -> str:
        """Wait until an evaluation is closed; returns its last state."""
        return eventually(lambda: self._final(id), timeout, pause=0.2)

    def _final(self, id: str) -> str:
        state = str(self.api.status(id)["state"])
        return state if state in ("succeeded", "failed", "cancelled") else ""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A running all-in-one."""
    made = Site(tmp_path_factory.mktemp("site"))
    try:
        yield made.ready()
    finally:
        made.api.close()
        made.program.destroy()


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    """The library's driver process."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as made:
        yield made


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """Debian's Chromium."""
    path = shutil.which("chromium")
    require(path, "chromium is installed")
    arguments = ["--no-sandbox", "--disable-gpu"]
    made = playwright.chromium.launch(executable_path=path, args=arguments, timeout=PATIENCE_MS)
    yield made
    made.close()


class Visit:
    """One person's browser; what its console says against the pages fails the test at its end."""

    def __init__(self, browser: Browser, site: Site, **context: object):
        self.site = site
        self.context: BrowserContext = browser.new_context(**{"locale": "en", **context})  # type: ignore[arg-type]
        self.context.set_default_timeout(PATIENCE_MS)
        self.page: Page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))

    def _hear(self, message: ConsoleMessage) -> None:
        # An answer that is an error is what some tests ask for; the browser's own words about it are no fault.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.faults.append(message.text)

    def sign_in(self, token: str = TOKEN, path: str = "/") -> Page:
        """By the address that the controller prints."""
        self.go(f"{path}?token={token}")
        assert "token" not in self.page.url
        return self.page

    def go(self, path: str) -> Page:
        """Open a page of the site."""
        self.page.goto(self.site.url + path)
        return self.page

    def complete(self) -> Page:
        """Wait for the parts that come after the page."""
        expect(self.page.locator("[hx-trigger=load]")).to_have_count(0)
        for plot in self.page.locator("[data-chart]").all():
            expect(plot.locator("canvas, svg, p").first).to_be_visible()
        return self.page

    def check_access(self) -> None:
        """See that axe-core finds no serious fault on the page as it is."""
        # Playwright's own way around the page's content security policy: evaluated, not loaded by the page.
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate(LOOK)
        serious = [
            (item["id"], [node["html"][:160] for node in item["nodes"]][:4])
            for item in found
            if item["impact"] in ("serious", "critical")
        ]
        assert serious == [], f"{self.page.url}: {serious}"


@pytest.fixture
def visits(browser: Browser, site: Site) -> Iterator[list[Visit]]:
    """Open browsers by `visit`; each is closed at the end, and must have had nothing to complain of."""
    made: list[Visit] = []
    yield made
    for visit in made:
        visit.context.close()
    faults = [fault for visit in made for fault in visit.faults]
    assert faults == []


@pytest.fixture
def visit(browser: Browser, site: Site, visits: list[Visit]) -> Visit:
    """A wide, light, English one that has not signed in."""
    made = Visit(browser, site, viewport={"width": 1280, "height": 900}, color_scheme="light")
    visits.append(made)
    return made


def evaluation_of(url: str) -> str:
    """The id or name in an evaluation's address."""
    found = re.search(r"/evaluations/([^/?#]+)", url)
    assert found, url
    return found[1]
