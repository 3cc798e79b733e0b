"""Attention core and normalisation for Megatron-Core's GPTModel that need no fused kernels, on CPU and CUDA alike."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CausalAttention(nn.Module):
    """Causal grouped-query attention by ``scaled_dot_product_attention``; a Megatron core attention.

    There is no padding mask: batches are padded on the right, where a causal row never looks.
    """

    def __init__(self, config: Any, layer_number: int, attn_mask_type: Any, attention_type: str, **_: Any) -> None:
        super().__init__()
        self.scale = 1.0 / math.sqrt(config.kv_channels)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: Any) -> Tensor:
        """Attend. query f[T, B, heads, d], key and value f[T, B, key_value_heads, d] -> f[T, B, heads * d].

        Raises:
            ValueError: an explicit mask was given; it would be ignored.
        """
        if attention_mask is not None:
            raise ValueError("CausalAttention takes no attention mask: pad on the right instead")
        length, batch, heads, size = query.shape
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        grouped = key.shape[1] != heads
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale, enable_gqa=grouped)
        return mixed.permute(2, 0, 1, 3).reshape(length, batch, heads * size)


class RootMeanSquareNorm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019, eq. 4) that Megatron can also run sequence-parallel."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        # Megatron sums the gradients of parameters with this mark over the tensor-parallel ranks.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalise the last dimension. f[..., h] -> f[..., h]."""
        return F.rms_norm(hidden, (hidden.shape[-1],), self.weight, self.eps)
