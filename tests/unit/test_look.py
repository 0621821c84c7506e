"""What pages are made of: static files, templates without inline code, languages, compression."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
from apiflask import APIFlask
from babel.messages import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.frontend import parse_mapping_cfg
from babel.messages.mofile import read_mo
from babel.messages.pofile import read_po
from flask import render_template_string
from flask.testing import FlaskClient
from redis import ConnectionPool

import webapp
from aeo.config import Config
from aeo.core.model import EvaluationState, Outcome, TrialState, WorkerState
from aeo.layout import Shared
from aeo.site import Site
from aeo.store.connection import open_pool
from webapp import create_app
from webapp.languages import LANGUAGES
from webapp.pages import drawing, words

ROOT = Path(webapp.__file__).parent
STATIC = ROOT / "static"
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
TOKEN = "token-of-the-look"
#: What a page may load of scripts, gzip'd, in all.
MOST_BYTES = 400_000


@pytest.fixture
def app(tmp_path: Path) -> Iterator[APIFlask]:
    pool = ConnectionPool(
        connection_class=fakeredis.FakeRedisConnection, server=fakeredis.FakeServer(), decode_responses=True
    )
    db = open_pool(pool)
    yield create_app(Site(config=Config(auth_token=TOKEN), shared=Shared(tmp_path, tmp_path / "jobs"), db=db))
    db.close()


@pytest.fixture
def client(app: APIFlask) -> FlaskClient:
    client = app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {TOKEN}"
    return client


def rendered(app: APIFlask, source: str, path: str = "/", **values: Any) -> str:
    with app.test_request_context(path, environ_base={"HTTP_AUTHORIZATION": f"Bearer {TOKEN}"}):
        return render_template_string('{% import "macros.html" as ui with context %}' + source, **values)


# Static files


def test_every_static_file_a_template_names_exists_with_its_version() -> None:
    pattern = re.compile(r"url_for\(\s*'static',\s*filename='([^']+)'(?:\s*~\s*static_version\s*~\s*'([^']+)')?")
    found = set()
    for template in TEMPLATES:
        text = template.read_text().replace('"', "'")
        for start, end in pattern.findall(text):
            name = f"{start}{words.STATIC_VERSION}{end}" if end else start
            assert (STATIC / name).is_file(), f"{template.name} names {name}"
            assert re.search(r"-\d+(\.\d+)*\.", name), f"{name} has no version, and browsers keep it for a year"
            found.add(name)
        assert text.count("'static'") == len(pattern.findall(text)), f"{template.name} names a file in another way"
    names = {file.name for file in STATIC.iterdir() if file.suffix != ".txt"}
    assert found == names, "a static file nobody uses, or one that scripts load by themselves"


def test_scripts_of_others_have_their_licence_beside_them() -> None:
    for library in ("htmx", "echarts"):
        (script,) = STATIC.glob(f"{library}-*.min.js")
        licence = STATIC / f"{script.name.removesuffix('.min.js')}.LICENSE.txt"
        assert len(licence.read_text()) > 500


def test_all_scripts_together_are_small() -> None:
    sizes = {file.name: len(gzip.compress(file.read_bytes(), mtime=0)) for file in STATIC.glob("*.js")}
    assert sum(sizes.values()) < MOST_BYTES, sizes


def test_scripts_need_no_rights_that_the_policy_does_not_give() -> None:
    for file in STATIC.glob("*.js"):
        text = file.read_text()
        assert not re.search(r"""setAttribute\(\s*["']style["']""", text), file.name
        if not file.name.startswith("htmx"):  # it asks whether it may, and is told no
            assert not re.search(r"\bnew Function\b|\beval\(", text), file.name
    assert '"allowEval":false' in (ROOT / "templates" / "base.html").read_text()


def test_light_and_dark_know_the_same_colours() -> None:
    css = next(STATIC.glob("aeo-*.css")).read_text()
    blocks = [dict(re.findall(r"--([\w-]+):\s*([^;]+);", block)) for block in re.findall(r":root[^{]*\{([^}]*)\}", css)]
    light, system_dark, chosen_dark = blocks
    assert system_dark == chosen_dark
    assert light.keys() == chosen_dark.keys()
    used = set(re.findall(r"var\(--([\w-]+)\)", css))
    assert used <= light.keys()


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 2], ids=["light", "dark"])
def test_text_stands_out_from_its_ground(theme: int) -> None:
    css = next(STATIC.glob("aeo-*.css")).read_text()
    block = re.findall(r":root[^{]*\{([^}]*)\}", css)[theme]
    colours = dict(re.findall(r"--([\w-]+):\s*(#\w{6});", block))
    pairs = [(text, ground) for text in ("text", "faint", "accent") for ground in ("ground", "card", "hover", "sunk")]
    pairs += [(kind, f"{kind}-ground") for kind in ("good", "bad", "wait", "calm", "odd")]
    pairs += [("text", f"{kind}-ground") for kind in ("good", "bad", "wait", "calm")]
    pairs += [("faint", "bad-ground"), ("accent-text", "accent"), ("good", "card"), ("bad", "card"), ("wait", "card")]
    for text, ground in pairs:
        high, low = sorted((_luminance(colours[text]), _luminance(colours[ground])), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"{text} on {ground}"


@pytest.mark.parametrize("kind", [*Outcome, *TrialState, *EvaluationState, *WorkerState])
def test_every_state_has_a_name_in_every_language(app: APIFlask, kind: Any) -> None:
    with app.test_request_context("/?lang=zh"):
        assert words.name(kind) != kind.value or kind.value == "done"
    if kind not in (TrialState.DONE,):
        assert f".is-{kind.value}" in next(STATIC.glob("aeo-*.css")).read_text()


# Templates


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_templates_have_nothing_inline(template: Path) -> None:
    text = re.sub(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}", "", template.read_text(), flags=re.DOTALL)
    assert not re.search(r"<script(?![^>]*\ssrc=)", text), "a script of its own"
    assert not re.search(r"<style\b|\sstyle\s*=", text), "a style of its own"
    assert not re.search(r"<[^>]*\son\w+\s*=", text), "a handler of its own"
    assert "hx-on" not in text, "htmx would have to evaluate it"
    assert not re.search(r"""hx-vals=['"]js:|hx-trigger=['"][^'"]*\[""", text), "htmx would have to evaluate it"
    assert "javascript:" not in text


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_every_form_that_posts_has_its_token(template: Path) -> None:
    for form in re.findall(r"<form\b[^>]*>.*?</form>", template.read_text(), re.DOTALL):
        if re.search(r"""method=["']post""", form.split(">")[0], re.IGNORECASE):
            assert "ui.csrf()" in form or "csrf_token" in form


def test_a_pager_keeps_the_query(app: APIFlask) -> None:
    page = rendered(app, "{{ ui.pager(50, 50, 220) }}", "/?search=a%26b&offset=50&part=rows")
    assert re.findall(r'href="([^"]+)"', page) == [
        "/?search=a%26b",
        "/?search=a%26b",
        "/?search=a%26b&amp;offset=100",
        "/?search=a%26b&amp;offset=200",
    ]
    assert "51–100 of 220" in page


def test_the_last_page_has_nothing_next(app: APIFlask) -> None:
    page = rendered(app, "{{ ui.pager(200, 50, 220) }}", "/?offset=200")
    assert 'rel="next"' not in page
    assert 'rel="prev"' in page
    assert "201–220 of 220" in page
    assert "0–0 of 0" in rendered(app, "{{ ui.pager(0, 50, 0) }}")


@pytest.mark.parametrize(
    ("query", "sort", "link"),
    [
        ("", None, "/?sort=cost"),
        ("?sort=cost&offset=50", "ascending", "/?sort=cost&amp;desc=1"),
        ("?sort=cost&desc=1", "descending", "/?sort=cost"),
        ("?sort=name&desc=1", None, "/?sort=cost"),
    ],
)
def test_a_second_click_turns_the_order(app: APIFlask, query: str, sort: str | None, link: str) -> None:
    page = rendered(app, "{{ ui.sort_header('Cost', 'cost') }}", f"/{query}")
    assert f'href="{link}"' in page
    assert re.findall(r'aria-sort="(\w+)"', page) == ([sort] if sort else [])


def test_words_from_outside_are_escaped(app: APIFlask) -> None:
    evil = '"><script>alert(1)</script>'
    source = """{{ ui.chart('bars', evil, evil) }}{{ ui.field(evil, evil, evil, hint=evil, placeholder=evil) }}
      {{ ui.select(evil, evil, [evil], evil) }}{{ ui.copy(evil) }}{{ ui.empty(evil, evil, evil, evil) }}
      {{ ui.state(evil) }}{{ ui.stat(evil, evil, evil) }}{{ ui.sparkline([1, 2], evil) }}
      {{ ui.tabs([(evil, evil, True)]) }}
      {{ ui.problem([problem]) }}"""
    problem = SimpleNamespace(field=evil, message=evil, fix=evil)
    page = rendered(app, source, f"/?{evil}={evil}", evil=evil, problem=problem)
    assert "<script" not in page
    assert "alert(1)" in page


def test_a_score_is_never_shown_without_its_coverage(app: APIFlask) -> None:
    score = SimpleNamespace(mean=0.5, low=0.25, high=0.75, scored=9, planned=10)
    page = rendered(app, "{{ ui.score(score) }}", score=score)
    assert [part in page for part in ("0.500", "0.250–0.750", "9 of 10", "90 %")] == [True] * 4
    assert "no score yet" in rendered(app, "{{ ui.score(none) }}")


def test_a_time_has_utc_for_hovering(app: APIFlask) -> None:
    moment = datetime(2026, 5, 12, 10, 22, 33, tzinfo=timezone.utc)
    page = rendered(app, "{{ ui.time(moment) }}", moment=moment)
    assert 'title="2026-05-12 10:22:33 UTC"' in page
    assert 'datetime="2026-05-12T10:22:33+00:00"' in page


# Drawings


def _status(**counts: Any) -> Any:
    base = {"total": 10, "done": 0, "running": 0, "pushed": 0, "pending": 0, "outcomes": {}}
    return SimpleNamespace(**{**base, **counts})


def test_a_bar_is_as_long_as_what_is_known() -> None:
    parts = drawing.segments(
        _status(total=8, running=1, pushed=1, pending=2, outcomes={Outcome.SCORED: 3, Outcome.INFRA_ERROR: 1})
    )
    assert [(part.kind, part.x, part.width) for part in parts] == [
        ("scored", 0.0, 37.5),
        ("infra_error", 37.5, 12.5),
        ("pushed", 50.0, 12.5),
        ("running", 62.5, 12.5),
    ]
    assert drawing.segments(_status(total=0)) == []


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ([], []),
        ([None, None], []),
        ([5, 5], ["0.0,12.0 100.0,12.0"]),
        ([0, 10, None, 10], ["0.0,23.0 33.3,1.0", "100.0,1.0 100.0,1.0"]),
    ],
)
def test_a_sparkline_has_gaps_where_nothing_is_known(values: list[float | None], lines: list[str]) -> None:
    assert drawing.sparkline(values) == lines


