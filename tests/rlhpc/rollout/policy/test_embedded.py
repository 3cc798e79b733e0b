from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rlhpc.errors import PolicyError
from rlhpc.rollout.policy.embedded import EmbeddedPolicy
from rlhpc.types import FinishReason, SamplingParameters

END = 256
SAMPLING = SamplingParameters(max_new_tokens=48)


@pytest.fixture(scope="module")
def policy(published: Path) -> EmbeddedPolicy:
    return EmbeddedPolicy(published, threads=1)


def contexts(*lengths: int) -> list[list[int]]:
    source = random.Random(0)
    return [[source.randrange(256) for _ in range(length)] for length in lengths]


def test_logprobs_equal_a_fresh_forward_pass_of_transformers(policy: EmbeddedPolicy, published: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(published, dtype=torch.float32)
    prompts = contexts(70, 33, 70, 5)
    sampling = SamplingParameters(temperature=0.8, max_new_tokens=48)
    for prompt, generation in zip(prompts, policy.generate(prompts, [1, 2, 3, 4], sampling), strict=True):
        ids = torch.tensor([[*prompt, *generation.token_ids]])
        with torch.no_grad():
            logs = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1] / 0.8, -1)
        expected = logs.gather(-1, torch.tensor(generation.token_ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(generation.logprobs), expected, atol=1e-5)


def test_the_same_contexts_and_seeds_give_the_same_bits(policy: EmbeddedPolicy, published: Path) -> None:
    prompts = contexts(40, 40, 90)
    first = policy.generate(prompts, [1, 2, 3], SAMPLING)
    assert EmbeddedPolicy(published, threads=1).generate(prompts, [1, 2, 3], SAMPLING) == first
    assert policy.generate(prompts, [1, 2, 4], SAMPLING)[:2] == first[:2]
    assert policy.generate(prompts, [1, 2, 4], SAMPLING)[2] != first[2]


def test_a_row_that_is_not_wanted_changes_no_other_row(policy: EmbeddedPolicy) -> None:
    prompts = contexts(40, 90)
    whole = policy.generate([prompts[0], prompts[1], prompts[1]], [1, 2, 3], SAMPLING)
    partial = policy.generate([prompts[0], (), prompts[1]], [1, 2, 3], SAMPLING)
    assert (partial[0], partial[2]) == (whole[0], whole[2])
    assert partial[1].token_ids == ()


def test_actions_end_with_the_end_token_or_at_the_limit(policy: EmbeddedPolicy) -> None:
    generations = policy.generate(contexts(20) * 64, list(range(64)), SamplingParameters(max_new_tokens=100))
    stopped = [g for g in generations if g.finish_reason is FinishReason.STOP]
    cut = [g for g in generations if g.finish_reason is FinishReason.LENGTH]
    assert stopped and all(g.token_ids.index(END) == len(g.token_ids) - 1 for g in stopped)
    assert cut and all(len(g.token_ids) == 100 and END not in g.token_ids for g in cut)
    assert all(len(g.logprobs) == len(g.token_ids) for g in generations)


def test_special_tokens_are_no_text(policy: EmbeddedPolicy) -> None:
    assert policy.decode([*policy.encode("ls äö"), END]) == "ls äö"


def test_another_version_is_loaded_into_the_same_model(policy: EmbeddedPolicy, published: Path, tmp_path: Path) -> None:
    newer = tmp_path / "000008"
    shutil.copytree(published, newer)
    weights = {name: tensor * 1.5 for name, tensor in load_file(newer / "model.safetensors").items()}
    save_file(weights, newer / "model.safetensors")
    _set_version(newer, 8)
    reloaded = EmbeddedPolicy(published, threads=1)
    reloaded.load(newer)
    assert reloaded.version == 8
    prompts = contexts(30)
    fresh = EmbeddedPolicy(newer, threads=1)
    assert reloaded.generate(prompts, [5], SAMPLING) == fresh.generate(prompts, [5], SAMPLING)


def test_the_weights_of_another_model_are_refused(policy: EmbeddedPolicy, published: Path, tmp_path: Path) -> None:
    other = tmp_path / "000009"
    shutil.copytree(published, other)
    weights = load_file(other / "model.safetensors")
    weights.pop("model.norm.weight")
    save_file(weights, other / "model.safetensors")
    with pytest.raises(PolicyError, match=r"model\.norm\.weight"):
        policy.load(other)
    assert policy.version == json.loads((published / "policy.json").read_text())["version"]


def _set_version(folder: Path, version: int) -> None:
    manifest = json.loads((folder / "policy.json").read_text())
    (folder / "policy.json").write_text(json.dumps({**manifest, "version": version}))
