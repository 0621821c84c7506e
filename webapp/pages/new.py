"""A new evaluation: a form and the text behind it, which show the same; checked, then submitted.

The text is what counts. The form sends the text it was made of along, so that what it does not show is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from flask import Blueprint, Response, make_response, redirect, render_template, request
from flask_babel import gettext as _
from werkzeug.wrappers import Response as AnyResponse

from aeo import drafts, executors, records
from aeo.checks import Check
from aeo.core.errors import AeoError, InputError, Problem, Unavailable
from aeo.core.names import check_name
from aeo.drafts import Draft
from aeo.executors.forms import AgentRow
from aeo.store import evaluations as store
from webapp.auth import Role, current_user, needs
from webapp.pages import new_rerun, new_sent
from webapp.pages.new_rerun import Rerun
from webapp.site import current_site

#: Names of tasks written out on the page.
SHOWN = 200

bp = Blueprint("new_page", __name__)


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the page shows."""

    text: str
    #: What is typed in the form; None shows the text.
    draft: Draft | None
    check: Check | None = None
    problems: tuple[Problem, ...] = ()
    rerun: Rerun = field(default_factory=Rerun)
    #: Index of the row of agents that was just added.
    added: int | None = None


@bp.get("/evaluations/new")
@needs(Role.MEMBER)
def show() -> Response:
    """Show an empty form, or one with what an earlier evaluation was."""
    asked = request.args
    rerun = new_rerun.read(current_site(), asked.get("rerun", ""), asked.getlist("error"), asked.getlist("outcome"))
    earlier = rerun.id or request.args.get("clone", "")
    text = _of(earlier) if earlier else _empty()
    return _answer(_opened(text, rerun, request.args.get("mode", "")))


@bp.post("/evaluations/new")
@needs(Role.MEMBER)
def change() -> AnyResponse:
    """Do what a button says: switch, add or remove a row, check, submit."""
    sent, do = request.form, request.form.get("do", "check")
    rerun = new_rerun.read(current_site(), sent.get("rerun", ""), sent.getlist("error"), sent.getlist("outcome"))
    page = Page(text=new_sent.unix(sent.get("text", "")), draft=None, rerun=rerun)
    if sent.get("mode") == "form":
        draft = new_sent.draft(sent)
        # Rows are counted without the empty ones where problems name them.
        rows = new_sent.typed(draft.values.agents) if do in ("check", "submit") else draft.values.agents
        page = replace(page, draft=_with_rows(draft, rows))
    try:
        if do == "submit":
            return _submitted(page)
        return _answer(_changed(page, do))
    except (InputError, Unavailable) as error:
        return _answer(replace(page, problems=_problems(error)), 422)


@bp.get("/evaluations/new/count")
@needs(Role.MEMBER)
def count() -> str:
    """The line that says how many tasks the filters leave."""
    draft = new_sent.draft(request.args)
    form = drafts.form(draft.executor)
    return render_template("parts/new_count.html", count=new_sent.count(form, draft) if form else None, shown=SHOWN)


def _changed(page: Page, do: str) -> Page:
    if do == "form":
        return _opened(page.text if page.draft is None else _text(page), page.rerun, "")
    if do == "yaml":
        return replace(page, text=_text(page), draft=None)
    if do == "check":
        return replace(page, check=_checked(page))
    if page.draft is None:
        return page
    rows = page.draft.values.agents
    if do == "executor":
        return _opened(_text(page), page.rerun, "")
    if do == "add":
        return replace(page, draft=_with_rows(page.draft, (*rows, AgentRow())), added=len(rows))
    if do.startswith("remove."):
        kept = tuple(row for index, row in enumerate(rows) if str(index) != do.removeprefix("remove."))
        return replace(page, draft=_with_rows(page.draft, kept))
    return page


def _with_rows(draft: Draft, rows: tuple[AgentRow, ...]) -> Draft:
    return replace(draft, values=replace(draft.values, agents=rows))


