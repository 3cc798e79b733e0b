from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhpc.learner.initial_model import write_initial_model
from rlhpc.learner.megatron import Learner, process_groups
from rlhpc.learner.settings import OptimizerSettings, ParallelSettings
from rlhpc.learner.shape import read_shape
from rlhpc.types import FinishReason, Round, StopReason, Trajectory, TrajectoryStatus

END = 256
MakeTrajectory = Callable[..., Trajectory]


@pytest.fixture(scope="module")
def one_rank() -> Iterator[None]:
    with process_groups(ParallelSettings(), seed=0, threads=1):
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_initial_model(folder, hidden_size=32, layers=2, attention_heads=4, key_value_heads=2, feed_forward_size=64)
    return folder


@pytest.fixture
def make_learner(one_rank: None, tiny_model: Path) -> Callable[[], Learner]:
    def make() -> Learner:
        learner = Learner(read_shape(tiny_model), OptimizerSettings())
        learner.load_hugging_face(tiny_model)
        return learner

    return make


@pytest.fixture(scope="session")
def make_trajectory(tiny_model: Path) -> MakeTrajectory:
    """Trajectories with given actions and the log-probabilities that transformers gives them."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval()

    def make(
        *,
        actions: Sequence[str] = ("look", "edit"),
        reward: float = 1.0,
        group: int = 0,
        sample: int = 0,
        wave: int = 1,
    ) -> Trajectory:
        contexts = _contexts(len(actions), seed=group)
        steps = [[*action.encode(), END] for action in actions]
        logprobs = _logprobs(model, contexts, steps)
        return Trajectory(
            task_id=f"task-{group}",
            group_id=f"{wave:06d}-{group:04d}",
            sample_index=sample,
            seed=sample,
            rounds=tuple(
                Round(
                    index=index,
                    context_token_ids=tuple(contexts[index]),
                    action_token_ids=tuple(steps[index]),
                    behaviour_logprobs=tuple(logprobs[index]),
                    policy_version=0,
                    finish_reason=FinishReason.STOP,
                    action=action,
                    observation="",
                    rewards={"tests": reward},
                    generate_seconds=0.1,
                    execute_seconds=0.1,
                )
                for index, action in enumerate(actions)
            ),
            rewards={"tests": reward},
            reward=reward,
            status=TrajectoryStatus.COMPLETE,
            stop_reason=StopReason.SOLVED if reward == 1.0 else StopReason.MAX_ROUNDS,
        )

    return make


def _contexts(count: int, seed: int) -> list[list[int]]:
    """A prompt, then observations, of different lengths; the same for all samples of a group."""
    source = random.Random(seed)
    return [[source.randrange(97, 123) for _ in range(source.randrange(5, 15))] for _ in range(count)]


def _logprobs(model: torch.nn.Module, contexts: list[list[int]], actions: list[list[int]]) -> list[list[float]]:
    """Natural logarithms of the probabilities of all action tokens, round by round."""
    tokens: list[int] = []
    results = []
    with torch.no_grad():
        for context, action in zip(contexts, actions, strict=True):
            tokens += [*context, *action]
            logs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
            first = len(tokens) - len(action)
            results.append([logs[first + offset - 1, token].item() for offset, token in enumerate(action)])
    return results
