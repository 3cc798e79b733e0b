"""The policy in the worker's own process: transformers on a published directory.

Results are a function of (weights, contexts, seeds, sampling, threads) to the last bit, whoever computes them:
the batch keeps its shape until every row is done, and prompts are padded to a multiple of 32.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, StaticCache

from rlhpc.errors import PolicyError
from rlhpc.rollout.policy.sampling import sample, uniform_numbers
from rlhpc.rollout.prompt import encode_text
from rlhpc.types import FinishReason, Generation, SamplingParameters

PADDING_MULTIPLE = 32


class EmbeddedPolicy:
    """Loads a published policy in f32 and generates with it. ``threads`` is set for the whole process."""

    def __init__(self, directory: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        self._version = _read_version(directory)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        self._model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self._stop_ids = torch.tensor(sorted(_stop_ids(self._tokenizer, self._model)))
        # the parameter's name differs between versions of transformers
        forward = inspect.signature(self._model.forward).parameters
        self._cache_argument = "cache" if "cache" in forward else "past_key_values"

    @property
    def version(self) -> int:
        """Version of the weights that the next call uses."""
        return self._version

    def load(self, directory: Path) -> None:
        """Take over the weights of another version of the same model, without building the model anew.

        Raises:
            PolicyError: the directory is incomplete or of another model.
        """
        version = _read_version(directory)
        files = sorted(directory.glob("model*.safetensors"))
        weights = {name: tensor for file in files for name, tensor in load_file(file).items()}
        own = self._model.state_dict()
        # tied weights are stored once: a name that is missing must share its memory with one that is not
        loaded = {own[name].data_ptr() for name in weights if name in own}
        strange = [name for name in weights if name not in own or own[name].shape != weights[name].shape]
        missing = [name for name in own if name not in weights and own[name].data_ptr() not in loaded]
        if strange or missing:
            raise PolicyError(f"{directory} is another model than version {self._version}: {(strange + missing)[0]}")
        self._model.load_state_dict(weights, strict=False)
        self._version = version

    def encode(self, text: str) -> list[int]:
        """Token ids of environment text; adds no special tokens."""
        return encode_text(self._tokenizer, text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of generated ids, without special tokens."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    @torch.inference_mode()
    def generate(
        self, contexts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: SamplingParameters
    ) -> list[Generation]:
        """One action per context; see the protocol."""
        wanted = next((context for context in contexts if context), None)
        if wanted is None:
            return [self._no_action() for _ in contexts]
        # rows that are not wanted compute along, so that the shape of the batch stays as it is
        prompts = [tuple(context or wanted) for context in contexts]
        uniforms = uniform_numbers(seeds, sampling.max_new_tokens)
        tokens, logprobs, lengths = self._decode(self._prefill(prompts, sampling.max_new_tokens), uniforms, sampling)
        rows = zip(contexts, tokens.tolist(), logprobs.tolist(), lengths.tolist(), strict=True)
        return [self._generation(row[:n], logs[:n]) if context else self._no_action() for context, row, logs, n in rows]

    def _prefill(self, prompts: Sequence[tuple[int, ...]], new_tokens: int) -> _Prefilled:
        """Compute each distinct prompt once (the rows of a group share theirs) and copy it to its rows."""
        distinct = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
        width = -(-max(map(len, distinct)) // PADDING_MULTIPLE) * PADDING_MULTIPLE
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in distinct])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * (len(prompt) + new_tokens) for prompt in distinct])
        positions = (mask.cumsum(-1) - 1).clamp_(min=0)
        cache = StaticCache(config=self._model.config, max_cache_len=width + new_tokens)
        logits = self._forward(ids, mask, positions[:, :width], cache)
        rows = torch.tensor([distinct[prompt] for prompt in prompts])
        cache.reorder_cache(rows)
        return _Prefilled(cache=cache, mask=mask[rows], positions=positions[rows, width:], logits=logits[rows])

    def _decode(self, prompts: _Prefilled, uniforms: Tensor, sampling: SamplingParameters) -> tuple[Tensor, ...]:
        """Token ids i64[rows, steps], log-probabilities f32[rows, steps] and action lengths i64[rows]."""
        logits, finished = prompts.logits, torch.zeros(len(uniforms), dtype=torch.bool)
        lengths = torch.zeros(len(uniforms), dtype=torch.int64)
        tokens: list[Tensor] = []
        logprobs: list[Tensor] = []
        for step in range(sampling.max_new_tokens):
            if step:
                positions = prompts.positions[:, step - 1, None]
                logits = self._forward(tokens[-1][:, None], prompts.mask, positions, prompts.cache)
            drawn, logs = sample(logits, uniforms[:, step], sampling)
            tokens.append(drawn)
            logprobs.append(logs)
            lengths += ~finished
            finished |= torch.isin(drawn, self._stop_ids)
            if bool(finished.all()):
                break
        return torch.stack(tokens, 1), torch.stack(logprobs, 1), lengths

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: StaticCache) -> Tensor:
        """Logits f32[rows, vocabulary] after the last of ``ids``; adds all of them to the cache."""
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            logits_to_keep=1,
            **{self._cache_argument: cache},
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _generation(self, token_ids: list[int], logprobs: list[float]) -> Generation:
        stopped = token_ids[-1] in self._stop_ids
        return Generation(
            token_ids=tuple(token_ids),
            logprobs=tuple(logprobs),
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            policy_version=self._version,
        )

    def _no_action(self) -> Generation:
        return Generation(
            token_ids=(), logprobs=(), finish_reason=FinishReason.LENGTH, policy_version=self._version
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prefilled:
    """Rows whose prompts are in the cache."""

    cache: StaticCache
    mask: Tensor
    """i64[rows, width + new tokens]; 0 where padding is."""
    positions: Tensor
    """i64[rows, new tokens] of the tokens to come."""
    logits: Tensor
    """f32[rows, vocabulary] after the last token of the prompt."""


def _stop_ids(tokenizer: Any, model: Any) -> set[int]:
    """Ids that end an action: the tokenizer's, and those that the model's generation settings name."""
    named = model.generation_config.eos_token_id
    return {int(tokenizer.eos_token_id), *([named] if isinstance(named, int) else named or ())}


def _read_version(directory: Path) -> int:
    """Version that the manifest of a published policy names."""
    manifest = directory / "policy.json"
    try:
        return int(json.loads(manifest.read_text())["version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PolicyError(f"{manifest}: no complete policy is published here ({error!r})") from error
