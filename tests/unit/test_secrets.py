"""Secrets at rest: what is kept, what is not, and what happens when the key is lost."""

from __future__ import annotations

import json
import logging
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from aeo import folders
from aeo.config import Config
from aeo.core.condition import Level
from aeo.core.errors import InputError, NotFound, Unavailable
from aeo.core.names import check_variable
from aeo.health import secrets
from aeo.layout import Shared
from aeo.secrets import hiding, keyring, needs, vault
from aeo.site import Site

VALUE = "sk-value+of/this=test?0123456789"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    root = tmp_path / "shared"
    root.mkdir()
    config = Config(shared_root=root, secrets_key_file=tmp_path / "keys" / "secrets.key")
    return Site(config=config, shared=Shared(root, root / "jobs"), db=cast(Any, None))


def key_file(site: Site) -> Path:
    return keyring.path(site.config, site.shared)


def test_a_secret_is_kept_encrypted_and_its_key_elsewhere(site: Site) -> None:
    made = vault.put(site, "API_KEY", VALUE, by="alice")
    assert (made.name, made.set_by) == ("API_KEY", "alice")
    assert vault.values(site) == {"API_KEY": VALUE}
    assert vault.list_all(site) == [made]
    kept = site.shared.secrets.read_text()
    assert VALUE not in kept
    assert {path.name for path in site.shared.root.iterdir()} == {"secrets.json", "secrets.lock"}
    for path in (site.shared.secrets, key_file(site)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(key_file(site).parent.stat().st_mode) == 0o700
    # Each time another nonce: two that are equal do not look alike.
    vault.put(site, "OTHER", VALUE, by="alice")
    first, second = (item["value"] for item in json.loads(site.shared.secrets.read_text())["sealed"])
    assert first != second


def test_a_value_is_bound_to_its_name(site: Site) -> None:
    vault.put(site, "FIRST", VALUE, by="")
    vault.put(site, "SECOND", VALUE[::-1], by="")
    kept = json.loads(site.shared.secrets.read_text())
    one, two = kept["sealed"]
    one["value"], two["value"] = two["value"], one["value"]
    site.shared.secrets.write_text(json.dumps(kept))
    with pytest.raises(Unavailable, match="FIRST cannot be opened"):
        vault.values(site)


def test_set_anew_and_removed(site: Site) -> None:
    vault.put(site, "A_KEY", VALUE, by="alice")
    vault.put(site, "A_KEY", "another value", by="bob")
    assert vault.values(site, ["A_KEY", "UNKNOWN"]) == {"A_KEY": "another value"}
    assert [one.set_by for one in vault.list_all(site)] == ["bob"]
    vault.remove(site, "A_KEY")
    assert vault.list_all(site) == []
    assert vault.values(site) == {}
    assert key_file(site).read_text() == ""
    with pytest.raises(NotFound) as caught:
        vault.remove(site, "A_KEY")
    assert "aeo secrets list" in str(caught.value)


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "sk-1234567890abcdef", "AEO_X", "LD_PRELOAD", "PATH"])
def test_what_is_no_name_is_refused_and_not_shown(site: Site, name: str) -> None:
    with pytest.raises(InputError) as caught:
        vault.put(site, name, VALUE, by="")
    assert len(name) < 3 or name not in caught.value.problems[0].message
    assert VALUE not in str(caught.value)
    assert not site.shared.secrets.exists()
    assert check_variable("HF_TOKEN") == "HF_TOKEN"


@pytest.mark.parametrize("value", ["", "short", " \n\t     x", "null\0inside", "x" * 65537, "half \ud800 of it"])
def test_what_is_no_value_is_refused_and_not_shown(site: Site, value: str) -> None:
    with pytest.raises(InputError) as caught:
        vault.put(site, "A_KEY", value, by="")
    assert len(value) < 5 or value not in str(caught.value)
    assert vault.list_all(site) == []


def test_a_lost_key_is_told_and_what_to_do(site: Site) -> None:
    vault.put(site, "A_KEY", VALUE, by="alice")
    kept = key_file(site).rename(site.config.secrets_key_file.with_name("elsewhere"))  # type: ignore[union-attr]
    for use in (
        lambda: vault.values(site),
        lambda: vault.rekey(site),
        lambda: vault.put(site, "B_KEY", VALUE, by=""),
    ):
        with pytest.raises(
            Unavailable, match=r"key of the secrets is lost: there is no .*AEO_SECRETS_KEY_FILE.*remove"
        ):
            use()
    # It is still known which there are; the file comes back.
    assert [one.name for one in vault.list_all(site)] == ["A_KEY"]
    other = replace(site, config=replace(site.config, secrets_key_file=kept))
    assert vault.values(other) == {"A_KEY": VALUE}
    # Or it never does.
    vault.remove(site, "A_KEY")
    vault.put(site, "A_KEY", VALUE, by="bob")
    assert vault.values(site) == {"A_KEY": VALUE}


def test_the_key_of_another_is_told(site: Site) -> None:
    vault.put(site, "A_KEY", VALUE, by="")
    id = key_file(site).read_text().split()[0]
    keyring.add(key_file(site), id, b"x" * keyring.SIZE)
    with pytest.raises(Unavailable, match="A_KEY cannot be opened: the key"):
        vault.values(site)
    key_file(site).write_text("some other file\n")
    with pytest.raises(Unavailable, match="no file of keys"):
        vault.values(site)


