"""A trial in a real browser: a log that grows while it is read, a long trajectory, files that stay files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect
from waiting import eventually
from web.conftest import SHOTS, Site, Visit

LOG = (
    r"printf '\033[31mred\033[0m <b>bold</b>\n'; "
    "for n in $(seq 1 3000); do echo line $n; test -e {gate} && break; sleep 0.1; done; echo last"
)


SCROLL_UP = """log => new Promise((done) => {
  new MutationObserver((_, observer) => {
    observer.disconnect();
    log.dispatchEvent(new WheelEvent("wheel", { deltaY: -1, bubbles: true }));
    const follow = document.querySelector("[data-follow]");
    requestAnimationFrame(() => requestAnimationFrame(() => done(follow.checked)));
  }).observe(log, { childList: true });
})"""


def submit(site: Site, name: str, command: str) -> str:
    """Start a trial; returns the address of its page."""
    task = {"name": name, "command": command}
    id = site.api.submit({"executor": "command", "name": name, "tasks": [task]})
    (trial,) = site.api.get(f"/api/evaluations/{id}/trials")["trials"]
    return f"/evaluations/{name}/trials/{trial['trial']}"


def test_a_log_is_followed_live_to_its_end(visit: Visit, site: Site, tmp_path: Path) -> None:
    address = submit(site, "grows", LOG.format(gate=tmp_path / "gate"))
    visit.sign_in()
    page = visit.go(address)
    log = page.locator("#log")
    expect(log).to_contain_text("line 5")
    expect(log.locator(".t-f1")).to_have_text("red")
    expect(log).to_contain_text("<b>bold</b>")
    expect(page.locator("[data-tail-state]")).to_have_text("live")
    seen = log.inner_text()
    eventually(lambda: len(log.inner_text()) > len(seen) + 30, 60, pause=0.2)
    # It follows, until somebody scrolls up, be it before word of its own scrolling has come.
    eventually(lambda: log.evaluate("l => l.scrollTop > 0"), 60, pause=0.2)
    assert log.evaluate(SCROLL_UP) is False
    page.get_by_label("Follow").check()
    log.hover()
    page.mouse.wheel(0, -100_000)
    expect(page.get_by_label("Follow")).not_to_be_checked()
    eventually(lambda: log.evaluate("l => l.scrollTop") == 0, 60, pause=0.2)
    eventually(lambda: len(log.inner_text()) > len(seen) + 60, 60, pause=0.2)
    assert log.evaluate("l => l.scrollTop") == 0
    visit.check_access()
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / "trial-live.png")
    (tmp_path / "gate").touch()
    expect(page.locator("[data-tail-state]")).to_have_text("ended")
    expect(page.locator("#head")).to_contain_text("The trial has ended.")
    page.get_by_role("link", name="Show its result").click()
    expect(page.locator("#head")).to_contain_text("scored")
    expect(page.locator("#log")).to_contain_text("last")


def steps(count: int) -> list[dict[str, Any]]:
    return [
        {"step_id": 1, "source": "user", "message": "<script>document.title = 'run'</script>Sort the numbers."},
        *(
            {
                "step_id": n,
                "source": "agent",
                "message": f"This is step {n}.",
                "tool_calls": [
                    {
                        "tool_call_id": "c",
                        "function_name": "bash" if n % 4 else "edit",
                        "arguments": {"command": f"sort -n in.txt | head -{n}"},
                    }
                ],
                "observation": {"results": [{"source_call_id": "c", "content": "1\n2\n3\n" * 20}]},
            }
            for n in range(2, count + 1)
        ),
    ]


def test_a_trajectory_of_two_thousand_steps_is_read(visit: Visit, site: Site) -> None:
    address = submit(site, "long", "true")
    assert site.closed("long") == "succeeded"
    folder = site.folder / "data" / "jobs" / "long" / address.rpartition("/")[2]
    document = {"schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "1"}, "steps": steps(2000)}
    (folder / "agent" / "trajectory.json").write_text(json.dumps(document))
    visit.sign_in()
    page = visit.go(address)
    title = page.title()
    expect(page.locator("article.step")).to_have_count(40)
    visit.check_access()
    # Folded until somebody wants to see it.
    call = page.locator("#step-2 details.call")
    expect(call.locator("pre").first).not_to_be_visible()
    call.locator("summary").click()
    expect(call.locator("pre").first).to_be_visible()
    page.get_by_role("button", name="Unfold all").click()
    expect(page.locator("#step-9 details.call")).to_have_attribute("open", "")
    # Further ones come when their place comes into view.
    for number in (80, 120, 160, 200):
        eventually(lambda number=number: _scrolled_to(page, number), 60)
    assert page.title() == title
    page.get_by_label("Go to step").fill("1990")
    page.get_by_role("button", name="Go", exact=True).click()
    expect(page.locator("#step-1990")).to_be_visible()
    expect(page.locator("#step-2000")).to_be_attached()
    page.get_by_role("link", name="edit", exact=True).click()
    expect(page.get_by_role("heading", name=re.compile("Steps that call edit"))).to_contain_text("500")
    expect(page.locator("article.step").first).to_have_id("step-4")


def _scrolled_to(page: Page, number: int) -> bool:
    """Scroll on; what comes into view grows, so that once may not be enough."""
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    return page.locator(f"#step-{number}").count() > 0


def test_a_page_of_the_agents_making_does_not_run(visit: Visit, site: Site) -> None:
    address = submit(site, "made", "true")
    assert site.closed("made") == "succeeded"
    folder = site.folder / "data" / "jobs" / "made" / address.rpartition("/")[2] / "artifacts"
    folder.mkdir()
    script = "<script>document.body.innerHTML = 'run'; fetch('/api/users')</script>"
    (folder / "page.html").write_text(f"<!doctype html><body onload='{script}'>{script}<h1>made</h1>")
    (folder / "page.svg").write_text(f'<svg xmlns="http://www.w3.org/2000/svg">{script}<text y="9">made</text></svg>')
    visit.sign_in()
    for name in ("page.html", "page.svg"):
        page = visit.go(f"{address}?view=files&file=artifacts/{name}")
        expect(page.locator("#log")).to_contain_text("<script>")
        asked: list[str] = []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        visit.go(f"{address}/files/artifacts/{name}")
        assert page.evaluate("document.contentType") == "text/plain"
        assert "made" in page.inner_text("body")
        assert page.inner_text("body") != "run"
        assert not [url for url in asked if "/api/" in url]
