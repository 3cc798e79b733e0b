"""The command server: the part of a sandbox that runs inside the container.

Everything in here runs with the container's own Python (3.8 or newer, no site packages) and is read by a hostile
neighbour. It imports few modules, because a sandbox starts as fast as they load: no json, no subprocess, no typing.
"""