def test_a_key_that_others_may_read_or_that_lies_beside_is_refused(site: Site) -> None:
    vault.put(site, "A_KEY", VALUE, by="")
    key_file(site).chmod(0o640)
    with pytest.raises(Unavailable, match="chmod 600"):
        vault.values(site)
    inside = replace(site.config, secrets_key_file=site.shared.root / "x" / "key")
    with pytest.raises(InputError, match="--secrets-key-file"):
        vault.put(replace(site, config=inside), "A_KEY", VALUE, by="")


def test_the_usual_place_of_the_key(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(site.config, secrets_key_file=None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert keyring.path(config, site.shared) == tmp_path / "config" / "aeo" / "secrets.key"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert keyring.path(config, site.shared) == Path.home() / ".config" / "aeo" / "secrets.key"


def test_a_user_without_a_home_names_a_file(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(_: Path) -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    site = replace(site, config=replace(site.config, secrets_key_file=None))
    # Who has no secrets needs none.
    assert not hiding.redactor(site)
    with pytest.raises(InputError, match="--secrets-key-file: is empty, and this user has no home"):
        vault.put(site, "A_KEY", VALUE, by="")


def test_controllers_share_a_file_of_keys_and_one_takes_a_new_key(site: Site, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    two = replace(site, shared=Shared(tmp_path / "two", tmp_path / "jobs"))
    vault.put(site, "A_KEY", VALUE, by="")
    vault.put(two, "A_KEY", "of the other one", by="")
    before, sealed = key_file(site).read_text().splitlines(), site.shared.secrets.read_text()
    assert vault.rekey(site) == 1
    after = key_file(site).read_text().splitlines()
    assert len(after) == 2
    assert set(before) & set(after) == {before[1]}
    assert (vault.values(site), vault.values(two)) == ({"A_KEY": VALUE}, {"A_KEY": "of the other one"})
    # The old key is gone, and with it what it opened.
    site.shared.secrets.write_text(sealed)
    with pytest.raises(Unavailable, match="lost"):
        vault.values(site)


def test_a_crash_while_the_key_is_changed_loses_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    vault.put(site, "A_KEY", VALUE, by="")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    write = folders.write
    moments = {
        "aeo.folders.write": lambda path, text: dies() if path == site.shared.secrets else write(path, text),
        "aeo.secrets.keyring.drop": dies,
    }
    for moment, then in moments.items():
        with monkeypatch.context() as patch:
            patch.setattr(moment, then)
            with pytest.raises(KeyboardInterrupt):
                vault.rekey(site)
        assert vault.values(site) == {"A_KEY": VALUE}
    assert vault.rekey(site) == 1
    assert vault.values(site) == {"A_KEY": VALUE}


def test_a_damaged_file_is_told_and_not_written_over(site: Site) -> None:
    for text in ("", "{", '{"sealed": [1]}'):
        site.shared.secrets.write_text(text)
        with pytest.raises(Unavailable, match=r"secrets\.json\) is damaged"):
            vault.put(site, "A_KEY", VALUE, by="")
        assert site.shared.secrets.read_text() == text


def test_values_are_taken_out_as_soon_as_they_are_set(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    assert hiding.redactor(site).text(f"a {VALUE}") == f"a {VALUE}"
    vault.put(site, "A_KEY", VALUE, by="")
    assert hiding.redactor(site).text(f"a {VALUE}") == "a ${A_KEY}"
    assert hiding.redactor(site) is hiding.redactor(site)
    vault.put(site, "A_KEY", "another value", by="")
    assert hiding.redactor(site).text("another value") == "${A_KEY}"
    away = key_file(site).rename(key_file(site).with_name("away"))
    with caplog.at_level(logging.WARNING):
        for times in (1, 2):
            assert not hiding.redactor(site)
            assert not hiding.redactor(site)
            assert "is lost" in caplog.text
            assert caplog.text.count("takes their values out of nothing") == times
            away.rename(key_file(site))
            assert hiding.redactor(site).text("another value") == "${A_KEY}"
            assert hiding.redactor(site)
            assert caplog.text.count("can be read again") == times
            key_file(site).rename(away)


def test_no_word_of_it_shows_a_value(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        made = vault.put(site, "A_KEY", VALUE, by="alice")
        vault.rekey(site)
        vault.remove(site, "A_KEY")
    assert VALUE not in repr(made) + caplog.text
    assert "A_KEY" in caplog.text


def test_a_worker_tells_what_its_operator_allows() -> None:
    environment = {
        "OPENAI_API_KEY": "x",
        "HF_TOKEN": "x",
        "EMPTY_TOKEN": "",
        "PATH": "/bin",
        "MAX_TOKENS": "9",
        "DATABASE": "x",
        "AEO_AUTH_TOKEN": "x",
    }
    assert needs.told(["*"], environment) == ("HF_TOKEN", "OPENAI_API_KEY")
    assert needs.told(["OPENAI_*"], environment) == ("OPENAI_API_KEY",)
    assert needs.told(["DATABASE", "PATH", "AEO_AUTH_TOKEN"], environment) == ("DATABASE", "PATH")
    assert needs.told(["-"], environment) == ()


def test_doctor_sees_whether_they_can_be_opened(site: Site) -> None:
    def seen() -> list[tuple[Level, str]]:
        return [(one.level, one.text) for one in secrets.judge(site.config, site.shared)]

    assert seen() == []
    vault.put(site, "A_KEY", VALUE, by="")
    assert seen() == [(Level.OK, "1, with their key elsewhere")]
    key_file(site).unlink()
    ((level, text),) = seen()
    assert level is Level.FAULT
    assert "key of the secrets is lost" in text