# Languages


@pytest.mark.parametrize(
    ("address", "header", "cookie", "language"),
    [
        ("/sign-in", "", "", "en"),
        ("/sign-in", "zh-CN,zh;q=0.9,en;q=0.8", "", "zh-CN"),
        ("/sign-in", "fr", "", "en"),
        ("/sign-in", "zh-CN", "en", "en"),
        ("/sign-in?lang=zh", "en", "en", "zh-CN"),
        ("/sign-in?lang=xx", "zh", "", "zh-CN"),
    ],
)
def test_the_language_is_chosen(app: APIFlask, address: str, header: str, cookie: str, language: str) -> None:
    client = app.test_client()
    if cookie:
        client.set_cookie("aeo_lang", cookie)
    page = client.get(address, headers={"Accept-Language": header})
    assert f'<html lang="{language}"' in page.text
    # The switch leads to every other language, on the same page.
    others = [code for code in LANGUAGES if code != language[:2]]
    assert re.findall(r'href="/sign-in\?lang=(\w+)"', page.text) == others


def test_a_chosen_language_is_kept(app: APIFlask) -> None:
    client = app.test_client()
    client.get("/sign-in?lang=zh")
    assert '<html lang="zh-CN"' in client.get("/sign-in").text
    assert "登录" in client.get("/sign-in").text


