"""Hugging Face <-> Megatron: bit-exact both ways, and the same function as transformers computes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlhpc.errors import ModelError
from rlhpc.learner.convert import Slice, to_hugging_face, to_megatron
from rlhpc.learner.megatron import Learner
from rlhpc.learner.settings import OptimizerSettings
from rlhpc.learner.shape import read_shape
from rlhpc.learner.weights import read_weights

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
FAMILIES = {
    "llama": lambda **more: LlamaForCausalLM(LlamaConfig(**SIZES, **more)),
    "qwen2": lambda **more: Qwen2ForCausalLM(Qwen2Config(**SIZES, **more)),
    "qwen3": lambda **more: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=24, **more)),
}


@pytest.fixture(params=[(family, tied) for family in FAMILIES for tied in (True, False)], ids=str)
def reference(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[PreTrainedModel, Path]:
    family, tied = request.param
    torch.manual_seed(1)
    model = FAMILIES[family](tie_word_embeddings=tied).eval()
    for name, parameter in model.named_parameters():  # norms and biases start at constants, which would hide mistakes
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
    model.save_pretrained(tmp_path)
    return model, tmp_path


def test_logits_equal_those_of_transformers(one_rank: None, reference: tuple[PreTrainedModel, Path]) -> None:
    model, folder = reference
    learner = Learner(read_shape(folder), OptimizerSettings())
    learner.load_hugging_face(folder)
    tokens = torch.randint(0, 96, (3, 40))
    with torch.no_grad():
        expected = model(tokens).logits.reshape(-1, 96)
        logits = learner.model(tokens, torch.arange(tokens.numel()))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_round_trip_through_the_model_is_bit_exact(one_rank: None, reference: tuple[PreTrainedModel, Path]) -> None:
    _, folder = reference
    learner = Learner(read_shape(folder), OptimizerSettings())
    learner.load_hugging_face(folder)
    assert_equal(learner.hugging_face_weights(), read_weights(folder))


@pytest.mark.parametrize(("tensor", "stages"), [(2, 1), (1, 2), (2, 4)])
def test_round_trip_over_ranks_is_bit_exact(reference: tuple[PreTrainedModel, Path], tensor: int, stages: int) -> None:
    _, folder = reference
    shape, weights = read_shape(folder), read_weights(folder)
    layers = shape.layers // stages
    states = [
        [
            to_megatron(
                weights,
                shape,
                Slice(
                    first_layer=stage * layers,
                    layers=layers,
                    has_embedding=stage == 0,
                    has_output=stage == stages - 1,
                    tensor_rank=rank,
                    tensor_size=tensor,
                ),
            )
            for rank in range(tensor)
        ]
        for stage in range(stages)
    ]
    assert_equal(to_hugging_face(states, shape), weights)


def test_unsupported_architectures_are_refused_by_the_key_in_config_json(tmp_path: Path) -> None:
    LlamaConfig(**SIZES, attention_bias=True).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="attention_bias"):
        read_shape(tmp_path)


def test_a_folder_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="config.json"):
        read_shape(tmp_path)
    with pytest.raises(ModelError, match="safetensors"):
        read_weights(tmp_path)


def assert_equal(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor), name
