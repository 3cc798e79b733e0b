"""A new model: the same from the same seed, readable by transformers, with a tokenizer that loses no byte."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhpc.learner.initial_model import SPECIAL_TOKENS, byte_tokenizer, write_initial_model
from rlhpc.learner.weights import read_weights

TOKENIZER = byte_tokenizer(100_000)


@given(st.text())
def test_every_text_becomes_its_utf8_bytes_and_back(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert ids == list(text.encode())
    assert TOKENIZER.decode(ids) == text


def test_special_tokens_are_one_token_each_after_the_bytes(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    assert [tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS] == [256, 257, 258, 259]
    assert tokenizer.eos_token == "<|end|>" and tokenizer.pad_token == "<|pad|>"
    assert tokenizer.encode("a<|end|>", add_special_tokens=False) == [97, 256]
    assert tokenizer.decode([97, 256, 258], skip_special_tokens=True) == "a"


def test_transformers_can_run_it(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    assert model(torch.tensor([[97, 98, 256]])).logits.shape == (1, 3, 260)
    assert model.config.eos_token_id == 256


def test_weights_depend_on_the_seed_alone(tmp_path: Path) -> None:
    for name, seed in (("first", 7), ("again", 7), ("other", 8)):
        torch.manual_seed(hash(name) % 1000)  # the caller's random state must not matter
        write_initial_model(tmp_path / name, hidden_size=16, layers=1, feed_forward_size=16, seed=seed)
    first, again, other = (read_weights(tmp_path / name) for name in ("first", "again", "other"))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_an_existing_model_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_initial_model(folder, hidden_size=16, layers=1, feed_forward_size=16, seed=1)
    before = (folder / "model.safetensors").read_bytes()
    write_initial_model(folder, hidden_size=16, layers=1, feed_forward_size=16, seed=2)
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("text", ["", "\x00\x7f", "don't  stop", "漢字 é", "\r\n\t"])
def test_the_saved_tokenizer_loses_nothing(tiny_model: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
