"""The address results go to and tasks come from."""

from __future__ import annotations

from aeo.core.condition import Condition, fault, ok
from aeo.core.errors import AeoError
from aeo.reach import advice
from aeo.transfer import move, remote


def measure(url: str, password: str) -> tuple[str, str, str]:
    """Try the address; returns it, why it cannot be used, and what to do (empty if it can)."""
    try:
        place = remote.parse(url)
    except AeoError as error:
        return "the transfer address", str(error), "Check AEO_TRANSFER_URL."
    try:
        move.check(place, password=password)
    except AeoError as error:
        return str(place), str(error), advice(place, str(error)) or "Check AEO_TRANSFER_URL, and the server there."
    return str(place), "", ""


def judge(found: tuple[str, str, str]) -> Condition:
    """Judge what was found."""
    place, why, fix = found
    return fault("transfer", why.rstrip("."), fix) if why else ok("transfer", f"{place} can be written to")
