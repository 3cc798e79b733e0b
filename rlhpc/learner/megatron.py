"""The model, its gradients and its optimizer on Megatron-Core; with checkpoint.py the only importer of megatron.

The same code runs on one CPU core and on many GPUs. Ranks come from the environment that ``torchrun`` or a Slurm step
sets (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT); without it there is one rank.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from rlhpc.errors import ModelError
from rlhpc.learner import cpu_compatibility
from rlhpc.learner.convert import Slice, to_hugging_face, to_megatron
from rlhpc.learner.settings import OptimizerSettings, ParallelSettings
from rlhpc.learner.shape import ModelShape
from rlhpc.learner.weights import read_weights

cpu_compatibility.install()
# Megatron describes its set-up at INFO on every start and warns of its own missing accelerators and deprecations.
logging.getLogger("megatron").setLevel(logging.WARNING)
warnings.filterwarnings("ignore", module=r"megatron\.")

from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer.transformer_block import (  # noqa: E402
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

from rlhpc.learner.attention import CausalAttention, RootMeanSquareNorm  # noqa: E402


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What the model needs of a few sequences, padded on the right."""

    token_ids: Tensor
    """i64[B, T]."""
    selected: Tensor
    """i64[N], ascending: positions ``b * T + t`` whose next token is learned from."""
    targets: Tensor
    """i64[N]: the next token at each selected position."""


Result = TypeVar("Result")

LossFunction = Callable[[int, Tensor, Tensor], tuple[Tensor, Mapping[str, float]]]
"""(micro-batch index, log-probabilities f32[N], entropies f32[N]) -> (scalar loss, named sums)."""


@contextlib.contextmanager
def process_groups(parallel: ParallelSettings, *, seed: int, threads: int) -> Iterator[None]:
    """Join the process groups of all ranks (gloo on CPU, NCCL with CUDA) and leave them at the end.

    Raises:
        ModelError: the number of ranks is no multiple of tensor x pipeline parallel size.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world % (parallel.tensor * parallel.pipeline):
        raise ModelError(f"{world} ranks cannot be split into tensor={parallel.tensor} x pipeline={parallel.pipeline}")
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    else:
        torch.set_num_threads(threads)
    # A single rank meets nobody, so it needs no port and no address.
    alone: dict[str, Any] = {"store": HashStore(), "rank": 0, "world_size": 1} if world == 1 else {}
    dist.init_process_group("nccl" if cuda else "gloo", **alone)
    parallel_state.initialize_model_parallel(parallel.tensor, parallel.pipeline)
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


class PolicyModel(GPTModel):  # type: ignore[misc]
    """A GPTModel that computes logits only where they are learned from, not for observations and padding."""

    def forward(self, token_ids: Tensor, selected: Tensor) -> Tensor:
        """Logits f32[N, V / tensor size] at ``selected``, or this pipeline stage's hidden states f[T, B, h]."""
        positions = torch.arange(token_ids.shape[1], device=token_ids.device).expand_as(token_ids)
        embedded, rotary, *_ = self._preprocess(token_ids, positions)
        hidden = self.decoder(hidden_states=embedded, attention_mask=None, rotary_pos_emb=rotary)
        if not self.post_process:
            return hidden  # type: ignore[no-any-return]
        rows = hidden.transpose(0, 1).flatten(0, 1).index_select(0, selected)
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits, _ = self.output_layer(rows.unsqueeze(1), weight=weight)
        return logits.squeeze(1).float()  # type: ignore[no-any-return]


