"""Weights in a Hugging Face directory: safetensors files, one or several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from rlhpc.errors import ModelError


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a Hugging Face directory by name.

    Raises:
        ModelError: there are no safetensors files.
    """
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise ModelError(f"{folder}: no model*.safetensors; save the model with safe_serialization=True")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def write_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Write all tensors into one ``model.safetensors``."""
    contiguous = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
