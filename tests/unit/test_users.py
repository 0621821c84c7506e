"""Named users: what is kept of them, and what is not."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path

import pytest

from aeo import users
from aeo.core.errors import Conflict, InputError, NotFound, Unavailable
from aeo.layout import Shared
from aeo.users import Role


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return Shared(tmp_path, tmp_path / "jobs")


def name_of(shared: Shared, token: str) -> str | None:
    account = users.by_token(shared, token)
    return account.user.name if account else None


def test_a_role_may_what_those_below_may() -> None:
    assert Role.VIEWER < Role.MEMBER < Role.ADMIN
    assert Role.ADMIN >= Role.ADMIN >= Role.MEMBER
    assert not Role.VIEWER >= Role.MEMBER
    assert max(Role) is Role.ADMIN


def test_a_token_is_given_once_and_only_its_hash_is_kept(shared: Shared) -> None:
    token = users.add(shared, "alice", Role.MEMBER)
    assert token.startswith(users.PREFIX)
    assert len(token) >= 40
    assert name_of(shared, token) == "alice"
    assert stat.S_IMODE(shared.users.stat().st_mode) == 0o600
    kept = shared.users.read_text()
    assert token not in kept
    assert token.removeprefix(users.PREFIX) not in kept
    account = users.find(shared, "alice")
    assert account
    assert account.user.role is Role.MEMBER
    assert account.digest not in repr(account)
    assert {item.name for item in shared.root.iterdir()} == {"users.json", "users.lock"}


def test_a_token_is_of_one_user_and_of_nobody_else(shared: Shared) -> None:
    tokens = {name: users.add(shared, name, Role.VIEWER) for name in ("a", "b", "c")}
    assert {name: name_of(shared, token) for name, token in tokens.items()} == {name: name for name in tokens}
    account = users.find(shared, "a")
    assert account
    for wrong in ("", "x", tokens["a"][:-1], tokens["a"] + "x", tokens["a"].upper(), account.digest, "\udcff", "é"):
        assert name_of(shared, wrong) is None


def test_without_users_nobody_is_known(shared: Shared) -> None:
    assert users.list_all(shared) == []
    assert users.by_token(shared, "anything") is None
    assert users.find(shared, "alice") is None
    assert list(shared.root.iterdir()) == []


def test_a_removed_user_is_gone_and_a_renewed_one_has_another_token(shared: Shared) -> None:
    first = users.add(shared, "alice", Role.MEMBER)
    other = users.add(shared, "bob", Role.ADMIN)
    second = users.renew(shared, "alice")
    assert first != second
    assert [name_of(shared, token) for token in (first, second, other)] == [None, "alice", "bob"]
    assert users.remove(shared, "alice").role is Role.MEMBER
    assert [name_of(shared, token) for token in (first, second, other)] == [None, None, "bob"]
    assert [user.name for user in users.list_all(shared)] == ["bob"]
    for change in (users.remove, users.renew):
        with pytest.raises(NotFound, match="alice"):
            change(shared, "alice")


def test_a_name_is_had_once_whatever_its_case(shared: Shared) -> None:
    token = users.add(shared, "Alice", Role.VIEWER)
    before = shared.users.read_bytes()
    for name in ("Alice", "alice", "ALICE"):
        with pytest.raises(Conflict, match="aeo user renew Alice"):
            users.add(shared, name, Role.ADMIN)
    assert shared.users.read_bytes() == before
    assert name_of(shared, token) == "Alice"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a b", "a/b", "a:b", "a\n", "ä", "-a", "operator", "Operator", "x" * 65, "a\x00"]
)
def test_an_odd_or_reserved_name_is_refused(shared: Shared, name: str) -> None:
    with pytest.raises(InputError) as caught:
        users.add(shared, name, Role.VIEWER)
    assert caught.value.problems[0].field == "name"
    assert caught.value.problems[0].fix
    assert not shared.users.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"accounts": [{"user": {"name": "a"}}]}',
        '{"accounts": [], "more": 1}',
        "\x00",
        '{"accounts": 1}',
    ],
)
def test_a_damaged_file_lets_nobody_in_and_is_not_written_over(shared: Shared, text: str) -> None:
    shared.users.write_text(text)
    for call in (
        lambda: users.by_token(shared, "x"),
        lambda: users.find(shared, "a"),
        lambda: users.list_all(shared),
        lambda: users.add(shared, "b", Role.VIEWER),
        lambda: users.remove(shared, "a"),
    ):
        with pytest.raises(Unavailable, match="damaged"):
            call()
    assert shared.users.read_text() == text


def test_many_at_once_lose_nothing(shared: Shared) -> None:
    tokens: dict[str, str] = {}

    def add(number: int) -> None:
        for place in range(5):
            name = f"u{number}-{place}"
            tokens[name] = users.add(shared, name, Role.VIEWER)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 30
    assert {user.name for user in users.list_all(shared)} == set(tokens)
    assert all(name_of(shared, token) == name for name, token in tokens.items())


def test_a_failed_write_leaves_the_file_as_it_was(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    token = users.add(shared, "alice", Role.VIEWER)

    def full(*_: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="no space"):
            users.remove(shared, "alice")
    assert name_of(shared, token) == "alice"
    assert {item.name for item in shared.root.iterdir()} == {"users.json", "users.lock"}
    assert json.loads(shared.users.read_text())
