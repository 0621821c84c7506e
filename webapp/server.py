"""The web process: gunicorn, one process with threads, until SIGTERM."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
from typing import Any

from aeo import logs
from aeo.config import Config
from aeo.core.errors import InputError, Unavailable
from aeo.site import Site
from webapp import create_app, streams
from webapp.security import HideTokens

#: Seconds that running requests get to end at SIGTERM.
GRACE_SECONDS = 10


def serve(site: Site) -> None:
    """Serve the API and the pages on the configured address; returns after SIGTERM or SIGINT.

    To be called in the main thread of a process of its own, as it handles signals and reaps children.

    Raises:
        InputError: the address is taken or not of this machine, or there is no token.
        Unavailable: the server could not start.
    """
    app = create_app(site)
    listener = listen(site.config)
    # gunicorn closes the descriptor it is given.
    _run(app, listener.detach(), HideTokens(site.config.auth_token), logs.formatter(site.config, process="web"))


def listen(config: Config) -> socket.socket:
    """Bind the configured address, so that a fault is told before anything runs.

    Raises:
        InputError: names the flag.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise InputError(f"{config.host!r} is no address.", field="--host") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Head and body of an answer are sent one after the other: without this the body waits 40 ms for the head's receipt.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind(address)
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise _bind_error(config, error) from None
    return listener


def _bind_error(config: Config, error: OSError) -> InputError:
    if error.errno == errno.EADDRINUSE:
        fix = "Stop what listens there, or choose another port."
        return InputError(f"port {config.port} on {config.host} is in use.", field="--port", fix=fix)
    if error.errno == errno.EACCES:
        return InputError(f"port {config.port} needs more rights.", field="--port", fix="Choose one above 1023.")
    return InputError(f"{config.host} is no address of this machine: {error.strerror}.", field="--host")


def _run(app: Any, descriptor: int, hide: HideTokens, form: logging.Formatter) -> None:
    # Here, so that nothing but the web process loads the server.
    from gunicorn.app.base import BaseApplication
    from gunicorn.glogging import Logger
    from gunicorn.http import wsgi

    wsgi.SERVER = "aeo"  # the header cannot be left out; it shall not name the software

    class Log(Logger):  # type: ignore[misc]
        def setup(self, cfg: Any) -> None:
            super().setup(cfg)
            for handler in self.error_log.handlers:
                handler.setFormatter(form)
            for handler in (*self.error_log.handlers, *logging.getLogger().handlers):
                handler.addFilter(hide)

    class Server(BaseApplication):  # type: ignore[misc]
        def load_config(self) -> None:
            for name, value in _settings(descriptor, Log).items():
                with contextlib.suppress(KeyError):  # older servers lack some
                    self.cfg.set(name, value)

        def load(self) -> Any:
            return app

    try:
        Server().run()
    except SystemExit as end:
        if end.code:
            raise Unavailable(f"The web server could not run (gunicorn ended with {end.code}).") from None


def _settings(descriptor: int, log: type[Any]) -> dict[str, Any]:
    return {
        "bind": f"fd://{descriptor}",
        "workers": 1,
        "worker_class": "gthread",
        "threads": streams.THREADS,
        "graceful_timeout": GRACE_SECONDS,
        "post_worker_init": lambda worker: streams.while_(lambda: bool(worker.alive)),
        # Longer than a poll interval, so that workers and pages keep their connection.
        "keepalive": 15,
        # It would show the query, and with it a token.
        "accesslog": None,
        "errorlog": "-",
        "loglevel": "warning",
        "logger_class": log,
        "limit_request_line": 8190,
        "control_socket_disable": True,
        "proc_name": "aeo-web",
    }
