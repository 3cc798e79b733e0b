from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rlhpc.learner.initial_model import write_initial_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_initial_model(folder, hidden_size=32, layers=2, attention_heads=4, key_value_heads=2, feed_forward_size=64)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture(scope="session")
def published(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as policy version 7."""
    folder = tmp_path_factory.mktemp("policies") / "000007"
    shutil.copytree(tiny_model, folder)
    (folder / "policy.json").write_text(json.dumps({"version": 7}))
    return folder
