"""What Redis holds: who does what now. The only Redis commands of the platform.

Read in this order: keys, connection, evaluations, trials, workers, inbox, events, watched, history, health.
Lua scripts lie in ``lua/``.
"""
