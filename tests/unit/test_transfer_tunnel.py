"""What a tunnel must carry, from the addresses the controller tells its workers."""

from __future__ import annotations

import pytest

from aeo import tunnel
from aeo.core.errors import InputError

BROKER = "redis://:secret@127.0.0.1:21000/0"


def planned(transfer_url: str = "", broker_url: str = BROKER, target: str = "aeo@b", **more: object) -> tunnel.Tunnel:
    values = {"broker_url": broker_url, "transfer_url": transfer_url, "controller": (17380, 7380), **more}
    return tunnel.plan(target, **values)  # type: ignore[arg-type]


def ports(made: tunnel.Tunnel) -> list[tuple[int, int]]:
    return [(forward.there, forward.here) for forward in made.forwards]


@pytest.mark.parametrize(
    ("transfer_url", "carried", "given"),
    [
        ("rsync://aeo@127.0.0.1:8873/aeo", [(8873, 8873)], ""),
        ("rsync://aeo@localhost/aeo", [(17873, 873)], "rsync://aeo@127.0.0.1:17873/aeo"),
        ("ssh://aeo@127.0.0.1/srv/aeo", [(17022, 22)], "ssh://aeo@127.0.0.1:17022/srv/aeo"),
        ("ssh://aeo@[::1]:2222/srv/aeo", [(2222, 2222)], ""),
        ("ssh://aeo@head/srv/aeo", [], ""),
    ],
)
def test_the_way_of_results(transfer_url: str, carried: list[tuple[int, int]], given: str) -> None:
    made = planned(transfer_url)
    assert ports(made) == [(17380, 7380), (21000, 21000), *carried]
    assert made.transfer_url == given
    assert (f"--transfer-url {given}" in made.worker_command()) == bool(given)
    assert "http://127.0.0.1:17380" in made.worker_command()


def test_what_it_cannot_carry_is_told() -> None:
    assert "mounted" in planned("/srv/aeo").notes[0]
    distant = planned("rsync://aeo@head/aeo", "redis://10.0.0.5:6379/0")
    assert ports(distant) == [(17380, 7380)]
    assert ["10.0.0.5" in distant.notes[0], "rsync://aeo@head/aeo" in distant.notes[1]] == [True, True]


def test_no_secret_is_in_the_command() -> None:
    made = planned("rsync://aeo@127.0.0.1:8873/aeo", ssh_port=2222, more=[(5000, 5001)])
    command = made.command()
    assert "secret" not in " ".join(command) + made.worker_command() + repr(made)
    assert command[-1] == "aeo@b"
    assert command[command.index("-p") + 1] == "2222"
    assert "127.0.0.1:5000:127.0.0.1:5001" in command


@pytest.mark.parametrize("target", ["", "-oProxyCommand=x", "a b", "a@-x", "a@b@c", "a:b@c", "a/b", "a\nb"])
def test_odd_targets_are_refused(target: str) -> None:
    with pytest.raises(InputError, match="HOST"):
        planned(target=target)


@pytest.mark.parametrize("target", ["b", "aeo@b.example.org", "u-1@10.0.0.2", "aeo@2001:db8::1", "gpu_1"])
def test_plain_targets_are_taken(target: str) -> None:
    assert planned(target=target).command()[-1] == target


def test_one_port_for_two_things_is_refused() -> None:
    with pytest.raises(InputError, match="17380"):
        planned(more=[(17380, 80)])
