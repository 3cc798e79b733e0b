from __future__ import annotations

import io

from rich.console import Console

from rlhpc.tracking.progress import LineDisplay, Pace, Snapshot, panel, progress_display


def snapshot(step: int = 3, done: int = 2, stage: str = "rolling out") -> Snapshot:
    figures = {"solve rate": "41 %", "reward": "0.38", "sandboxes/s": "5.1"}
    return Snapshot(
        stage=stage, step=step, steps=24, done=done, total=8, figures=figures, history=(0.1, 0.3, 0.41)
    )


def console(width: int = 80, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)


def shown(target: Console) -> list[str]:
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue().splitlines()


def test_elsewhere_than_on_a_terminal_lines_tell_changes_and_do_not_flood() -> None:
    target, now = console(), [0.0]
    display = LineDisplay(target, lambda: now[0])
    for done in range(1000):
        now[0] += 0.1
        display.update(snapshot(done=done))
    display.update(snapshot(step=4, stage="learning"))
    display.event("evaluation: 85 % of 64 tasks solved")
    lines = shown(target)
    assert len(lines) == 4
    assert lines[0].endswith("step 3/24 · rolling out · 0/8 groups · solve rate 41 % · reward 0.38 · sandboxes/s 5.1")
    assert "learning" in lines[2] and "85 % of 64 tasks" in lines[3]


def test_a_log_file_gets_the_lines() -> None:
    target = console()
    with progress_display("demo", target) as display:
        display.update(snapshot())
    assert len(shown(target)) == 1


def test_the_panel_tells_all_within_80_columns() -> None:
    target = console()
    target.print(panel("demo", snapshot(), elapsed=75, remaining=500))
    lines = shown(target)
    assert max(map(len, lines)) <= 80
    for text in ("demo", "rolling out", "step 3/24", "2/8 groups", "solve rate 41 %", "▁", "about 8 min 20 s left"):
        assert any(text in line for line in lines)


def test_a_terminal_gets_the_live_panel_and_events_above_it() -> None:
    target = console(terminal=True)
    with progress_display("demo", target) as display:
        display.update(snapshot())
        display.event("something [happened]")
    output = "\n".join(shown(target))
    assert "something [happened]" in output and "step 3/24" in output


def test_time_left_comes_from_the_steps_seen() -> None:
    pace = Pace(0.0)
    pace.observe(10.0, 3)
    assert pace.remaining(10.0, snapshot(step=3)) is None
    pace.observe(30.0, 4)
    pace.observe(35.0, 4)
    assert pace.remaining(30.0, snapshot(step=4)) == 20 * 20
    assert pace.remaining(35.0, snapshot(step=4)) == 20 * 20 - 5
