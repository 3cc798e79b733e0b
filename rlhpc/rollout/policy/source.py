"""Which policy plays a wave: a published version, or the script of a reference solution."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoTokenizer

from rlhpc.paths import RunPaths
from rlhpc.rollout.policy.protocol import Policy
from rlhpc.rollout.policy.reference import ReferencePolicy, reference_actions
from rlhpc.rollout.prompt import PromptFormat, choose_prompt_format
from rlhpc.rollout.settings import RolloutSettings
from rlhpc.tasks.harbor import solution_script
from rlhpc.types import Task, Wave, WaveKind

if TYPE_CHECKING:
    from rlhpc.rollout.policy.embedded import EmbeddedPolicy


class PolicySource:
    """Keeps one model in memory and changes its weights when a wave wants another version.

    ``model`` is the Hugging Face directory that the run starts from; all versions share its tokenizer.
    """

    def __init__(self, paths: RunPaths, model: Path, settings: RolloutSettings) -> None:
        self._paths = paths
        self._model = model
        self._settings = settings
        self._embedded: EmbeddedPolicy | None = None

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer that all policies of the run share."""
        return AutoTokenizer.from_pretrained(self._model)

    @cached_property
    def prompt(self) -> PromptFormat:
        """The prompt format of the run."""
        return choose_prompt_format(self.tokenizer, self._settings.prompt)

    def policy(self, wave: Wave, task: Task, position: int) -> Policy:
        """The policy that plays ``task`` in ``wave``, for a group that has ``position`` rounds of actions behind it.

        Raises:
            PolicyError: the wave's version is not published.
        """
        if wave.kind is WaveKind.REFERENCE:
            script = solution_script(task)
            actions = reference_actions(self._settings.look_command, script, self.prompt.action_style)
            return ReferencePolicy(self.tokenizer, actions, position=position)
        return self._published(wave.policy_version)

    def _published(self, version: int) -> Policy:
        from rlhpc.rollout.policy.embedded import EmbeddedPolicy  # waves of references need no model

        directory = self._paths.policy(version)
        if self._embedded is None:
            self._embedded = EmbeddedPolicy(directory, self._settings.threads)
        elif self._embedded.version != version:
            self._embedded.load(directory)
        return self._embedded
