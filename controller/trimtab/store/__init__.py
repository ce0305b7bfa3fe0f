"""The journal: what came in and went out of the controller, in one SQLite file.

`writing.py` keeps it without ever making a decision wait, `reading.py` reads it while it is written, and
`resuming.py` finds what a restarted controller goes on from.
"""
