"""What every backend must do: one list of checks, for the tests and for 'rlhpc doctor'.

Each check opens sandboxes with the factory it is given and raises SandboxError if a promise does not hold.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hpc.errors import SandboxError
from hpc.sandbox.protocol import ExecResult, Limit, Sandbox, SandboxFactory, SandboxLimits, SandboxSpec

Check = Callable[[SandboxFactory], None]
SMALL = SandboxLimits(
    memory_mib=200, processes=40, file_size_mib=16, disk_mib=48, output_bytes=2000, shared_memory_mib=16
)


@contextmanager
def opened(factory: SandboxFactory, spec: SandboxSpec | None = None) -> Iterator[Sandbox]:
    """A started sandbox with small limits, closed at the end."""
    sandbox = factory(replace(spec or SandboxSpec(), limits=SMALL))
    sandbox.start()
    try:
        yield sandbox
    finally:
        sandbox.close()


def expect(condition: bool, message: str) -> None:
    """Raise SandboxError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise SandboxError(message)


def expect_output(sandbox: Sandbox, command: str, expected: str) -> None:
    """Raise SandboxError unless ``command`` prints ``expected`` (surrounding space aside)."""
    result = sandbox.execute(command, 10)
    expect(result.stdout.strip() == expected, f"{command!r} should print {expected!r}, but: {result}")


def expect_limit(result: ExecResult, limit: Limit) -> None:
    """Raise SandboxError unless ``result`` names ``limit``."""
    expect(result.limit is limit, f"limit {limit} was passed, but the result says {result.limit}: {result}")


