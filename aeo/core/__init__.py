"""The pure core: no I/O, standard library only.

Read in this order: errors, names, model, outcome, allot.
"""
