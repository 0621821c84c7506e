"""Who comes in, in which language, and what each may do."""

from __future__ import annotations

import re

import httpx
from playwright.sync_api import Browser, expect
from programs import TOKEN
from web.conftest import Site, Visit


def test_sign_in_by_form_and_out(visit: Visit) -> None:
    page = visit.go("/workers")
    expect(page).to_have_url(re.compile("/sign-in"))
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("wrong")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{visit.site.url}/workers")
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(re.compile("/sign-in"))
    visit.go("/workers")
    expect(page).to_have_url(re.compile("/sign-in"))


def test_the_token_leaves_the_address(visit: Visit) -> None:
    page = visit.sign_in(path="/workers")
    assert page.url == f"{visit.site.url}/workers"
    assert TOKEN not in page.content()


def _add(visit: Visit, name: str, role: str) -> str:
    page = visit.go("/users")
    page.get_by_role("textbox", name="Name").fill(name)
    page.get_by_label("Role").select_option(role)
    page.get_by_role("button", name="Add", exact=True).click()
    token = page.get_by_role("status").locator("code").inner_text()
    visit.go("/users")
    assert token not in page.content()
    return token


def test_a_viewer_looks_and_a_member_changes_their_own(
    visit: Visit, visits: list[Visit], browser: Browser, site: Site
) -> None:
    visit.sign_in()
    tokens = {name: _add(visit, name, role) for name, role in (("vera", "viewer"), ("mona", "member"))}
    theirs = site.api.submit({"executor": "sleep", "name": "of-operator", "trials": 2, "seconds": 900})

    viewer = Visit(browser, site)
    visits.append(viewer)
    page = viewer.sign_in(tokens["vera"], "/evaluations/of-operator")
    expect(page.get_by_role("heading", name="of-operator")).to_be_visible()
    assert page.get_by_role("button", name="Cancel").count() == 0
    assert page.get_by_role("link", name="Clone").count() == 0
    assert page.get_by_role("link", name="Users").count() == 0
    viewer.go("/evaluations/new")
    expect(page.get_by_role("button", name="Submit")).to_have_count(0)

    member = Visit(browser, site)
    visits.append(member)
    page = member.sign_in(tokens["mona"], "/evaluations/of-operator")
    assert page.get_by_role("button", name="Cancel").count() == 0
    mine = httpx.post(
        f"{site.url}/api/evaluations",
        json={"config": {"executor": "sleep", "name": "of-mona", "trials": 2, "seconds": 900}},
        headers={"Authorization": f"Bearer {tokens['mona']}"},
        trust_env=False,
        timeout=60,
    )
    assert mine.status_code == 201
    member.go("/evaluations/of-mona")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("mona").first).to_be_visible()
    assert site.closed("of-mona") == "cancelled"
    # What the page hides is refused, too.
    refused = page.request.post(f"{site.url}/api/evaluations/{theirs}/cancel", headers={"X-CSRF-Token": _csrf(page)})
    assert refused.status == 403
    site.api.cancel(theirs)
    site.closed(theirs)


def _csrf(page: object) -> str:
    token = page.locator("input[name=csrf_token]").first.get_attribute("value")  # type: ignore[attr-defined]
    assert token
    return str(token)


def test_chinese_by_the_browser_and_by_the_switch(
    visit: Visit, visits: list[Visit], browser: Browser, site: Site
) -> None:
    chinese = Visit(browser, site, locale="zh-CN")
    visits.append(chinese)
    page = chinese.sign_in()
    expect(page.locator("html")).to_have_attribute("lang", re.compile("^zh"))
    expect(page.get_by_role("link", name="新建评测").first).to_be_visible()
    page.get_by_role("link", name="English").or_(page.get_by_role("button", name="English")).first.click()
    expect(page.get_by_role("link", name="New evaluation").first).to_be_visible()
    visit.sign_in()
    visit.page.get_by_text("中文").click()
    expect(visit.page.locator("html")).to_have_attribute("lang", re.compile("^zh"))
    # It is kept.
    visit.go("/workers")
    expect(visit.page.locator("html")).to_have_attribute("lang", re.compile("^zh"))