def test_the_theme_is_in_the_first_answer(app: APIFlask) -> None:
    client = app.test_client()
    assert "data-theme=" not in client.get("/sign-in").text
    client.set_cookie("aeo_theme", "dark")
    assert 'data-theme="dark"' in client.get("/sign-in").text
    client.set_cookie("aeo_theme", '"><script>')
    assert "data-theme=" not in client.get("/sign-in").text


def _is_ours(folder: str) -> bool:
    return Path(folder).relative_to(ROOT.parent).parts[:1] in ((), ("webapp",), ("aeo",))


def _extracted() -> Catalog:
    project = ROOT.parent
    with (project / "babel.cfg").open() as file:
        methods, options = parse_mapping_cfg(file)
    catalogue = Catalog()
    single, several, with_context = None, (1, 2), ((1, "c"), 2)
    keywords = {"_": single, "N_": single, "gettext": single, "ngettext": several, "pgettext": with_context}
    keywords |= {"lazy_gettext": single, "lazy_ngettext": several, "lazy_pgettext": with_context}
    keywords |= {"npgettext": ((1, "c"), 2, 3)}
    found = extract_from_dir(project, methods, options, keywords, directory_filter=_is_ours)
    for name, line, message, _, context in found:
        catalogue.add(message, locations=[(name, line)], context=context)
    return catalogue


