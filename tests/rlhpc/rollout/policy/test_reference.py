from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from rlhpc.rollout.policy.reference import ReferencePolicy, reference_actions, solution_commands
from rlhpc.types import FinishReason, SamplingParameters

SCRIPT = "#!/bin/bash\n# Repairs it.\nset -euo pipefail\n\ncat > a.py <<E\n# kept\nE\nsed -i 's/a/b/' b.py\n"


def test_the_preamble_of_a_solution_is_dropped_and_nothing_else() -> None:
    assert solution_commands(SCRIPT) == "cat > a.py <<E\n# kept\nE\nsed -i 's/a/b/' b.py"


def test_a_script_is_look_solve_submit() -> None:
    assert reference_actions("ls", "#!/bin/sh\nrm x", "plain") == ["ls", "rm x", "submit"]
    assert reference_actions("ls", "rm x", "fenced")[1] == "```bash\nrm x\n```"


@pytest.mark.parametrize(("position", "expected"), [(0, ["one", "two", "two"]), (1, ["two", "two", "two"])])
def test_every_row_replays_the_script_from_its_position(
    tokenizer: PreTrainedTokenizerFast, position: int, expected: list[str]
) -> None:
    policy = ReferencePolicy(tokenizer, ["one", "two"], position=position)
    calls = [policy.generate([[1], [2]], [0, 0], SamplingParameters(max_new_tokens=1)) for _ in expected]
    assert [[policy.decode(g.token_ids) for g in call] for call in calls] == [[text, text] for text in expected]
    generation = calls[0][0]
    assert generation.finish_reason is FinishReason.STOP and generation.policy_version == -1
    assert generation.token_ids[-1] == tokenizer.eos_token_id and set(generation.logprobs) == {0.0}
