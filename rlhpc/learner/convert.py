"""Weights of dense Llama, Qwen2 and Qwen3 models: Hugging Face names and layout <-> Megatron-Core's GPTModel.

Pure tensor bookkeeping, bit-exact both ways. Megatron differs in three points: query, key and value are one matrix,
interleaved per key-value head; gate and up projection are one matrix; layers of a pipeline stage count from zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhpc.learner.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The part of the model that one rank holds."""

    first_layer: int = 0
    layers: int
    """Number of layers, starting at ``first_layer``."""
    has_embedding: bool = True
    has_output: bool = True
    tensor_rank: int = 0
    tensor_size: int = 1


def to_megatron(weights: Mapping[str, Tensor], shape: ModelShape, part: Slice) -> dict[str, Tensor]:
    """State of one rank's GPTModel from a whole Hugging Face state.

    Raises:
        KeyError: a weight of the family is missing.
    """
    state: dict[str, Tensor] = {}
    if part.has_embedding:
        state["embedding.word_embeddings.weight"] = _cut(weights["model.embed_tokens.weight"], 0, part)
    for local in range(part.layers):
        source, target = f"model.layers.{part.first_layer + local}.", f"decoder.layers.{local}."
        state |= {target + name: value for name, value in _layer_to_megatron(weights, source, shape, part)}
    if part.has_output:
        state["decoder.final_layernorm.weight"] = weights["model.norm.weight"]
        if not shape.tied_embeddings:
            state["output_layer.weight"] = _cut(weights["lm_head.weight"], 0, part)
        elif not part.has_embedding:  # the last pipeline stage has a copy of the tied embedding
            state["output_layer.weight"] = _cut(weights["model.embed_tokens.weight"], 0, part)
    return state


def to_hugging_face(stages: Sequence[Sequence[Mapping[str, Tensor]]], shape: ModelShape) -> dict[str, Tensor]:
    """The whole Hugging Face state from the GPTModel states of all ranks.

    Args:
        stages: ``stages[pipeline_rank][tensor_rank]`` is the state of that rank.
        shape: Shape of the model.
    """
    first, last = stages[0], stages[-1]
    weights = {"model.embed_tokens.weight": _join(first, "embedding.word_embeddings.weight", 0)}
    layer = 0
    for shards in stages:
        for local in range(_layers_in(shards[0])):
            source, target = f"decoder.layers.{local}.", f"model.layers.{layer}."
            weights |= {target + name: value for name, value in _layer_to_hugging_face(shards, source, shape)}
            layer += 1
    weights["model.norm.weight"] = last[0]["decoder.final_layernorm.weight"].clone()
    if not shape.tied_embeddings:
        weights["lm_head.weight"] = _join(last, "output_layer.weight", 0)
    return weights


def _layer_to_megatron(
    weights: Mapping[str, Tensor], source: str, shape: ModelShape, part: Slice
) -> Iterator[tuple[str, Tensor]]:
    yield "input_layernorm.weight", weights[source + "input_layernorm.weight"]
    yield "pre_mlp_layernorm.weight", weights[source + "post_attention_layernorm.weight"]
    for kind in ("weight", "bias") if shape.qkv_bias else ("weight",):
        query, key, value = (weights[f"{source}self_attn.{name}_proj.{kind}"] for name in "qkv")
        yield f"self_attention.linear_qkv.{kind}", _interleave(query, key, value, shape, part)
    for name in "qk" if shape.qk_norm else "":
        yield f"self_attention.{name}_layernorm.weight", weights[f"{source}self_attn.{name}_norm.weight"]
    yield "self_attention.linear_proj.weight", _cut(weights[source + "self_attn.o_proj.weight"], 1, part)
    gate_and_up = [_cut(weights[f"{source}mlp.{name}_proj.weight"], 0, part) for name in ("gate", "up")]
    yield "mlp.linear_fc1.weight", torch.cat(gate_and_up)
    yield "mlp.linear_fc2.weight", _cut(weights[source + "mlp.down_proj.weight"], 1, part)


def _layer_to_hugging_face(
    shards: Sequence[Mapping[str, Tensor]], source: str, shape: ModelShape
) -> Iterator[tuple[str, Tensor]]:
    yield "input_layernorm.weight", shards[0][source + "input_layernorm.weight"].clone()
    yield "post_attention_layernorm.weight", shards[0][source + "pre_mlp_layernorm.weight"].clone()
    for kind in ("weight", "bias") if shape.qkv_bias else ("weight",):
        joined = _join(shards, f"{source}self_attention.linear_qkv.{kind}", 0)
        for name, projection in zip("qkv", _separate(joined, shape), strict=True):
            yield f"self_attn.{name}_proj.{kind}", projection
    for name in "qk" if shape.qk_norm else "":
        yield f"self_attn.{name}_norm.weight", shards[0][f"{source}self_attention.{name}_layernorm.weight"].clone()
    yield "self_attn.o_proj.weight", _join(shards, source + "self_attention.linear_proj.weight", 1)
    halves = [shard[source + "mlp.linear_fc1.weight"].chunk(2) for shard in shards]
    yield "mlp.gate_proj.weight", torch.cat([gate for gate, _ in halves])
    yield "mlp.up_proj.weight", torch.cat([up for _, up in halves])
    yield "mlp.down_proj.weight", _join(shards, source + "mlp.linear_fc2.weight", 1)


def _interleave(query: Tensor, key: Tensor, value: Tensor, shape: ModelShape, part: Slice) -> Tensor:
    """One matrix of [its queries, key, value] per key-value head, cut to this tensor rank's heads."""
    groups = shape.key_value_heads
    per_group = [projection.reshape(groups, -1, *projection.shape[1:]) for projection in (query, key, value)]
    stacked = torch.cat(per_group, 1)
    return _cut(stacked, 0, part).reshape(-1, *query.shape[1:])


def _separate(joined: Tensor, shape: ModelShape) -> tuple[Tensor, ...]:
    """Undo ``_interleave``: query, key and value of all heads."""
    size, queries = shape.head_size, shape.heads // shape.key_value_heads
    grouped = joined.view(shape.key_value_heads, (queries + 2) * size, *joined.shape[1:])
    parts = torch.split(grouped, [queries * size, size, size], 1)
    return tuple(part.reshape(-1, *joined.shape[1:]).contiguous() for part in parts)


def _cut(weight: Tensor, dimension: int, part: Slice) -> Tensor:
    return weight.chunk(part.tensor_size, dimension)[part.tensor_rank]


def _join(shards: Sequence[Mapping[str, Tensor]], name: str, dimension: int) -> Tensor:
    return torch.cat([shard[name] for shard in shards], dimension)


def _layers_in(state: Mapping[str, Tensor]) -> int:
    return sum(name.endswith(".mlp.linear_fc2.weight") for name in state)
