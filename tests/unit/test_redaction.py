"""Known secrets are found in every form they are written in, in pieces and windows of any size, and nowhere else."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo import redaction
from aeo.config import from_environment
from aeo.embedded import children
from aeo.redaction import Redactor

KEY = "sk-0123456789abcdef"
REDACTOR = Redactor({"API_KEY": KEY, "LONGER": KEY + "-more", "QUOTED": 'with "quotes" & /slash'})

#: Text made of pieces of secrets, so that beginnings, ends and whole ones meet.
texts = st.lists(
    st.sampled_from([KEY, KEY[:7], KEY[7:], KEY + "-more", KEY + "-mo", "-more", "sk-", " ", "é", "\n", "x"]),
    max_size=12,
).map("".join)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"key={KEY}.", "key=${API_KEY}."),
        (f"{KEY}-more", "${LONGER}"),
        (json.dumps({"k": 'with "quotes" & /slash'}), '{"k": "${QUOTED}"}'),
        ("?q=with%20%22quotes%22%20%26%20%2Fslash&x", "?q=${QUOTED}&x"),
        ("sk-012345678", "sk-012345678"),
        ("", ""),
        ("half \ud800 a pair " + KEY, "half \ud800 a pair ${API_KEY}"),
    ],
)
def test_a_secret_is_replaced_in_every_form(text: str, shown: str) -> None:
    assert REDACTOR.text(text) == shown


@given(texts, st.integers(1, 9))
def test_pieces_of_any_size_give_the_same_as_the_whole(text: str, size: int) -> None:
    content = text.encode()
    stream = REDACTOR.stream()
    shown = b"".join(stream.feed(content[at : at + size]) for at in range(0, len(content), size)) + stream.finish()
    assert shown == REDACTOR.content(content)
    assert KEY.encode() not in shown


@given(texts, st.integers(1, 60))
def test_windows_side_by_side_give_the_same_as_the_whole(text: str, size: int) -> None:
    content, margin = text.encode(), REDACTOR.longest - 1
    shown = b""
    for at in range(0, len(content), size):
        lead = min(at, margin)
        shown += REDACTOR.window(content[at - lead : at + size + margin], lead, min(size, len(content) - at))
    assert shown == REDACTOR.content(content)


@given(texts)
def test_a_stream_holds_back_no_more_than_the_beginning_of_a_secret(text: str) -> None:
    stream = REDACTOR.stream()
    shown = stream.feed(text.encode())
    held = REDACTOR.content(text.encode())[len(shown) :]
    assert len(held) < REDACTOR.longest
    assert stream.feed(b"\0") == held + b"\0"


def test_a_binary_file_keeps_its_length() -> None:
    content = b"\x00\x01" + KEY.encode() + b"\xff" * 20
    shown = b"".join(redaction.pieces(REDACTOR, io.BytesIO(content)))
    assert shown == b"\x00\x01" + b"*" * len(KEY) + b"\xff" * 20


def test_a_key_of_several_lines_is_found_line_by_line() -> None:
    key = "-----BEGIN KEY-----\n" + "A" * 40 + "\n" + "B" * 40 + "\n-----END KEY-----\n"
    shown = Redactor({"PEM": key}).text(f"{key} again: {'B' * 40}, indented:\n    {'A' * 40}")
    assert "A" * 40 not in shown
    assert "B" * 40 not in shown


def test_a_file_is_rewritten_with_its_mode_and_time_also_when_it_is_large(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    # One secret on the border of two pieces that are read.
    path.write_bytes(b"x" * (1024 * 1024 - 5) + KEY.encode() + b"y" * 100)
    path.chmod(0o750)
    before = path.stat()
    assert redaction.holding(REDACTOR, tmp_path, ["log.txt"]) == ["log.txt"]
    redaction.rewrite(REDACTOR, path, tmp_path / "draft")
    assert path.read_bytes() == b"x" * (1024 * 1024 - 5) + b"${API_KEY}" + b"y" * 100
    assert (path.stat().st_mode, path.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert redaction.holding(REDACTOR, tmp_path, ["log.txt"]) == []
    assert [item.name for item in tmp_path.iterdir()] == ["log.txt"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text(KEY)
    (tmp_path / "link").symlink_to("outside")
    with pytest.raises(OSError):
        redaction.holding(REDACTOR, tmp_path, ["link"])


def test_only_configured_variables_that_are_set_and_long_enough_count() -> None:
    names = from_environment({"AEO_SECRET_NAMES": " API_KEY, SHORT ,UNSET,"}).secret_names
    assert names == ("API_KEY", "SHORT", "UNSET")
    redactor = redaction.known(names, {"API_KEY": KEY + "\n", "SHORT": "abc", "OTHER": "not-configured"})
    assert redactor.text(f"{KEY} abc not-configured") == "${API_KEY} abc not-configured"
    assert not redaction.known(("SHORT",), {"SHORT": "abc"})


@given(st.text(min_size=6), texts)
def test_no_value_breaks_the_pattern(value: str, text: str) -> None:
    redactor = Redactor({"V": value})
    shown = redactor.text(value + text)
    if len(value.strip()) >= redaction.SHORTEST and not re.search(re.escape(value.strip()), "${V}"):
        assert shown.lstrip().startswith("${V}")


def test_the_names_reach_the_processes_that_a_controller_starts() -> None:
    config = from_environment({"AEO_SECRET_NAMES": "ONE,TWO"})
    assert from_environment(children.variables(config)).secret_names == ("ONE", "TWO")
    assert from_environment(children.variables(from_environment({}))).secret_names == ()


@pytest.mark.parametrize("before", ["", "u", "us", "user:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_secret_in_base64_is_found_wherever_it_begins(before: str, encode: Any) -> None:
    value = "sk-\xbf\xff?value/with+all>kinds"
    redactor = Redactor({"KEY": value})
    text = f"Basic {encode(f'{before}{value}:after'.encode()).decode()} and on"
    shown = redactor.text(text)
    assert "${KEY}" in shown
    assert shown.startswith("Basic ")
    assert shown.endswith(" and on")
    # What is left is of its neighbours, and of a character that one of them has a part in.
    left = shown.removeprefix("Basic ").removesuffix(" and on").replace("${KEY}", "")
    assert len(left) <= len(encode(f"{before}:after".encode())) + 4
    assert (
        redactor.text(encode(b"something else, and long enough").decode())
        == encode(b"something else, and long enough").decode()
    )


def test_the_base64_of_what_is_too_short_for_it_is_not_looked_for() -> None:
    assert Redactor({"KEY": "abcdef"}).text("YWJjZGVm YWJj") == "${KEY} YWJj"
