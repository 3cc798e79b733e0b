"""Isolated places where code runs that nobody has read.

Start reading at protocol.py (what a sandbox is), then open.py (which backend, how to get one), container.py (the one
implementation), bubblewrap.py and apptainer.py (command lines of the container programs), inside/ (the command server
that runs in the container), snapshot.py and tree.py (the workspace, seen from the host), pool.py, self_check.py.
"""
