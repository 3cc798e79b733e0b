"""A new small Llama-shaped model with a byte-level tokenizer, for runs that bring no model of their own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlhpc.learner.checkpoint import flush

END = "<|end|>"
"""End of an action; the model's end-of-sequence token."""
PAD = "<|pad|>"
OBSERVATION = "<|observation|>"
INSTRUCTION = "<|instruction|>"
SPECIAL_TOKENS = (END, PAD, OBSERVATION, INSTRUCTION)


def write_initial_model(
    folder: Path,
    *,
    hidden_size: int = 128,
    layers: int = 4,
    attention_heads: int = 4,
    key_value_heads: int = 4,
    feed_forward_size: int = 384,
    max_tokens: int = 1536,
    seed: int = 0,
) -> None:
    """Make ``folder`` with config.json, model.safetensors (random, from ``seed`` alone) and tokenizer files.

    It appears complete or not at all; an existing folder is kept as it is.
    """
    if folder.exists():
        return
    unfinished = folder.with_name(f".unfinished-{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    tokenizer = byte_tokenizer(max_tokens)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=feed_forward_size,
        num_hidden_layers=layers,
        num_attention_heads=attention_heads,
        num_key_value_heads=key_value_heads,
        max_position_embeddings=max_tokens,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    for path in (*unfinished.iterdir(), unfinished):
        flush(path)
    os.rename(unfinished, folder)
    flush(folder.parent)


def byte_tokenizer(max_tokens: int) -> PreTrainedTokenizerFast:
    """One token per byte of UTF-8 and four special tokens; no merges, so every text has exactly one encoding."""
    tokenizer = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in enumerate(_byte_letters())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[OBSERVATION, INSTRUCTION],
        model_max_length=max_tokens,
        clean_up_tokenization_spaces=False,
    )


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level tokenizers (the table of GPT-2), so that token id = byte."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    substitutes = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(substitutes)) for byte in range(256)]
