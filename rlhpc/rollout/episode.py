"""The episode loop: all samples of one group advance together, one call of the policy per round."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from rlhpc.errors import PreemptedError
from rlhpc.reward.components import round_rewards
from rlhpc.reward.grading import Grade
from rlhpc.rollout.act import Answer, Lost, Workspace, carry_out, persist
from rlhpc.rollout.observation import compose_observation
from rlhpc.rollout.recovery import open_workspace
from rlhpc.rollout.seeds import round_seed
from rlhpc.rollout.stage import StableRound, Stage
from rlhpc.rollout.state import Episode, add_round, give_up
from rlhpc.types import Generation, Round, StopReason

Grades = dict[str, Grade | Lost]
"""Test results by snapshot: equal snapshots are equal workspaces, also across the samples of a group."""


def play_group(stage: Stage, episodes: Sequence[Episode]) -> list[Episode]:
    """Play all samples of a group to their ends; returns them in the same order.

    Raises:
        PreemptedError: the worker is to stop; the group can be resumed from the ledger.
    """
    samples = {episode.sample_index: episode for episode in episodes}
    deadline = stage.clock() + stage.settings.time_budget_seconds
    with ExitStack() as stack:
        workspaces = _open_workspaces(stage, samples, stack)
        grades = _grade_new(stage, workspaces.values(), {})
        while playing := _next_to_play(samples):
            if stage.should_stop():
                raise PreemptedError("told to stop between two rounds; run again to go on from the journal")
            if stage.clock() > deadline:
                samples |= {i: replace(samples[i], stop=StopReason.TIME_BUDGET) for i in playing}
                continue
            started = time.monotonic()
            actions = _choose_actions(stage, samples, playing)
            seconds = time.monotonic() - started
            answers = _carry_out(stage, actions, workspaces)
            after = {i: answer.workspace for i, answer in answers.items() if isinstance(answer, Answer)}
            grades |= _grade_new(stage, after.values(), grades)
            rounds = {
                i: _round(stage, samples[i], workspaces[i], actions[i], answers[i], grades, seconds) for i in playing
            }
            stage.ledger.record_rounds({(i, r.round.index): r for i, r in rounds.items() if isinstance(r, StableRound)})
            samples |= {i: _advance(stage, samples[i], r) for i, r in rounds.items()}
            workspaces |= after
    return list(samples.values())


def _next_to_play(samples: Mapping[int, Episode]) -> list[int]:
    """The samples that go on; after a resume, of these first those that are behind."""
    going = {i: len(episode.rounds) for i, episode in samples.items() if episode.stop is None}
    return [i for i, rounds in going.items() if rounds == min(going.values())]


def _open_workspaces(stage: Stage, samples: dict[int, Episode], stack: ExitStack) -> dict[int, Workspace]:
    """A sandbox for each sample that goes on, in the state that the sample left it in.

    ``stack`` closes them, in the background, so that the next group need not wait.
    """

    def open_one(i: int) -> Workspace | Lost:
        return open_workspace(samples[i], stage.open_sandbox, stage.prompt.action_style, stage.settings)

    going = [i for i, episode in samples.items() if episode.stop is None]
    workspaces = {}
    for i, workspace in zip(going, stage.executor.map(open_one, going), strict=True):
        if isinstance(workspace, Lost):
            samples[i] = give_up(samples[i], workspace.reason)
        else:
            stack.callback(stage.executor.submit, workspace.sandbox.close)
            workspaces[i] = workspace
    return workspaces


def _choose_actions(stage: Stage, samples: Mapping[int, Episode], playing: Sequence[int]) -> dict[int, Generation]:
    """The next action of every playing sample: the journaled one after a resume, else a newly generated one.

    The batch has a row for every sample of the group, also for those that ended, so that its shape is the same
    in every round.
    """
    journaled = {i: action for i in playing if (action := samples[i].pending)}
    if len(journaled) == len(playing):
        return journaled
    generations = stage.policy.generate(
        [episode.token_ids if i in playing else () for i, episode in samples.items()],
        [round_seed(episode.seed, len(episode.rounds)) for episode in samples.values()],
        stage.sampling,
    )
    actions = {i: action for i, action in zip(samples, generations, strict=True) if i in playing}
    stage.ledger.record_actions({(i, len(samples[i].rounds)): action for i, action in actions.items()})
    return actions


def _carry_out(
    stage: Stage, actions: Mapping[int, Generation], workspaces: Mapping[int, Workspace]
) -> dict[int, Answer | Lost]:
    """Carry out one action per sample, in parallel."""

    def carry_out_one(i: int) -> Answer | Lost:
        return carry_out(
            workspaces[i],
            stage.policy.decode(actions[i].token_ids),
            stage.prompt.action_style,
            timeout=stage.settings.command_timeout_seconds,
            retries=stage.settings.retries,
        )

    return dict(zip(actions, stage.executor.map(carry_out_one, actions), strict=True))


def _grade_new(stage: Stage, workspaces: Iterable[Workspace], grades: Grades) -> Grades:
    """Test, in parallel, each distinct state of a workspace that has no grade yet."""
    new = {workspace.snapshot: workspace.sandbox for workspace in workspaces if workspace.snapshot not in grades}
    graded = stage.executor.map(
        lambda sandbox: persist(lambda: stage.grade(sandbox), stage.settings.retries), new.values()
    )
    return dict(zip(new, graded, strict=True))


def _round(
    stage: Stage,
    episode: Episode,
    workspace: Workspace,
    action: Generation,
    answer: Answer | Lost,
    grades: Grades,
    generate_seconds: float,
) -> StableRound | Lost:
    """The finished round of one sample, if neither its sandbox nor its grading was lost."""
    if isinstance(answer, Lost):
        return answer
    before, after = grades[workspace.snapshot], grades[answer.workspace.snapshot]
    if isinstance(before, Lost):
        return before
    if isinstance(after, Lost):
        return after
    played = Round(
        index=len(episode.rounds),
        context_token_ids=episode.context,
        action_token_ids=action.token_ids,
        behaviour_logprobs=action.logprobs,
        policy_version=action.policy_version,
        finish_reason=action.finish_reason,
        action=answer.action,
        observation=compose_observation(answer.text, after.fraction, stage.prompt, stage.settings),
        rewards=round_rewards(
            fraction=after.fraction,
            previous_fraction=before.fraction,
            well_formed=answer.well_formed,
            timed_out=answer.result is not None and answer.result.timed_out,
        ),
        generate_seconds=generate_seconds,
        execute_seconds=answer.seconds,
    )
    return StableRound(round=played, snapshot=answer.workspace.snapshot)


def _advance(stage: Stage, episode: Episode, finished: StableRound | Lost) -> Episode:
    if isinstance(finished, Lost):
        return give_up(episode, finished.reason)
    return add_round(episode, finished, stage.prompt, stage.settings, stage.sampling.max_new_tokens)
