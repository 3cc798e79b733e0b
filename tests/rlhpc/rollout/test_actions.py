from __future__ import annotations

import pytest

from rlhpc.rollout.actions import Command, Malformed, Submit, format_action, parse_action


def test_a_plain_action_is_the_command_itself() -> None:
    assert parse_action("  sed -i 's/a/b/' x.py\n", "plain") == Command("sed -i 's/a/b/' x.py")
    assert parse_action("submit", "plain") == Submit()


def test_a_fenced_action_is_the_content_of_its_one_block() -> None:
    assert parse_action("I look.\n```bash\nls\ncat a\n```\nThen I see.", "fenced") == Command("ls\ncat a")
    assert parse_action("```sh\nsubmit\n```", "fenced") == Submit()


@pytest.mark.parametrize("text", ["ls", "```bash\nls\n```\n```bash\npwd\n```", "```python\nls\n```", "```bash\n\n```"])
def test_anything_but_one_filled_block_is_malformed(text: str) -> None:
    assert isinstance(parse_action(text, "fenced"), Malformed)


@pytest.mark.parametrize("text", ["", " \n", "a\x00b"])
def test_what_no_shell_can_run_is_malformed(text: str) -> None:
    assert isinstance(parse_action(text, "plain"), Malformed)


@pytest.mark.parametrize("style", ["plain", "fenced"])
def test_formatting_is_undone_by_parsing(style: str) -> None:
    assert parse_action(format_action("cat <<E\n# x\nE", style), style) == Command("cat <<E\n# x\nE")  # type: ignore[arg-type]
