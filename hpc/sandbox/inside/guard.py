"""What the server gives up before it takes the first command: user, resources, system calls."""

from __future__ import annotations

import ctypes
import os
import resource

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 22, 36, 38
SECCOMP_MODE_FILTER = 2


class _FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def confine(user: int | None, limits: dict[str, int], seccomp_program: bytes) -> None:
    """Irrevocably restrict this process and all that it starts.

    Args:
        user: Numeric user and group to become, or None to stay.
        limits: Name of an RLIMIT constant of ``resource`` -> value, both soft and hard.
        seccomp_program: Array of ``struct sock_filter``.
    """
    _be_first_to_go_when_memory_is_short()
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    for name, value in limits.items():
        _lower(getattr(resource, name), value)
    libc = ctypes.CDLL(None, use_errno=True)
    _control(libc, PR_SET_CHILD_SUBREAPER, 1)
    _control(libc, PR_SET_DUMPABLE, 0)  # commands share our user: keep them out of /proc/<server>/mem and fd
    _control(libc, PR_SET_NO_NEW_PRIVS, 1)
    buffer = ctypes.create_string_buffer(seccomp_program, len(seccomp_program))
    program = _FilterProgram(len(seccomp_program) // 8, ctypes.addressof(buffer))
    _control(libc, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program))


def _control(libc: ctypes.CDLL, option: int, value: int, pointer: int = 0) -> None:
    arguments = (ctypes.c_ulong(argument) for argument in (value, pointer, 0, 0))
    if libc.prctl(option, *arguments):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def _lower(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


def _be_first_to_go_when_memory_is_short() -> None:
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # some sites mount it read-only; the watchdog still holds the limit
