"""An evaluation from the form to its trials' logs, as a person does it."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

from playwright.sync_api import Locator, Page, Route, expect
from waiting import eventually
from web.conftest import Site, Visit, evaluation_of

YAML = """\
executor: sleep
name: from-yaml
per_worker_concurrency: 2
tasks: [one, two, three]
attempts: 2
seconds: 0.3
reward: [1, 0, 1]
fail:
  two: infra
max_requeues: 0
"""


def test_from_yaml_watched_to_its_end_then_rerun_by_exception(visit: Visit, site: Site) -> None:
    visit.sign_in()
    page = visit.go("/evaluations/new")
    page.get_by_role("button", name="YAML").click()
    page.get_by_label("Configuration").fill(YAML)
    page.get_by_role("button", name="Check").last.click()
    expect(page.locator("#checked")).to_contain_text("6")
    # The form shows the same, and brings it back.
    page.get_by_role("button", name="Form").click()
    expect(page.get_by_label("Name", exact=True)).to_have_value("from-yaml")
    expect(page.get_by_label("Attempts per task")).to_have_value("2")
    page.get_by_label("Attempts per task").fill("3")
    page.get_by_role("button", name="YAML").click()
    expect(page.get_by_label("Configuration")).to_have_value(
        re.compile(r"attempts: 3[\s\S]*fail:|fail:[\s\S]*attempts: 3")
    )
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="from-yaml")).to_be_visible()

    # Live: the page is not loaded again, and says in the end what became of it.
    page.evaluate("window.untouched = true")
    expect(page.locator("#live")).to_contain_text("failed")
    assert page.evaluate("window.untouched") is True
    expect(page.locator("#live")).to_contain_text("6 of 9")

    page.reload()
    page.get_by_label("Rerun EnvironmentStartTimeoutError").check()
    page.get_by_role("button", name="Rerun these").click()
    expect(page.get_by_role("heading", name=re.compile("Rerun of from-yaml"))).to_be_visible()
    # The configuration is edited first: it would else fail again.
    page.get_by_role("button", name="YAML").click()
    text = page.get_by_label("Configuration").input_value()
    page.get_by_label("Configuration").fill(re.sub(r"fail:\n(\s+.*\n?)+", "", text))
    page.get_by_role("button", name="Rerun").last.click()
    expect(page).not_to_have_url(re.compile("/new"))
    again = evaluation_of(page.url)
    assert site.closed(again) == "succeeded"
    status = site.api.status(again)
    assert (status["total"], status["outcomes"]["scored"]) == (9, 9)
    claimed = _claimed(site, status["id"])
    assert len(claimed) == 3
    assert all("two" in trial for trial in claimed)
    assert site.api.status("from-yaml")["outcomes"]["infra_error"] == 3


def _claimed(site: Site, id: str) -> set[str]:
    log = site.folder / "data" / "evaluations" / id / "events.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    return {event["trial"] for event in events if event["kind"] == "claimed"}


def test_from_the_form(visit: Visit, site: Site) -> None:
    visit.sign_in()
    page = visit.go("/evaluations/new")
    held: list[Route] = []
    page.route("**/evaluations/new", lambda route: held.append(route))
    page.get_by_label("Executor").focus()
    page.get_by_label("Executor").select_option("sleep")
    # What is typed before the answer is there would be lost with it: the form takes nothing until then.
    form = page.locator("#new-form")
    assert eventually(lambda: form.evaluate("form => form.inert") and held)
    held[0].continue_()
    page.unroute("**/evaluations/new")
    expect(form).not_to_have_js_property("inert", True)
    expect(page.get_by_label("Executor")).to_have_value("sleep")
    expect(page.get_by_label("Executor")).to_be_focused()
    page.get_by_label("Name", exact=True).fill("from-form")
    page.get_by_label("Attempts per task").fill("2")
    page.get_by_label("Slots of each worker").fill("all")
    page.get_by_role("button", name="Submit").click()
    # What is missing is said at its place; nothing was made.
    expect(page.locator(".problem, .problems").first).to_be_visible()
    page.get_by_role("button", name="YAML").click()
    text = page.get_by_label("Configuration").input_value()
    page.get_by_label("Configuration").fill(text + "\ntrials: 4\nseconds: 0.1\n")
    page.get_by_role("button", name="Form").click()
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="from-form")).to_be_visible()
    assert site.closed("from-form") == "succeeded"
    assert site.api.status("from-form")["total"] == 8


def test_a_form_is_alive_as_soon_as_its_answer_is_there_and_sent_once(visit: Visit, site: Site) -> None:
    visit.sign_in()
    page = visit.go("/evaluations/new")
    # Nobody is as quick as this script, but where a page is slow somebody may be.
    page.evaluate("""document.addEventListener("htmx:afterSwap", () => queueMicrotask(() => {
        const executor = document.querySelector("#executor");
        executor.value = "sleep";
        executor.dispatchEvent(new Event("change", { bubbles: true }));
    }), { once: true })""")
    page.get_by_role("button", name="Add an agent").click()
    expect(page.get_by_label("Executor")).to_have_value("sleep")
    expect(page.get_by_label("Number of tasks")).to_be_visible()
    page.get_by_label("Number of tasks").fill("1")
    page.get_by_label("Name", exact=True).fill("sent-once")
    page.evaluate("""document.addEventListener("htmx:afterRequest", ({ detail }) => {
        const { inert } = document.querySelector("#new-form");
        if (detail.xhr.getResponseHeader("HX-Redirect")) sessionStorage.inert = inert;
    })""")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="sent-once")).to_be_visible()
    assert page.evaluate("sessionStorage.inert") == "true"


def watch_answers(page: Page, path: str) -> Locator:
    """Count the answers to htmx from ``path`` from now on, in an attribute of what is returned."""
    page.evaluate(
        """path => document.addEventListener("htmx:afterRequest", ({ detail }) => {
            const { dataset } = document.documentElement;
            if (detail.pathInfo.requestPath.includes(path)) dataset.answers = Number(dataset.answers || 0) + 1;
        })""",
        path,
    )
    return page.locator("html")


def test_what_is_asked_for_comes_though_its_place_asks_by_itself(visit: Visit, site: Site) -> None:
    id = site.api.submit({"executor": "sleep", "name": "filtered", "tasks": ["one", "two"], "seconds": 600})
    visit.sign_in()
    page = visit.page
    page.clock.install()
    visit.go("/evaluations/filtered")
    held: list[Route] = []
    page.route("**/evaluations/*search=two*", lambda route: held.append(route))
    page.get_by_label("Search").fill("two")
    page.clock.run_for(1000)
    # Asked through the browser, as its word comes only while something is asked of it.
    assert eventually(lambda: page.evaluate("true") and held)
    polled = watch_answers(page, "part=trials")
    page.clock.run_for(16_000)
    expect(polled).to_have_attribute("data-answers", "1")
    held[0].continue_()
    expect(page.locator("#trials").get_by_role("link", name=re.compile("one__"))).to_have_count(0)
    expect(page.locator("#trials").get_by_role("link", name=re.compile("two__"))).to_have_count(1)
    site.api.cancel(id)
    site.closed(id)


def test_a_press_is_a_click_though_its_place_is_drawn_anew(visit: Visit, site: Site) -> None:
    visit.sign_in()
    page = visit.page
    page.clock.install()
    visit.go("/workers")
    polled = watch_answers(page, "part=list")
    page.get_by_role("button", name="Drain alpha").hover()
    page.mouse.down()
    page.clock.run_for(6000)
    expect(polled).to_have_attribute("data-answers", "1")
    page.mouse.up()
    site.api.await_worker("alpha", "draining")
    page.get_by_role("button", name="Resume alpha").click()
    site.api.await_worker("alpha", "online")


def test_heat_map_leads_to_the_trial(visit: Visit, site: Site) -> None:
    site.api.submit({"executor": "sleep", "name": "heat", "tasks": ["cold", "hot"], "attempts": 2, "seconds": 0.1})
    site.closed("heat")
    visit.sign_in()
    page = visit.go("/evaluations/heat")
    plot = visit.complete().locator("#heat-plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box
    # The cells stand right of the names of the tasks, below the numbers of the attempts.
    places = [(box["x"] + x, box["y"] + y) for x, y in itertools.product(range(60, 200, 20), range(20, 60, 10))]

    def on_a_cell() -> bool:
        return any(_pointed(page, x, y) for x, y in places)

    eventually(on_a_cell, 60)
    page.mouse.down()
    page.mouse.up()
    expect(page).to_have_url(re.compile("/trials/"))
    expect(page.get_by_role("heading", level=1)).to_contain_text(re.compile("(cold|hot)__"))
    # The same by keys and for those who do not see it.
    visit.go("/evaluations/heat")
    figure = page.locator("figure", has=page.locator("#heat-plot"))
    figure.get_by_text("As a table").click()
    figure.get_by_role("link", name="hot").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("hot__")


def _pointed(page: Page, x: float, y: float) -> bool:
    """Go to a place of the heat map; whether a click there leads on."""
    page.mouse.move(x, y)
    return bool(page.evaluate("document.querySelector('#heat-plot > div').style.cursor === 'pointer'"))


def test_a_log_grows_while_it_is_looked_at_then_cancel(visit: Visit, site: Site, tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = f"echo begun; while [ ! -e {go} ]; do sleep 0.1; done; echo '\033[31mred\033[0m <b>plain</b>'; sleep 300"
    id = site.api.submit({"executor": "command", "name": "tailed", "tasks": [{"name": "slow", "command": command}]})
    visit.sign_in()
    page = visit.go("/evaluations/tailed")
    page.locator("#trials").get_by_role("link", name=re.compile("slow__")).click()
    page.get_by_role("link", name="Logs").or_(page.get_by_role("tab", name="Logs")).first.click()
    expect(page).to_have_url(re.compile("view=logs"))

    def shown() -> bool:
        choice = page.locator("select[name=file]")
        if not choice.count():
            page.reload()
            return False
        names = [str(value) for value in choice.locator("option").evaluate_all("all => all.map(one => one.value)")]
        wanted = next((name for name in names if name.endswith("stdout.txt")), None)
        if wanted is None:
            page.reload()
            return False
        choice.select_option(wanted)
        page.get_by_role("button", name="Show").click()
        return True

    eventually(shown, 60, pause=0.5)
    expect(page.locator("#log")).to_contain_text("begun")
    go.touch()
    # By itself, with its colours as text of the page and nothing of it run.
    expect(page.locator("#log")).to_contain_text("red <b>plain</b>")
    assert "\033" not in page.locator("#log").inner_text()
    page = visit.go(f"/evaluations/{id}")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#live")).to_contain_text("cancelled")


def test_drain_a_worker_and_take_it_back(visit: Visit, site: Site) -> None:
    visit.sign_in()
    page = visit.go("/workers")
    page.get_by_role("link", name="beta").first.click()
    page.get_by_role("button", name="Drain").click()
    site.api.await_worker("beta", "draining")
    expect(page.locator("#live")).to_contain_text("draining")
    page.get_by_role("button", name="Resume").click()
    site.api.await_worker("beta", "online")
    expect(page.locator("#live")).to_contain_text("online")