def log_probabilities(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of each distribution, both f32[N], from f32[N, V / tensor size].

    Distributions are those that were sampled from: logits divided by ``temperature``.
    """
    whole = tensor_parallel.gather_from_tensor_model_parallel_region(logits)
    logs = F.log_softmax(whole if temperature == 1.0 else whole / temperature, dim=-1)
    with torch.no_grad():
        entropies = -(logs.exp() * logs).sum(-1)
    return logs.gather(1, targets.unsqueeze(1)).squeeze(1), entropies


class Learner:
    """A policy model with its gradient buffers and its optimizer."""

    def __init__(self, shape: ModelShape, optimizer: OptimizerSettings) -> None:
        self.shape = shape
        self.device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
        config = _transformer_config(shape)
        self.model = _build_model(config, shape).to(self.device)
        self.ddp = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), self.model)
        self.reset_optimizer(optimizer)

    def reset_optimizer(self, settings: OptimizerSettings) -> None:
        """Begin again with empty optimizer state; the weights stay."""
        self.updates = 0
        self.optimizer = get_megatron_optimizer(_optimizer_config(settings), [self.ddp])

    def load_hugging_face(self, folder: Path) -> None:
        """Take all weights from a Hugging Face directory.

        Raises:
            ModelError: a weight is missing or has another shape.
        """
        try:
            state = to_megatron(read_weights(folder), self.shape, self._slice())
            self.model.load_state_dict(_with_extra_state(state, self.model))
        except (KeyError, RuntimeError) as error:
            raise ModelError(f"{folder}: weights do not fit config.json: {error}") from error

    def hugging_face_weights(self) -> dict[str, Tensor]:
        """The whole state in Hugging Face layout, on the CPU, on every rank; all ranks must call it."""
        state = {
            name: value.detach().cpu()
            for name, value in self.model.state_dict().items()
            if isinstance(value, Tensor) and not name.endswith("_extra_state")
        }
        tensor_size = parallel_state.get_tensor_model_parallel_world_size()
        pipeline_size = parallel_state.get_pipeline_model_parallel_world_size()
        place = (parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_tensor_model_parallel_rank())
        placed = dict(_gathered((place, state), parallel_state.get_model_parallel_group()))
        stages = [[placed[stage, shard] for shard in range(tensor_size)] for stage in range(pipeline_size)]
        return to_hugging_face(stages, self.shape)

    def accumulate(
        self, micro_batches: Sequence[MicroBatch], loss: LossFunction, *, temperature: float, train: bool = True
    ) -> list[Mapping[str, float]]:
        """Run this data-parallel rank's micro-batches forward and backward and add up the gradients of all ranks.

        Returns:
            The named sums of the micro-batches of all data-parallel ranks, in rank order, the same list everywhere.
        """

        def forward(batches: Iterator[tuple[int, MicroBatch]], model: Any) -> tuple[Tensor, Callable[..., Any]]:
            index, batch = next(batches)
            output = model(batch.token_ids.to(self.device), batch.selected.to(self.device))

            def loss_of(logits: Tensor) -> tuple[Tensor, Tensor, Mapping[str, float]]:
                logprobs, entropies = log_probabilities(logits, batch.targets.to(self.device), temperature)
                value, sums = loss(index, logprobs, entropies)
                return value, torch.zeros([], dtype=torch.int, device=self.device), sums

            return output, loss_of

        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()
        statistics = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(enumerate(micro_batches)),
            model=[self.ddp],
            num_microbatches=len(micro_batches),
            seq_length=micro_batches[0].token_ids.shape[1],
            micro_batch_size=micro_batches[0].token_ids.shape[0],
            forward_only=not train,
        )
        return self._statistics_of_all_ranks(statistics)

    def apply(self, learning_rate: float) -> float:
        """Clip the accumulated gradients, step the optimizer and return the gradient norm before clipping.

        A norm that is not finite leaves weights and optimizer as they are.
        """
        self.optimizer.prepare_grads()
        norm = float(self.optimizer.get_grad_norm())
        if math.isfinite(norm):
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
            self.updates += 1
        return norm

    def _slice(self) -> Slice:
        return Slice(
            first_layer=self.model.decoder.layers[0].layer_number - 1,
            layers=len(self.model.decoder.layers),
            has_embedding=self.model.pre_process,
            has_output=self.model.post_process,
            tensor_rank=parallel_state.get_tensor_model_parallel_rank(),
            tensor_size=parallel_state.get_tensor_model_parallel_world_size(),
        )

    def _statistics_of_all_ranks(self, own: list[Mapping[str, float]]) -> list[Mapping[str, float]]:
        first_shard = parallel_state.get_tensor_model_parallel_rank() == 0
        counted = own if self.model.post_process and first_shard else []
        return [sums for rank in _gathered(counted, dist.group.WORLD) for sums in rank]


def data_parallel_place() -> tuple[int, int]:
    """Place of this rank among the data-parallel ranks, and their number."""
    return parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()


def from_first_rank(action: Callable[[], Result]) -> Result:
    """Run ``action`` on rank 0 alone and return its result on every rank; its exception is raised on every rank."""
    if dist.get_world_size() == 1:
        return action()
    outcome: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = action()
        except Exception as error:
            outcome[1] = error
    dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]  # type: ignore[no-any-return]


def _gathered(value: Any, group: Any) -> list[Any]:
    """``value`` of every rank of a group, in rank order."""
    size = dist.get_world_size(group)
    if size == 1:
        return [value]
    values: list[Any] = [None] * size
    dist.all_gather_object(values, value, group=group)
    return values


def _transformer_config(shape: ModelShape) -> TransformerConfig:
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.feed_forward,
        num_attention_heads=shape.heads,
        num_query_groups=shape.key_value_heads,
        kv_channels=shape.head_size,
        normalization="RMSNorm",
        layernorm_epsilon=shape.norm_epsilon,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=shape.qkv_bias,
        qk_layernorm=shape.qk_norm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # unused; the default refuses variable lengths
        # Initialisation also marks which parameters are split over ranks, which the gradient norm must know.
        use_cpu_initialization=True,
        # Gradients of the ranks are summed, not averaged: the loss already has the denominator of the whole batch.
        calculate_per_token_loss=True,
        finalize_model_grads_func=_finalize_without_rescaling,
        # Fused kernels need CUDA extensions that megatron-core does not ship.
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )


def _finalize_without_rescaling(models: list[Any], num_tokens: Tensor | None = None, **options: Any) -> None:
    finalize_model_grads(models, None, **options)


def _build_model(config: TransformerConfig, shape: ModelShape) -> PolicyModel:
    tensor_size = config.tensor_model_parallel_size
    for name, size in (("vocab_size", shape.vocabulary), ("num_key_value_heads", shape.key_value_heads)):
        if size % tensor_size:
            raise ModelError(f"config.json: {name}={size} is no multiple of the tensor-parallel size {tensor_size}")
    layer = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=shape.qk_norm)
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RootMeanSquareNorm
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = CausalAttention
    if shape.qk_norm:
        attention.q_layernorm = attention.k_layernorm = RootMeanSquareNorm
    layers = TransformerBlockSubmodules(
        layer_specs=[layer] * get_num_layers_to_build(config), layer_norm=RootMeanSquareNorm
    )
    return PolicyModel(
        config=config,
        transformer_layer_spec=layers,
        vocab_size=shape.vocabulary,
        max_sequence_length=shape.max_tokens,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=True,
        share_embeddings_and_output_weights=shape.tied_embeddings,
        position_embedding_type="rope",
        rotary_base=shape.rotary_base,
    )


def _optimizer_config(settings: OptimizerSettings) -> OptimizerConfig:
    return OptimizerConfig(
        optimizer="adam",
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        clip_grad=settings.clip_grad or math.inf,
    )


def _with_extra_state(state: dict[str, Tensor], model: PolicyModel) -> dict[str, Any]:
    """Add the entries without weights that megatron modules have in their state."""
    return {name: None for name in model.state_dict() if name.endswith("_extra_state")} | state
