"""Publishing the learner's weights as a Hugging Face directory that rollouts load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from rlhpc.errors import ModelError
from rlhpc.learner.weights import write_weights

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")


def write_policy(folder: Path, weights: Mapping[str, Tensor], source: Path) -> None:
    """Fill ``folder``: ``weights`` as one safetensors file, everything else as in the source model directory.

    Args:
        folder: An existing folder.
        weights: The whole model in Hugging Face layout, f32.
        source: The Hugging Face directory that training began with: configuration, tokenizer, generation settings.
    """
    for file in sorted(source.iterdir()):
        if file.is_file() and not file.name.startswith(".") and not file.name.endswith(_WEIGHT_SUFFIXES):
            shutil.copyfile(file, folder / file.name)
    _set_precision(folder / "config.json", weights)
    write_weights(folder, weights)


def _set_precision(config_file: Path, weights: Mapping[str, Tensor]) -> None:
    """Let the copied configuration name the precision of the weights beside it."""
    try:
        config = json.loads(config_file.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{config_file} cannot be read: {error}") from error
    config.pop("torch_dtype", None)  # the older name of the same key
    config["dtype"] = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    config_file.write_text(json.dumps(config, indent=2) + "\n")
