"""Adding a worker by ssh, in a browser."""

from __future__ import annotations

import re

from playwright.sync_api import expect
from web.conftest import Visit


def test_a_worker_is_added_by_a_form_and_its_steps_come_by_themselves(visit: Visit) -> None:
    page = visit.sign_in(path="/workers")
    page.get_by_text("Add a worker by SSH").click()
    visit.check_access()
    page.get_by_label("Machine", exact=True).fill("root@127.0.0.1")
    # Nobody listens there.
    page.get_by_label("SSH port").fill("1")
    page.get_by_label("Worker id").fill("gpu-1")
    page.get_by_label("Controller address").fill(visit.site.url)
    page.get_by_role("button", name="Add worker").click()
    expect(page).to_have_url(re.compile("/workers/gpu-1/machine$"))
    # Without a reload by hand.
    expect(page.get_by_role("cell", name="Reach it by SSH")).to_be_visible()
    expect(page.get_by_text("Connection refused")).to_be_visible()
    expect(page.get_by_text("ssh -o BatchMode=yes -p 1 root@127.0.0.1 true")).to_be_visible()
    expect(page.get_by_role("button", name="Go on")).to_be_visible()
    visit.check_access()

    page.get_by_text("Take leave of it").click()
    page.get_by_label("The machine is gone: only forget it here").check()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Remove").click()
    expect(page).to_have_url(re.compile("/workers$"))
    expect(page.get_by_role("heading", name="Machines added by SSH")).to_have_count(0)


def test_what_is_wrong_is_said_at_the_form(visit: Visit) -> None:
    page = visit.sign_in(path="/workers")
    page.get_by_text("Add a worker by SSH").click()
    page.get_by_label("Machine", exact=True).fill("not a host")
    page.get_by_role("button", name="Add worker").click()
    expect(page.get_by_role("alert")).to_contain_text("is not [USER@]HOST")
    expect(page.get_by_label("Machine", exact=True)).to_have_value("not a host")