def commands_report_their_outcome(factory: SandboxFactory) -> None:
    """Exit code, both streams, death by signal."""
    with opened(factory) as sandbox:
        result = sandbox.execute("echo out; echo err >&2; exit 3", 10)
        expect((result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n"), f"wrong outcome: {result}")
        expect(not result.truncated and not result.timed_out and result.limit is None, f"wrong flags: {result}")
        expect(sandbox.execute("kill -TERM $$", 10).exit_code == 128 + 15, "death by signal is not 128 + signal")
        expect(0 < result.duration < 5 and 0 < result.peak_memory < 200, f"implausible measures: {result}")


def workspace_is_filled(factory: SandboxFactory) -> None:
    """Files and source folder are there, writable, and commands run among them."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        (source / "package").mkdir()
        (source / "package" / "tool.sh").write_text("echo tool\n")
        (source / "package" / "tool.sh").chmod(0o700)
        spec = SandboxSpec(files={"a/b.txt": b"b\n", "run.py": b"print(1)\n"}, source=source)
        with opened(factory, spec) as sandbox:
            expect_output(sandbox, "pwd; cat a/b.txt; ./package/tool.sh", "/workspace\nb\ntool")
            expect_output(sandbox, "echo x >> a/b.txt && echo y > package/new && python3 run.py", "1")
            expect(sandbox.read_files(["a/b.txt", "none"]) == {"a/b.txt": b"b\nx\n", "none": None}, "wrong content")


def environment_is_clean(factory: SandboxFactory) -> None:
    """Nothing of the host's environment; the spec's own variables."""
    with opened(factory, SandboxSpec(environment={"COLOUR": "blue"})) as sandbox:
        names = {line.partition("=")[0] for line in sandbox.execute("env", 10).stdout.splitlines()}
        allowed = {"HOME", "PATH", "LANG", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "COLOUR", "PWD", "OLDPWD", "_",
                   "SHLVL"}  # fmt: skip
        expect(names <= allowed and "COLOUR" in names, f"unexpected variables: {sorted(names - allowed)}")


def host_files_are_hidden(factory: SandboxFactory) -> None:
    """Neither the host's /tmp nor homes nor name nor process list."""
    with tempfile.NamedTemporaryFile(prefix="secret") as secret, opened(factory) as sandbox:
        expect_output(sandbox, f"cat {secret.name}; ls -A /tmp /root /home 2>/dev/null | grep -c secret", "0")
        expect_output(sandbox, f"cat {Path.home()}/.bashrc {Path.cwd()}/* 2>/dev/null | wc -c", "0")
        expect_output(sandbox, "cat /proc/sys/kernel/hostname", "sandbox")
        processes = int(sandbox.execute("ls -d /proc/[0-9]* | wc -l", 10).stdout)
        expect(processes <= 8, f"{processes} processes are visible; the host's seem to be among them")


def network_is_unreachable(factory: SandboxFactory) -> None:
    """Not even the host's 127.0.0.1 or abstract sockets."""
    name = f"rlhpc-check-{time.monotonic_ns()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen()
        port = server.getsockname()[1]
        attempts = [f"socket.create_connection(('127.0.0.1', {port}), 2)",
                    f"socket.socket(socket.AF_UNIX).connect(chr(0) + '{name}')",
                    "socket.create_connection(('192.0.2.1', 80), 2)"]  # fmt: skip
        with opened(factory) as sandbox:
            for attempt in attempts:
                result = sandbox.execute(f'python3 -c "import socket; {attempt}"', 10)
                expect("Error" in result.stderr, f"this should fail: {attempt}")


def hung_command_is_ended(factory: SandboxFactory) -> None:
    """At its timeout, with all that it started; the next command works."""
    with opened(factory) as sandbox:
        began = time.monotonic()
        result = sandbox.execute("trap '' TERM; setsid sleep 60 & while :; do sleep 1; done", 0.5)
        expect_limit(result, Limit.WALL_TIME)
        expect(result.timed_out and time.monotonic() - began < 3, "a hung command lasted too long")
        expect_output(sandbox, "ls -d /proc/[0-9]* | wc -l", "4")


def nothing_runs_between_commands(factory: SandboxFactory) -> None:
    """Background processes end with their command, and do not delay it."""
    with opened(factory) as sandbox:
        began = time.monotonic()
        result = sandbox.execute("(setsid sh -c 'sleep 1; echo late > late' &) ; echo done", 10)
        expect(result.stdout == "done\n" and time.monotonic() - began < 1, f"a background process delays: {result}")
        expect_output(sandbox, "sleep 1.3; ls", "")


def memory_is_limited(factory: SandboxFactory) -> None:
    """By use, over all processes together."""
    hog = "python3 -c \"import time; x = bytearray(b'x') * (120 << 20); time.sleep(20)\""
    with opened(factory) as sandbox:
        expect_limit(sandbox.execute(f"{hog} & {hog}", 15), Limit.MEMORY)
        expect_output(sandbox, "echo alive", "alive")


def processes_are_limited(factory: SandboxFactory) -> None:
    """A fork bomb ends itself only."""
    with opened(factory) as sandbox:
        expect_limit(sandbox.execute("while :; do sleep 30 & done", 15), Limit.PROCESSES)
        expect_output(sandbox, "echo alive", "alive")


def output_is_limited(factory: SandboxFactory) -> None:
    """Head and tail are kept; printing for ever is ended."""
    with opened(factory) as sandbox:
        result = sandbox.execute("echo first; seq 100000; echo last", 10)
        expect(result.truncated and len(result.stdout) < 2200, f"{len(result.stdout)} characters kept")
        expect(result.stdout.startswith("first") and result.stdout.endswith("last\n"), "head or tail is missing")
        expect_limit(sandbox.execute("yes", 15), Limit.OUTPUT)


def files_and_disk_are_limited(factory: SandboxFactory) -> None:
    """One file, and all files together, also in a folder that is locked."""
    openings = "mkdir dark; " + " ".join(f"exec {number}> dark/{number};" for number in range(3, 9))
    fill = "chmod 000 dark; for i in 3 4 5 6 7 8; do eval \"head -c 15000000 /dev/zero >&$i\"; sleep 0.1; done"
    with opened(factory) as sandbox:
        expect_limit(sandbox.execute("exec head -c 30000000 /dev/zero > big", 15), Limit.FILE_SIZE)
        expect_limit(sandbox.execute(f"rm big; {openings} {fill}", 15), Limit.DISK)
        expect_output(sandbox, "chmod 755 dark; rm -rf dark; echo alive", "alive")


def nameless_files_are_limited(factory: SandboxFactory) -> None:
    """Deleted but open files, and files in memory."""
    deleted = "for i in 3 4 5 6 7 8; do eval \"exec $i> f; rm f; head -c 15000000 /dev/zero >&$i\"; sleep 0.1; done"
    memory = "import os, time\nfor i in range(9): os.write(os.memfd_create('m'), bytes(15000000)); time.sleep(0.1)"
    with opened(factory, SandboxSpec(files={"memory.py": memory.encode()})) as sandbox:
        expect_limit(sandbox.execute(deleted, 15), Limit.DISK)
        expect_limit(sandbox.execute("python3 memory.py", 15), Limit.DISK)
        expect_output(sandbox, "echo alive", "alive")


def memory_folders_are_limited(factory: SandboxFactory) -> None:
    """/dev/shm and /tmp can't be used to fill the node's memory."""
    fill = "for i in 1 2 3 4 5 6 7 8 9; do head -c 15000000 /dev/zero > {}/$i || exit 1; sleep 0.1; done"
    with opened(factory) as sandbox:
        for folder in ("/dev/shm", "/tmp"):
            result = sandbox.execute(fill.format(folder), 15)
            expect(result.exit_code != 0, f"{folder} took 135 MB")
            sandbox.execute(f"rm -f {folder}/*", 15)


def mounts_keep_their_promise(factory: SandboxFactory) -> None:
    """Read-only is read-only, writable is empty and writable, the image can't be changed."""
    with tempfile.TemporaryDirectory() as name:
        Path(name, "test.sh").write_text("echo tested\n")
        spec = SandboxSpec(read_only={"/tests": Path(name)}, writable=("/logs/verifier",))
        with opened(factory, spec) as sandbox:
            expect_output(sandbox, "sh /tests/test.sh; ls /logs/verifier; echo 1 > /logs/verifier/reward.txt", "tested")
            reward = "/logs/verifier/reward.txt"
            expect(sandbox.read_files([reward]) == {reward: b"1\n"}, "the reward can't be read")
            for path in ("/tests/test.sh", "/tests/new", "/usr/new", "/etc/passwd", "/new"):
                expect(sandbox.execute(f"echo x >> {path}", 10).exit_code != 0, f"{path} can be written")
            expect(Path(name, "test.sh").read_text() == "echo tested\n", "the host's file was changed")


def links_lead_nowhere(factory: SandboxFactory) -> None:
    """What a command planted misleads neither reading nor writing, and pipes do not block."""
    with opened(factory) as sandbox:
        sandbox.execute("ln -s /etc/passwd link; ln -s /etc folder; mkfifo pipe; mkdir directory", 10)
        paths = ["link", "folder/passwd", "pipe", "directory", "../etc/passwd", "/proc/1/environ/x"]
        contents = sandbox.read_files(paths)
        expect(set(contents.values()) == {None}, f"something was read: {contents}")
        sandbox.write_files({"link": b"mine"})
        expect_output(sandbox, "test ! -L link && cat link", "mine")
        try:
            sandbox.write_files({"folder/new": b""})
        except SandboxError:
            return
        raise SandboxError("a file was written through a link")


def server_is_out_of_reach(factory: SandboxFactory) -> None:
    """Signals, memory, descriptors and limits of the command server."""
    lower = "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))"
    with opened(factory) as sandbox:
        for attack in ("kill -9 1", "kill -STOP 1", "kill -9 -1", "cat /proc/1/mem", "ls /proc/1/fd/",
                       "echo ok > /proc/1/fd/1", f'python3 -c "{lower}"', "echo ok >&3", "echo ok >&4"):  # fmt: skip
            sandbox.execute(attack, 10)
            expect_output(sandbox, "echo alive", "alive")
        expect_output(sandbox, "ls /proc/1/fd 2>/dev/null | wc -l", "0")
        expect_output(sandbox, "python3 -c \"import os; print(sorted(os.listdir('/proc/self/fd'))[:-1])\"",
                      "['0', '1', '2']")  # fmt: skip


def dangerous_calls_are_refused(factory: SandboxFactory) -> None:
    """Namespaces, mounts, tracing."""
    with opened(factory) as sandbox:
        for call in ("unshare(0x10000000)", "ptrace(0, 0, 0, 0)", "chroot(b'/tmp')"):
            result = sandbox.execute(f'python3 -c "import ctypes; print(ctypes.CDLL(None).{call})"', 10)
            expect(result.stdout.strip() == "-1", f"{call} is not refused: {result}")
        expect(sandbox.execute("mount -t tmpfs none /tmp", 10).exit_code != 0, "mount is not refused")
        expect_output(sandbox, "grep -c '^CapEff:.0000000000000000$' /proc/self/status", "1")


HOSTILE = r"""
mkdir -p deep/er .git/hooks; echo 'exit 1' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit
echo a > 'new
line'; ln -s /etc/passwd link; ln -s loop loop; mkfifo pipe; ln 'new
line' hard; mkdir locked; echo s > locked/secret; chmod 000 locked; echo u > unreadable; chmod 000 unreadable
truncate -s 8M sparse; mkdir empty; printf x > "$(printf 'b\377d')"
python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('socket')"
"""
LISTING = "chmod 755 locked; chmod 644 unreadable; find . ! -name socket | LC_ALL=C sort | cksum; cat locked/secret"


def snapshots_go_back_in_time(factory: SandboxFactory) -> None:
    """Equal workspaces have equal identifiers; a hostile workspace comes back as it was."""
    with opened(factory, SandboxSpec(files={"a.py": b"1"})) as sandbox:
        first = sandbox.snapshot()
        expect(sandbox.snapshot() == first, "two snapshots of the same workspace differ")
        sandbox.execute(HOSTILE, 10)
        second = sandbox.snapshot()
        expect(second != first, "a change gives no new snapshot")
        expect(sandbox.snapshot() == second, "saving a workspace changes it")
        listing = sandbox.execute(LISTING, 10)
        sandbox.restore(second)
        expect(sandbox.snapshot() == second, "a restored workspace is not the same")
        expect(sandbox.execute(LISTING, 10).stdout == listing.stdout, "a restored workspace looks different")
        sandbox.restore(first)
        expect_output(sandbox, "ls -A; cat a.py", "a.py\n1")
        expect(sandbox.snapshot() == first, "the first snapshot does not come back")


def change_is_noticed_at_once(factory: SandboxFactory) -> None:
    """Also one that keeps size and time."""
    with opened(factory, SandboxSpec(files={"a": b"1111"})) as sandbox:
        seen = set()
        for digit in "123451":
            sandbox.execute(f"printf {digit}{digit}{digit}{digit} > a; touch -d @1000000000 a", 10)
            seen.add(sandbox.snapshot())
        expect(len(seen) == 5, f"5 contents gave {len(seen)} snapshots")


def workspace_can_be_exported(factory: SandboxFactory) -> None:
    """Links as links, nothing of the host in it."""
    with tempfile.TemporaryDirectory() as name, opened(factory) as sandbox:
        sandbox.execute(HOSTILE, 10)
        target = Path(name, "copy")
        sandbox.export_workspace(target)
        expect((target / "link").is_symlink() and (target / "locked" / "secret").read_text() == "s\n", "wrong copy")
        expect(not (target / "pipe").exists() and (target / "sparse").stat().st_size == 8 << 20, "wrong copy")


def launched_sandbox_takes_any_content(factory: SandboxFactory) -> None:
    """What a pool does: start first, fill later."""
    with tempfile.TemporaryDirectory() as name:
        spec = SandboxSpec(read_only={"/tests": Path(name)}, limits=SMALL)
        sandbox = factory(spec)
        sandbox.launch()
        try:
            Path(name, "late").write_text("late\n")
            sandbox.fill(replace(spec, image=None, files={"f": b"f\n"}, environment={"V": "v"}))
            expect_output(sandbox, "cat f /tests/late; echo $V; rm -f /tests/late; ls /tests", "f\nlate\nv\nlate")
        finally:
            sandbox.close()


CHECKS: Mapping[str, Check] = {
    check.__name__.replace("_", " "): check
    for check in (
        commands_report_their_outcome, workspace_is_filled, environment_is_clean, host_files_are_hidden,
        network_is_unreachable, hung_command_is_ended, nothing_runs_between_commands, memory_is_limited,
        processes_are_limited, output_is_limited, files_and_disk_are_limited, nameless_files_are_limited,
        memory_folders_are_limited,
        mounts_keep_their_promise, links_lead_nowhere, server_is_out_of_reach, dangerous_calls_are_refused,
        snapshots_go_back_in_time, change_is_noticed_at_once, workspace_can_be_exported,
        launched_sandbox_takes_any_content,
    )
}  # fmt: skip
"""Name of each promise -> the function that checks it."""
