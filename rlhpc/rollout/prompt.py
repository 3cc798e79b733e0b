"""What the policy reads: the prompt and the observations as token ids.

Only what the environment says is tokenised here. Generated ids are kept as they were generated, so an
observation is the ids that follow them, and text can never forge a special token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jinja2 import TemplateError

from rlhpc.errors import UserError
from rlhpc.rollout.actions import ActionStyle

INSTRUCTION_TOKEN = "<|instruction|>"
OBSERVATION_TOKEN = "<|observation|>"
RULES = (
    "You repair programs in the folder /workspace by running shell commands. Answer each turn with exactly one "
    "```bash block; its output comes back to you. Files stay, the shell does not: each block runs in a new "
    "shell in /workspace. The work is tested automatically. When you are done, answer with a ```bash block that "
    "contains only the word submit."
)


class PromptFormat(Protocol):
    """Turns environment text into token ids."""

    @property
    def action_style(self) -> ActionStyle:
        """How actions are written in this format."""

    def prompt(self, instruction: str) -> list[int]:
        """Ids before the first action; what is generated after them is the action."""

    def observation(self, text: str, *, action_ended: bool) -> list[int]:
        """Ids between an action and the next.

        Args:
            text: What the sandbox answered.
            action_ended: Whether the action's own last id ended it (else it was cut and is closed here).
        """

    def shorten(self, text: str, limit: int) -> str:
        """``text`` if it has at most ``limit`` ids, else about so many of its head and tail around a note."""


@dataclass(frozen=True, slots=True)
class MarkedPrompt:
    """A prompt format given by the ids around the texts; the two formats below are made of it."""

    tokenizer: Any
    action_style: ActionStyle
    before_instruction: tuple[int, ...]
    after_instruction: tuple[int, ...]
    end_of_action: tuple[int, ...]
    """Written by the policy itself, unless its action was cut."""
    before_observation: tuple[int, ...]
    after_observation: tuple[int, ...]

    def prompt(self, instruction: str) -> list[int]:
        """See ``PromptFormat``."""
        return [*self.before_instruction, *encode_text(self.tokenizer, instruction.strip()), *self.after_instruction]

    def observation(self, text: str, *, action_ended: bool) -> list[int]:
        """See ``PromptFormat``."""
        closing = () if action_ended else self.end_of_action
        return [*closing, *self.before_observation, *encode_text(self.tokenizer, text), *self.after_observation]

    def shorten(self, text: str, limit: int) -> str:
        """See ``PromptFormat``."""
        ids = encode_text(self.tokenizer, text)
        if len(ids) <= limit:
            return text
        note = f"\n... {len(ids) - limit} tokens left out ...\n"
        kept = max(limit - len(encode_text(self.tokenizer, note)), 2)
        head, tail = ids[: kept - kept // 2], ids[-(kept // 2) :]
        return f"{self.tokenizer.decode(head)}{note}{self.tokenizer.decode(tail)}"


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Ids of plain text: no special tokens are added, and none that the text spells out are recognised."""
    return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


def choose_prompt_format(tokenizer: Any, name: str = "auto") -> PromptFormat:
    """The format called ``name``: ``plain``, ``chat``, or ``auto`` (chat if the tokenizer has a chat template).

    Raises:
        UserError: the name is unknown, or the tokenizer lacks what the format needs.
    """
    if name == "auto":
        name = "chat" if tokenizer.chat_template else "plain"
    if tokenizer.eos_token_id is None:
        raise UserError(f"{tokenizer.name_or_path}: the tokenizer has no eos_token, so actions could not end; set one")
    if name == "plain":
        return plain_prompt(tokenizer)
    if name == "chat":
        return chat_prompt(tokenizer)
    raise UserError(f"model.prompt={name!r}: use auto, plain or chat")


def plain_prompt(tokenizer: Any) -> MarkedPrompt:
    """``<|instruction|>TEXT<end>ACTION<end><|observation|>TEXT<end>ACTION<end>...``; the whole action is the command.

    ``<end>`` is the end-of-sequence token. A tokenizer without the two markers gets words in their place.
    """
    end = (int(tokenizer.eos_token_id),)
    start = (int(tokenizer.bos_token_id),) if _begins_with_bos(tokenizer) else ()
    vocabulary = tokenizer.get_vocab()
    if INSTRUCTION_TOKEN in vocabulary and OBSERVATION_TOKEN in vocabulary:
        instruction: tuple[int, ...] = (vocabulary[INSTRUCTION_TOKEN],)
        observation: tuple[int, ...] = (vocabulary[OBSERVATION_TOKEN],)
    else:
        instruction = tuple(encode_text(tokenizer, "Instruction:\n"))
        observation = tuple(encode_text(tokenizer, "Output:\n"))
    return MarkedPrompt(
        tokenizer=tokenizer,
        action_style="plain",
        before_instruction=start + instruction,
        after_instruction=end,
        end_of_action=end,
        before_observation=observation,
        after_observation=end,
    )


def chat_prompt(tokenizer: Any) -> MarkedPrompt:
    """The model's own chat template: rules as system text, instruction and observations as user turns.

    The template is rendered once with marks in place of the texts and cut at the marks, so that generated ids
    never pass through it again.

    Raises:
        UserError: there is no template, or it drops what it is given.
    """
    marks = ("\ue000instruction\ue000", "\ue000action\ue000", "\ue000observation\ue000")
    user, assistant, answer = (
        {"role": role, "content": mark} for role, mark in zip(("user", "assistant", "user"), marks, strict=True)
    )
    try:
        turns = [{"role": "system", "content": RULES}, user]
        first, conversation = _render(tokenizer, turns), _render(tokenizer, [*turns, assistant, answer])
    except TemplateError:  # some templates know no system turn
        turns = [{"role": "user", "content": f"{RULES}\n\n{marks[0]}"}]
        first, conversation = _render(tokenizer, turns), _render(tokenizer, [*turns, assistant, answer])
    if any(conversation.count(mark) != 1 for mark in marks) or first.count(marks[0]) != 1:
        raise UserError(f"{tokenizer.name_or_path}: the chat template drops turns; use model.prompt=plain")
    before_instruction, after_instruction = first.split(marks[0])
    between, after_observation = conversation.split(marks[1])[1].split(marks[2])
    end, before_observation = _split_end(tokenizer, _encode_markup(tokenizer, between))
    return MarkedPrompt(
        tokenizer=tokenizer,
        action_style="fenced",
        before_instruction=_encode_markup(tokenizer, before_instruction),
        after_instruction=_encode_markup(tokenizer, after_instruction),
        end_of_action=end,
        before_observation=before_observation,
        after_observation=_encode_markup(tokenizer, after_observation),
    )


def _render(tokenizer: Any, turns: Sequence[dict[str, str]]) -> str:
    if not tokenizer.chat_template:
        raise UserError(f"{tokenizer.name_or_path}: the tokenizer has no chat template; use model.prompt=plain")
    return str(tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=True))


def _encode_markup(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Ids of a piece of the template, special tokens recognised."""
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def _split_end(tokenizer: Any, ids: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Cut what follows an action into the end that the policy writes itself and the rest."""
    if tokenizer.eos_token_id in ids:
        position = ids.index(tokenizer.eos_token_id) + 1
        return ids[:position], ids[position:]
    return (int(tokenizer.eos_token_id),), ids


def _begins_with_bos(tokenizer: Any) -> bool:
    return tokenizer.bos_token_id is not None and list(tokenizer.encode(""))[:1] == [tokenizer.bos_token_id]
