"""Runs in Harbor's own Python, never in AEO's: the driver, and an environment without containers."""
