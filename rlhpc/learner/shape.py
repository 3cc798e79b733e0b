"""The shape of a dense Llama-like model, read from a Hugging Face configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhpc.errors import ModelError

SUPPORTED = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes and switches that fix a dense decoder of the Llama, Qwen2 or Qwen3 family."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    key_value_heads: int
    head_size: int
    vocabulary: int
    max_tokens: int
    norm_epsilon: float
    rotary_base: float
    tied_embeddings: bool
    qkv_bias: bool
    """Query, key and value projections have biases (Qwen2)."""
    qk_norm: bool
    """Queries and keys are normalised per head (Qwen3)."""


def read_shape(folder: Path) -> ModelShape:
    """Shape of the model in a Hugging Face directory.

    Raises:
        ModelError: there is no readable config.json, or it asks for something that the learner does not implement.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}: config.json cannot be read ({error}); give a Hugging Face directory") from error
    _check_supported(config, folder)
    heads = config["num_attention_heads"]
    return ModelShape(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        feed_forward=config["intermediate_size"],
        heads=heads,
        key_value_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or config["hidden_size"] // heads,
        vocabulary=config["vocab_size"],
        max_tokens=config.get("max_position_embeddings", 2048),
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        rotary_base=float(_rotary(config).get("rope_theta", config.get("rope_theta", 10000.0))),
        tied_embeddings=config.get("tie_word_embeddings", False),
        qkv_bias=config["model_type"] == "qwen2",
        qk_norm=config["model_type"] == "qwen3",
    )


def _rotary(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _check_supported(config: Mapping[str, Any], folder: Path) -> None:
    """Refuse what would be computed wrongly, by the name of the key in config.json."""
    rotary = _rotary(config)
    unsupported = {
        f"model_type={config.get('model_type')!r} (supported: {', '.join(SUPPORTED)})": config.get("model_type")
        not in SUPPORTED,
        f"rope type {rotary.get('rope_type')!r} (supported: default)": rotary.get("rope_type", "default") != "default",
        "attention_bias=true": bool(config.get("attention_bias")),
        "mlp_bias=true": bool(config.get("mlp_bias")),
        "use_sliding_window=true": bool(config.get("use_sliding_window")),
        f"hidden_act={config.get('hidden_act')!r} (supported: silu)": config.get("hidden_act", "silu") != "silu",
    }
    problems = [problem for problem, present in unsupported.items() if present]
    if problems:
        raise ModelError(f"{folder / 'config.json'}: the learner does not support {'; '.join(problems)}")