@pytest.mark.parametrize("language", [code for code in LANGUAGES if code != "en"])
def test_every_text_is_translated(language: str) -> None:
    if not (ROOT.parent / "babel.cfg").is_file():
        pytest.skip("an installed package has no sources to extract from")
    folder = ROOT / "translations" / language / "LC_MESSAGES"
    catalogue = read_po(io.BytesIO((folder / "messages.po").read_bytes()), locale=language)
    missing, wrong = [], []
    for message in _extracted():
        if not message.id:
            continue
        known = catalogue.get(message.id, message.context)
        if known is None or not known.string or known.fuzzy or "" in (known.string if message.pluralizable else ()):
            missing.append(f"{message.locations[0]}: {message.id!r}")
            continue
        for text in known.string if isinstance(known.string, tuple) else (known.string,):
            asked = [set(re.findall(r"%\((\w+)\)\w|\{\w+\}|%%", part)) for part in _parts(message.id)]
            if set(re.findall(r"%\((\w+)\)\w|\{\w+\}|%%", text)) not in asked:
                wrong.append(f"{message.id!r} → {text!r}")
    assert not missing
    assert not wrong


def _parts(id: Any) -> tuple[str, ...]:
    return (id,) if isinstance(id, str) else tuple(id)


@pytest.mark.parametrize("language", [code for code in LANGUAGES if code != "en"])
def test_the_compiled_catalogue_is_of_the_present_one(language: str) -> None:
    folder = ROOT / "translations" / language / "LC_MESSAGES"
    source = read_po(io.BytesIO((folder / "messages.po").read_bytes()), locale=language)
    compiled = read_mo(io.BytesIO((folder / "messages.mo").read_bytes()))
    wanted, got = (
        {(message.context, _parts(message.id)): _parts(message.string) for message in catalogue if message.id}
        for catalogue in (source, compiled)
    )
    assert got == wanted


# Compression


def test_pages_and_static_files_are_compressed_for_who_takes_it(client: FlaskClient) -> None:
    style = f"/static/aeo-{words.STATIC_VERSION}.css"
    for path in ("/sign-in?next=/", "/", style):
        plain = client.get(path, follow_redirects=True)
        packed = client.get(path, follow_redirects=True, headers={"Accept-Encoding": "gzip, br"})
        assert "Content-Encoding" not in plain.headers
        assert packed.headers["Content-Encoding"] == "gzip"
        assert "Accept-Encoding" in packed.headers["Vary"]
        assert int(packed.headers["Content-Length"]) == len(packed.data) < len(plain.data)
        assert len(gzip.decompress(packed.data)) > 1000
    assert (
        gzip.decompress(client.get(style, headers={"Accept-Encoding": "gzip"}).data)
        == (STATIC / style.rsplit("/", 1)[1]).read_bytes()
    )


def test_a_compressed_file_is_not_sent_twice(client: FlaskClient) -> None:
    path = f"/static/aeo-{words.STATIC_VERSION}.css"
    first = client.get(path, headers={"Accept-Encoding": "gzip"})
    again = client.get(path, headers={"Accept-Encoding": "gzip", "If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    assert "Cookie" not in first.headers["Vary"]


def test_the_length_of_a_page_does_not_tell_what_is_in_it(client: FlaskClient) -> None:
    lengths = {len(client.get("/", headers={"Accept-Encoding": "gzip"}).data) for _ in range(12)}
    assert len(lengths) > 3
