"""What a policy is: token ids in; token ids and log-probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlhpc.types import Generation, SamplingParameters


class Policy(Protocol):
    """Generates actions for a batch of contexts."""

    @property
    def version(self) -> int:
        """Version of the weights that the next call uses."""

    def encode(self, text: str) -> list[int]:
        """Token ids of environment text; adds no special tokens."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of generated ids, without special tokens."""

    def generate(
        self, contexts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: SamplingParameters
    ) -> list[Generation]:
        """One action per context. ``seeds[i]`` alone decides the randomness of row i (given equal batch shapes).

        An empty context is a row that is not wanted (a finished episode that keeps its place in the
        fixed batch shape); its Generation is empty and must be ignored.
        """
