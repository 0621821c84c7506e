"""Transfer addresses: what is taken, what is refused, and that a printed one reads back the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo.core.errors import InputError
from aeo.transfer.remote import Remote, parse


@pytest.mark.parametrize(
    ("url", "expected", "argument"),
    [
        ("/srv/aeo", Remote(kind="local", path="/srv/aeo"), "/srv/aeo/inbox/x"),
        ("/srv//aeo/./", Remote(kind="local", path="/srv/aeo"), "/srv/aeo/inbox/x"),
        ("/", Remote(kind="local", path="/"), "/inbox/x"),
        ("/with space/a:b", Remote(kind="local", path="/with space/a:b"), "/with space/a:b/inbox/x"),
        ("file:///srv/my%20data", Remote(kind="local", path="/srv/my data"), "/srv/my data/inbox/x"),
        ("file://localhost/srv", Remote(kind="local", path="/srv"), "/srv/inbox/x"),
        ("ssh://box/srv", Remote(kind="ssh", host="box", path="/srv"), "box:/srv/inbox/x"),
        (
            "ssh://me@box.example:2222/srv/a b",
            Remote(kind="ssh", user="me", host="box.example", port=2222, path="/srv/a b"),
            "me@box.example:/srv/a b/inbox/x",
        ),
        (
            "ssh://me@[2001:db8::1]:2222/srv",
            Remote(kind="ssh", user="me", host="2001:db8::1", port=2222, path="/srv"),
            "me@[2001:db8::1]:/srv/inbox/x",
        ),
        (
            "rsync://aeo@box:8873/data",
            Remote(kind="rsync", user="aeo", host="box", port=8873, module="data", path=""),
            "rsync://aeo@box:8873/data/inbox/x",
        ),
        (
            "rsync://[::1]/data/sub/",
            Remote(kind="rsync", host="::1", module="data", path="/sub"),
            "rsync://[::1]/data/sub/inbox/x",
        ),
    ],
)
def test_addresses_that_work(url: str, expected: Remote, argument: str) -> None:
    remote = parse(url)
    assert remote == expected
    assert parse(str(remote)) == remote
    assert remote.argument("inbox/x") == argument


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("", "neither an absolute path"),
        ("data", "neither an absolute path"),
        ("./data", "neither an absolute path"),
        ("~/data", "neither an absolute path"),
        ("me@box:/srv", "neither an absolute path"),
        ("http://box/srv", "scheme"),
        ("SSH://box/srv", "scheme"),
        ("/srv/../etc", "'..'"),
        ("file:///srv/%2e%2e/etc", "'..'"),
        ("ssh://box/srv/..", "'..'"),
        ("rsync://box/data/../other", "'..'"),
        ("rsync://box/..", "module"),
        ("rsync://box/", "module"),
        ("rsync://box/-x", "module"),
        ("rsync://box", "no path"),
        ("ssh://box", "no path"),
        ("ssh:///srv", "odd host"),
        ("ssh://-oProxyCommand=x/srv", "odd host"),
        ("ssh://me@-box/srv", "odd host"),
        ("ssh://bo x/srv", "odd host"),
        ("ssh://-l@box/srv", "odd user"),
        ("ssh://@box/srv", "odd user"),
        ("ssh://me:hunter2@box/srv", "password"),
        ("rsync://me:hunter2@box/data", "password"),
        ("rsync://me:@box/data", "password"),
        ("ssh://2001:db8::1/srv", "brackets"),
        ("ssh://[2001:db8::zz]/srv", "no IPv6"),
        ("ssh://[::1]x/srv", "odd IPv6"),
        ("ssh://[fe80::1%eth0]/srv", "IPv6"),
        ("ssh://box:0/srv", "port"),
        ("ssh://box:65536/srv", "port"),
        ("ssh://box:/srv", "port"),
        ("ssh://box:٣/srv", "port"),
        ("ssh://box/srv?x=1", "query"),
        ("rsync://box/data#x", "fragment"),
        ("ssh://box/srv*", "* ? [ ]"),
        ("ssh://box/srv%3F", "* ? [ ]"),
        ("/srv\n/x", "control"),
        ("ssh://box/srv%00", "control"),
        ("ssh://box/srv%ff", "UTF-8"),
        ("file://elsewhere/srv", "host"),
    ],
)
def test_addresses_that_are_refused(url: str, part: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(url)
    problem = caught.value.problems[0]
    assert problem.field == "--transfer-url"
    assert part in problem.message
    assert problem.fix
    assert "hunter2" not in str(caught.value)


@given(st.text(max_size=60) | st.from_regex(r"(ssh|rsync|file)://[^\n]{0,60}", fullmatch=True))
def test_any_text_is_refused_or_reads_back_the_same(url: str) -> None:
    try:
        remote = parse(url)
    except InputError:
        return
    assert parse(str(remote)) == remote
    assert not remote.argument("x").startswith("-")
    assert ".." not in remote.argument("x").split("/")