def _text(page: Page) -> str:
    """The text that the page stands for."""
    if page.draft is None:
        return page.text
    base = drafts.read(page.text)
    draft = _with_rows(page.draft, new_sent.typed(page.draft.values.agents))
    if frozenset(draft.workers) == frozenset(base.workers):
        # Boxes have no order.
        draft = replace(draft, workers=base.workers)
    offers = new_sent.offers(current_site(), draft.executor)
    chosen = next((item.config for item in offers if item.text == draft.values.dataset), None)
    return drafts.write(draft, page.text, chosen)


def _opened(text: str, rerun: Rerun, mode: str) -> Page:
    """Show a text as a form; one that is none stays a text, with what is wrong with it."""
    if mode == "yaml":
        return Page(text=text, draft=None, rerun=rerun)
    try:
        return Page(text=text, draft=drafts.read(text), rerun=rerun)
    except InputError as error:
        return Page(text=text, draft=None, rerun=rerun, problems=error.problems)


def _checked(page: Page) -> Check:
    return new_rerun.check(current_site(), _text(page), page.rerun)


def _submitted(page: Page) -> AnyResponse:
    text = _text(page)
    try:
        id = new_rerun.submit(current_site(), text, page.rerun, owner=str(current_user.name))
    except InputError as error:
        # Submitting stops at the first thing that is wrong; the person wants all of it.
        check = _checked(page)
        return _answer(replace(page, check=check, problems=() if check.problems else error.problems), 422)
    target = f"{request.script_root}/evaluations/{id}"
    if "HX-Request" in request.headers:
        return Response("", 200, {"HX-Redirect": target})
    return redirect(target, 303)


def _of(id_or_name: str) -> str:
    """The text of an earlier evaluation, under a new name."""
    site = current_site()
    status = store.find(site.db, check_name(id_or_name, "evaluation", field="clone"))
    evaluation = records.read(site.shared.evaluation(status.id)).evaluation
    return drafts.again(evaluation, taken=lambda name: site.shared.job(name).exists())


def _empty() -> str:
    executor = request.args.get("executor", executors.PLAIN)
    executor = executor if executor in executors.installed() else executors.PLAIN
    text = drafts.new(executor)
    offers = new_sent.offers(current_site(), executor)
    asked = next((item for item in offers if item.name == request.args.get("dataset")), None)
    if asked is None:
        return text
    draft = drafts.read(text)
    return drafts.write(replace(draft, values=replace(draft.values, dataset=asked.text)), text, asked.config)


def _problems(error: AeoError) -> tuple[Problem, ...]:
    return error.problems if isinstance(error, InputError) else (Problem(message=str(error), fix=_("Try again.")),)


def _answer(page: Page, status: int = 200) -> Response:
    site = current_site()
    draft = page.draft
    executor = draft.executor if draft else page.check.executor if page.check else ""
    form = drafts.form(executor) if draft else None
    problems = page.problems + (page.check.problems if page.check else ())
    at: dict[str, list[Problem]] = {}
    for problem in problems:
        at.setdefault(_word(problem, draft), []).append(problem)
    rendered = render_template(
        "new.html",
        page=page,
        draft=draft,
        form=form,
        check=page.check,
        choices=new_rerun.choices(site, page.rerun),
        problems=problems,
        at=at,
        executors=executors.installed(),
        offers=new_sent.offers(site, executor) if draft else [],
        workers=new_sent.choices(site, draft, page.check) if draft else [],
        hidden=drafts.hidden(page.text) if draft else (),
        count=new_sent.count(form, draft) if draft and form else None,
        shown=SHOWN,
    )
    # htmx shows only what went well.
    return make_response(rendered, 200 if "HX-Request" in request.headers else status)


def _word(problem: Problem, draft: Draft | None) -> str:
    """The field on the page at which a problem is shown; "" where it has none."""
    if draft is None:
        return ""
    word = drafts.word(problem.field, draft.executor)
    row, _dot, index = word.partition(".")
    if row == "agents" and not (index.isdecimal() and int(index) < len(draft.values.agents)):
        return "agents" if row == "agents" else word
    return word
