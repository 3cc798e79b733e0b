"""A published folder is a complete Hugging Face model with the learner's weights."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhpc.learner.megatron import Learner
from rlhpc.learner.publish import write_policy


def test_transformers_computes_the_same_from_the_published_folder(
    make_learner: Callable[[], Learner], tiny_model: Path, tmp_path: Path
) -> None:
    learner = make_learner()
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    write_policy(tmp_path, learner.hugging_face_weights(), tiny_model)

    tokens = torch.randint(0, 256, (2, 20))
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(tmp_path)(tokens).logits.reshape(40, -1)
        torch.testing.assert_close(learner.model(tokens, torch.arange(40)), expected, atol=1e-4, rtol=0)


def test_everything_but_the_weights_is_taken_from_the_source(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for file in tiny_model.iterdir():
        (tmp_path / "source" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "source" / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "source" / "model.safetensors.index.json").write_text("{}")
    (tmp_path / "target").mkdir()
    write_policy(tmp_path / "target", {"weight": torch.zeros(1)}, tmp_path / "source")
    assert (tmp_path / "target" / "chat_template.jinja").exists()
    assert not (tmp_path / "target" / "model.safetensors.index.json").exists()
    assert len(AutoTokenizer.from_pretrained(tmp_path / "target")) == 260


def test_the_configuration_names_the_precision_of_the_new_weights(tiny_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    config = json.loads((tiny_model / "config.json").read_text()) | {"torch_dtype": "bfloat16", "dtype": "bfloat16"}
    (source / "config.json").write_text(json.dumps(config))
    (tmp_path / "target").mkdir()
    write_policy(tmp_path / "target", {"weight": torch.zeros(1)}, source)
    published = json.loads((tmp_path / "target" / "config.json").read_text())
    assert published["dtype"] == "float32" and "torch_dtype" not in published
