"""A controller's web application behind a real socket, in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from werkzeug.serving import make_server

from aeo.site import Site
from webapp import create_app


@contextmanager
def served(site: Site) -> Iterator[str]:
    """Serve ``site``, and close it at the end; gives the address."""
    server = make_server("127.0.0.1", 0, create_app(site), threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        site.db.close()
