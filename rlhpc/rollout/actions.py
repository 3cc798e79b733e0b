"""What an action's text means: a shell command, the end of the episode, or neither."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

ActionStyle = Literal["plain", "fenced"]
"""``plain``: the whole text is the command. ``fenced``: the command is in the one ```bash block of the text."""

SUBMIT = "submit"
_BLOCK = re.compile(r"^```(?:bash|sh|shell)[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Command:
    """Run this with ``sh -c``."""

    command: str


@dataclass(frozen=True, slots=True)
class Submit:
    """The policy declares itself done."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """Not an action; ``reason`` is told to the policy."""

    reason: str


def parse_action(text: str, style: ActionStyle) -> Command | Submit | Malformed:
    """Read an action. Never raises: what the policy writes is data."""
    if style == "fenced":
        blocks = _BLOCK.findall(text)
        if len(blocks) != 1:
            return Malformed(f"write exactly one ```bash block; there are {len(blocks)}")
        text = blocks[0]
    command = text.strip()
    if not command:
        return Malformed("the command is empty")
    if "\x00" in command:
        return Malformed("the command contains a NUL character")
    return Submit() if command == SUBMIT else Command(command)


def format_action(command: str, style: ActionStyle) -> str:
    """The text that ``parse_action`` reads as ``command``; how reference actions are written."""
    return f"```bash\n{command}\n```" if style == "fenced" else command
