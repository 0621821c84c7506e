"""Which language a page speaks: ``?lang=``, else the cookie, else what the browser asks for."""

from __future__ import annotations

from flask import Flask, Response, request
from flask_babel import Babel, get_locale

#: Code to its own name. The catalogues are in webapp/translations.
LANGUAGES = {"en": "English", "zh": "中文"}
DEFAULT = "en"
COOKIE = "aeo_lang"
COOKIE_SECONDS = 365 * 24 * 3600


def register(app: Flask) -> None:
    """Translate what ``app`` renders."""
    Babel(app, default_locale=DEFAULT, locale_selector=choose)
    app.after_request(_remember)
    app.jinja_env.globals.update(language=current, languages=LANGUAGES)


def current() -> str:
    """Return the code of the language of this answer."""
    locale = get_locale()
    return locale.language if locale else DEFAULT


def choose() -> str:
    """Return the code that this request asks for."""
    for code in (request.args.get("lang"), request.cookies.get(COOKIE)):
        if code in LANGUAGES:
            return str(code)
    return request.accept_languages.best_match(list(LANGUAGES), DEFAULT) or DEFAULT


def _remember(response: Response) -> Response:
    code = request.args.get("lang")
    if code in LANGUAGES and request.cookies.get(COOKIE) != code:
        response.set_cookie(
            COOKIE, str(code), max_age=COOKIE_SECONDS, httponly=True, samesite="Lax", secure=request.is_secure
        )
    return response
