"""The system-call filter of sandboxes, as a classic BPF program (seccomp(2), linux/seccomp.h, linux/filter.h).

It takes away what code in a sandbox has no need of and what kernel exploits start from: new namespaces, mounts, tracing
other processes, key rings, BPF, io_uring, userfaultfd, and the host's side of a virtual machine's sockets.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
"""Offsets in ``struct seccomp_data``."""
NEW_NAMESPACES = 0x7E020000
"""All CLONE_NEW* bits that clone(2) takes (CLONE_NEWTIME is for clone3 only)."""
AF_VSOCK = 40
PR_SET_DUMPABLE = 4

SAME_EVERYWHERE = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "mount_setattr": 442,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """System-call numbers of one kind of processor."""

    audit: int
    """AUDIT_ARCH_* constant."""
    denied: tuple[int, ...]
    clone: int
    clone3: int
    socket: int
    prlimit: int
    prctl: int


ARCHITECTURES = {
    "x86_64": Architecture(
        audit=0xC000003E,
        # pivot_root chroot mount umount2 ptrace unshare setns process_vm_readv process_vm_writev kcmp bpf
        # perf_event_open userfaultfd add_key request_key keyctl open_by_handle_at
        denied=(155, 161, 165, 166, 101, 272, 308, 310, 311, 312, 321, 298, 323, 248, 249, 250, 304),
        clone=56, clone3=435, socket=41, prlimit=302, prctl=157,
    ),
    "aarch64": Architecture(
        audit=0xC00000B7,
        denied=(41, 51, 40, 39, 117, 97, 268, 270, 271, 272, 280, 241, 282, 217, 218, 219, 265),
        clone=220, clone3=435, socket=198, prlimit=261, prctl=167,
    ),
}  # fmt: skip


def filter_program(machine: str) -> bytes:
    """The filter for ``machine`` (as of ``platform.machine()``). Raises KeyError for one that is not known."""
    architecture = ARCHITECTURES[machine]
    steps = [
        *_if_not(ARCHITECTURE, architecture.audit, KILL_PROCESS),
        (LOAD, 0, 0, NUMBER),
        # the x32 numbers of x86_64 would slip through the list below
        (AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, ERRNO | EPERM),
        # its flags are behind a pointer that a filter can't read; libraries fall back to clone
        (EQUAL, 0, 1, architecture.clone3), (RETURN, 0, 0, ERRNO | ENOSYS),
        *_if_argument(architecture.clone, (ANY_BIT, 0, 1, NEW_NAMESPACES), EPERM),
        *_if_argument(architecture.socket, (EQUAL, 0, 1, AF_VSOCK), EAFNOSUPPORT),
        # limits of another process, such as the server's: only 0 (oneself) is fine
        *_if_argument(architecture.prlimit, (EQUAL, 1, 0, 0), EPERM),
        # hiding one's open files from the watchdog
        *_if_argument(architecture.prctl, (EQUAL, 0, 1, PR_SET_DUMPABLE), EPERM),
    ]  # fmt: skip
    for number in architecture.denied + tuple(SAME_EVERYWHERE.values()):
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | EPERM)]
    steps.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _if_not(offset: int, value: int, action: int) -> list[tuple[int, int, int, int]]:
    return [(LOAD, 0, 0, offset), (EQUAL, 1, 0, value), (RETURN, 0, 0, action)]


def _if_argument(number: int, test: tuple[int, int, int, int], error: int) -> list[tuple[int, int, int, int]]:
    """Refuse call ``number`` when ``test`` holds for the low half of its first argument, else allow it."""
    return [
        (EQUAL, 0, 4, number),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        test,
        (RETURN, 0, 0, ERRNO | error),
        (RETURN, 0, 0, ALLOW),
    ]
