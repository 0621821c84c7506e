"""Fixtures for everybody: a store, fake and real, and the site of a controller."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import fakeredis
import pytest
import redis
from hypothesis import HealthCheck, settings

from aeo.config import Config
from aeo.embedded import server as embedded
from aeo.store.connection import Db, connect, open_pool

if TYPE_CHECKING:
    from aeo.site import Site

# Machines differ too much for deadlines; what an example finds must be found again.
settings.register_profile(
    "aeo", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
settings.load_profile("aeo")


@pytest.fixture(scope="session", autouse=True)
def _own_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is kept beside what this user has configured, such as keys of secrets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.Server]:
    """A real server, one for each test process; what it holds is the test's own, see `redis_url`."""
    running = embedded.start(tmp_path_factory.mktemp("redis"))
    yield running
    embedded.stop(running)


@pytest.fixture
def redis_url(server: embedded.Server) -> str:
    """Address of the real server, empty."""
    db = connect(server.url)
    db.client.flushall()
    db.close()
    return server.url


@pytest.fixture
def real_db(redis_url: str) -> Iterator[Db]:
    """A store on the real server, empty."""
    db = connect(redis_url)
    yield db
    db.close()


@pytest.fixture
def fake_db() -> Iterator[Db]:
    """A store in this process, empty."""
    db = open_fake()
    yield db
    db.close()


def open_fake() -> Db:
    """Open a new store in this process."""
    pool = redis.ConnectionPool(
        connection_class=fakeredis.FakeRedisConnection, server=fakeredis.FakeServer(), decode_responses=True
    )
    return open_pool(pool)


@pytest.fixture(params=["fake", "real"])
def db(request: pytest.FixtureRequest) -> Db:
    """A store, empty: each test that takes it runs on both."""
    opened: Db = request.getfixturevalue(f"{request.param}_db")
    return opened


@pytest.fixture
def site(redis_url: str, tmp_path: Path) -> Iterator[Site]:
    """A controller's site, empty, on the real server."""
    from aeo.site import open_site

    opened = open_site(Config(shared_root=tmp_path / "shared", broker_url=redis_url))
    yield opened
    opened.db.close()


@pytest.fixture
def no_users(site: Site) -> Iterator[None]:
    """Takes away, at the end, what workers got of the store: a flush leaves users and rights alone."""
    from aeo.store import access

    yield
    for id in access.present(site.db):
        access.drop(site.db, id)
