"""This machine's clock beside another's. Leases stand on the store's clock alone; logs, results and TLS on this one."""

from __future__ import annotations

from aeo.core.condition import Condition, fault, ok, warning

#: Seconds: what a network and whole seconds may hide, and what makes times in results wrong.
NOTICED, WRONG = 5.0, 30.0
FIX = "Set it by NTP: `timedatectl set-ntp true`, or install chrony; then look at `timedatectl`."


def judge(ahead: float, beside: str) -> Condition:
    """Judge how far this clock is ahead of ``beside``'s, seconds; negative is behind."""
    text = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} {beside}"
    if abs(ahead) > WRONG:
        return fault("clock", f"{text}: times of results and logs are wrong, and TLS may fail", FIX)
    if abs(ahead) > NOTICED:
        return warning("clock", text, FIX)
    return ok("clock", f"as {beside} has it")
