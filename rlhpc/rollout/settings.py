"""How episodes are played and how a worker behaves, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """Everything of a rollout that is not in the wave."""

    max_rounds: int = 50
    token_budget: int = 16384
    """Longest trajectory, tokens. No round begins that might exceed it."""
    time_budget_seconds: float = 1800.0
    """Longest episode, seconds. No round begins after it."""
    command_timeout_seconds: float = 60.0
    observation_tokens: int = 2048
    """Longest observation, tokens; head and tail are kept."""
    show_test_results: bool = True
    """Whether observations tell how many hidden tests pass."""
    look_command: str = "cat -n *.py"
    """First action of reference transcripts."""
    retries: int = 2
    """Restores of a sandbox that died in one round, before the trajectory is given up as invalid."""
    reward_weights: Mapping[str, float] = field(default_factory=lambda: {"tests_passed": 1.0})
    reward_clip: tuple[float, float] = (-1.0, 1.0)
    prompt: str = "auto"
    """``plain``, ``chat`` or ``auto`` (chat if the tokenizer has a chat template)."""
    threads: int = 1
    """Threads of the embedded policy. Another number changes the last bits of results."""
    parallel_sandboxes: int = 16
    """Sandboxes in which something runs at once; those of a larger group wait for their turn."""
    lease_seconds: float = 120.0
    """A claim that was not renewed for so long may be taken over."""
    poll_seconds: float = 0.25
    """Pause of a worker that finds nothing to do."""
