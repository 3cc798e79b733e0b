"""The loop with real sandboxes and scripted actions, and what happens to it when things break."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from transformers import PreTrainedTokenizerFast

from hpc.sandbox.open import choose_backend
from hpc.sandbox.open import open_sandbox as open_one_sandbox
from hpc.sandbox.protocol import Sandbox, SandboxSpec
from rlhpc.errors import PreemptedError
from rlhpc.reward.grading import Grade, grade
from rlhpc.rollout.episode import play_group
from rlhpc.rollout.policy.reference import ReferencePolicy
from rlhpc.rollout.prompt import choose_prompt_format
from rlhpc.rollout.recovery import GroupHistory, resume_episode
from rlhpc.rollout.settings import RolloutSettings
from rlhpc.rollout.stage import RoundKey, StableRound, Stage
from rlhpc.rollout.state import Episode, begin_episode
from rlhpc.types import Generation, SamplingParameters, StopReason, Task

SETTINGS = RolloutSettings(max_rounds=4, retries=1)
LOOK, WRITE, REPAIR = "cat solution.py", "echo x > note", "sed -i 's/a - b/a + b/' solution.py"


@dataclass
class Notebook:
    """A ledger in memory."""

    actions: dict[RoundKey, Generation] = field(default_factory=dict)
    rounds: dict[RoundKey, StableRound] = field(default_factory=dict)

    def record_actions(self, actions: Mapping[RoundKey, Generation]) -> None:
        self.actions |= actions

    def record_rounds(self, rounds: Mapping[RoundKey, StableRound]) -> None:
        self.rounds |= rounds


@dataclass
class Interrupted:
    """A scripted policy that lets something happen just before an action is carried out."""

    policy: ReferencePolicy
    at: int
    happen: Callable[[], object]
    calls: int = 0

    @property
    def version(self) -> int:
        return self.policy.version

    def encode(self, text: str) -> list[int]:
        return self.policy.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.policy.decode(token_ids)

    def generate(
        self, contexts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: SamplingParameters
    ) -> list[Generation]:
        if self.calls == self.at:
            self.happen()
        self.calls += 1
        return self.policy.generate(contexts, seeds, sampling)


@pytest.fixture
def make_stage(
    task: Task, tokenizer: PreTrainedTokenizerFast, open_sandbox: Callable[[SandboxSpec], Sandbox]
) -> Iterator[Callable[..., Stage]]:
    """A stage on which the given script is played."""
    spec = SandboxSpec(source=task.path / "environment" / "workspace")
    with ThreadPoolExecutor(4) as executor:

        def make(*actions: str, position: int = 0, **changes: object) -> Stage:
            stage = Stage(
                policy=ReferencePolicy(tokenizer, actions, position=position),
                sampling=SamplingParameters(max_new_tokens=64),
                prompt=choose_prompt_format(tokenizer),
                open_sandbox=partial(open_sandbox, spec),
                grade=lambda workspace: grade(task, workspace, open_sandbox),
                ledger=Notebook(),
                executor=executor,
                settings=SETTINGS,
            )
            return replace(stage, **changes)  # type: ignore[arg-type]

        yield make


def fresh(stage: Stage, samples: int = 2) -> list[Episode]:
    ids = stage.prompt.prompt("repair it")
    return [begin_episode(i, 100 + i, ids, stage.settings, stage.sampling.max_new_tokens) for i in range(samples)]


def kill_sandboxes() -> None:
    """SIGKILL every container that this process started."""
    for child in psutil.Process().children(recursive=True):
        os.kill(child.pid, signal.SIGKILL)


def test_an_episode_ends_once_the_tests_pass(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage(LOOK, REPAIR, LOOK)
    for episode in play_group(stage, fresh(stage)):
        assert episode.stop is StopReason.SOLVED and len(episode.rounds) == 2
        assert [r.rewards["tests_passed"] for r in episode.rounds] == [0.5, 1.0]
        assert [r.rewards["tests_progress"] for r in episode.rounds] == [0.0, 0.5]


def test_every_round_is_in_the_ledger_with_its_action(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage(LOOK, WRITE, "submit")
    episodes = play_group(stage, fresh(stage))
    assert {e.stop for e in episodes} == {StopReason.SUBMITTED}
    keys = {(sample, index) for sample in range(2) for index in range(3)}
    assert isinstance(stage.ledger, Notebook)
    assert stage.ledger.actions.keys() == stage.ledger.rounds.keys() == keys
    assert stage.ledger.rounds[1, 0].round == episodes[1].rounds[0]


def test_equal_workspaces_are_graded_once(make_stage: Callable[..., Stage]) -> None:
    graded: list[Sandbox] = []
    stage = make_stage(LOOK, WRITE, LOOK, WRITE)

    def counted(workspace: Sandbox) -> Grade:
        graded.append(workspace)
        return stage.grade(workspace)

    play_group(replace(stage, grade=counted), fresh(stage, samples=3))
    assert len(graded) == 2  # the initial workspace, and the one with the note


def test_failures_limits_and_nonsense_are_told_to_the_policy(make_stage: Callable[..., Stage]) -> None:
    settings = replace(SETTINGS, command_timeout_seconds=0.5)
    stage = make_stage("cat nothing; exit 3", "sleep 9", "", "true", settings=settings)
    [episode] = play_group(stage, fresh(stage, samples=1))
    failed, slow, empty, silent = episode.rounds
    assert "No such file" in failed.observation and "[exit code 3]" in failed.observation
    assert "[stopped at the wall_time limit]" in slow.observation and slow.rewards["timeouts"] == 1.0
    assert empty.observation.startswith("[not an action: the command is empty]")
    assert [r.rewards["format_valid"] for r in episode.rounds] == [1.0, 1.0, 0.0, 1.0]
    assert silent.observation == "(no output)\ntests: 50% pass"
    assert episode.stop is StopReason.MAX_ROUNDS


def test_sandboxes_killed_between_rounds_are_restored(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage(WRITE, "cat note", REPAIR)
    interrupted = replace(stage, policy=Interrupted(stage.policy, at=1, happen=kill_sandboxes))  # type: ignore[arg-type]
    for episode in play_group(interrupted, fresh(stage)):
        assert episode.stop is StopReason.SOLVED
        assert episode.rounds[1].observation.startswith("x\n")


def test_a_sandbox_that_cannot_start_loses_the_sample_and_not_the_worker(
    make_stage: Callable[..., Stage], open_sandbox: Callable[[SandboxSpec], Sandbox]
) -> None:
    stage = make_stage(LOOK, open_sandbox=partial(open_sandbox, SandboxSpec(image=Path("/no/such/image"))))
    for episode in play_group(stage, fresh(stage)):
        assert episode.stop is StopReason.INFRASTRUCTURE and "/no/such/image" in episode.detail
        assert episode.rounds == ()


def test_no_round_begins_after_the_time_budget(make_stage: Callable[..., Stage]) -> None:
    times = iter([0.0, 1.0, 11.0])
    stage = make_stage(LOOK, clock=lambda: next(times), settings=replace(SETTINGS, time_budget_seconds=10.0))
    [episode] = play_group(stage, fresh(stage, samples=1))
    assert episode.stop is StopReason.TIME_BUDGET and len(episode.rounds) == 1


def test_a_group_that_was_told_to_stop_goes_on_from_its_ledger(make_stage: Callable[..., Stage]) -> None:
    script = (WRITE, "cat note", REPAIR)
    answers = iter([False, False, True])
    first = make_stage(*script, should_stop=lambda: next(answers))
    with pytest.raises(PreemptedError):
        play_group(first, fresh(first))
    assert isinstance(first.ledger, Notebook)
    history = GroupHistory(actions=first.ledger.actions, rounds=first.ledger.rounds)
    second = make_stage(*script, position=2)
    episodes = play_group(second, _resumed(second, history))
    assert {e.stop for e in episodes} == {StopReason.SOLVED}
    assert [e.rounds[:2] for e in episodes] == [
        tuple(first.ledger.rounds[i, index].round for index in range(2)) for i in range(2)
    ]


def test_actions_that_were_chosen_before_a_kill_are_carried_out_and_not_chosen_again(
    make_stage: Callable[..., Stage],
) -> None:
    first = make_stage(WRITE, "submit")
    play_group(first, fresh(first))
    assert isinstance(first.ledger, Notebook)
    chosen = {(i, 0): first.ledger.actions[i, 0] for i in range(2)}
    unfinished = GroupHistory(actions=chosen, rounds={(0, 0): first.ledger.rounds[0, 0]})
    second = make_stage("submit")
    assert [e.pending for e in _resumed(second, unfinished)] == [None, chosen[1, 0]]
    episodes = play_group(second, _resumed(second, unfinished))
    assert [[r.action for r in e.rounds] for e in episodes] == [[WRITE, "submit"]] * 2
    assert isinstance(second.ledger, Notebook)
    assert second.ledger.actions.keys() == {(0, 1), (1, 1)}


def test_a_workspace_that_replay_cannot_rebuild_makes_the_sample_invalid(make_stage: Callable[..., Stage]) -> None:
    first = make_stage("cat /proc/sys/kernel/random/uuid > note", "submit")
    play_group(first, fresh(first, samples=1))
    assert isinstance(first.ledger, Notebook)
    history = GroupHistory(rounds={(0, 0): first.ledger.rounds[0, 0]})
    second = make_stage("submit")
    [episode] = play_group(second, _resumed(second, history)[:1])
    assert episode.stop is StopReason.INFRASTRUCTURE and "not repeatable" in episode.detail


def test_a_snapshot_that_outlived_its_sandbox_is_restored_without_replay(
    make_stage: Callable[..., Stage], task: Task, tmp_path: Path
) -> None:
    spec = SandboxSpec(source=task.path / "environment" / "workspace")
    durable = partial(open_one_sandbox, choose_backend(), spec, tmp_path / "sandboxes", tmp_path / "snapshots")
    first = make_stage("cat /proc/sys/kernel/random/uuid > note", "cat note", "submit", open_sandbox=durable)
    play_group(first, fresh(first, samples=1))
    assert isinstance(first.ledger, Notebook)
    history = GroupHistory(rounds={(0, 0): first.ledger.rounds[0, 0]})
    second = make_stage("cat note", "submit", open_sandbox=durable)
    [episode] = play_group(second, _resumed(second, history)[:1])
    assert episode.rounds[1].observation == first.ledger.rounds[0, 1].round.observation


def _resumed(stage: Stage, history: GroupHistory) -> list[Episode]:
    limit = stage.sampling.max_new_tokens
    return [resume_episode(e, history, stage.prompt, stage.settings, limit) for e in fresh(stage)]
