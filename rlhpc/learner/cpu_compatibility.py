"""Lets Megatron-Core run on a machine without CUDA. ``install()`` comes before the first import of megatron.

Megatron-Core names ``device="cuda"`` and ``torch.cuda.*`` throughout. Changing torch itself would reach every other
library of the process (``from_pretrained`` of transformers then silently loads nothing), so only megatron's own
modules are changed: the name ``torch`` inside each of them becomes a stand-in that maps CUDA devices to the CPU. A few
functions that look at tensor type names or at the CUDA random state are wrapped one by one. With CUDA nothing is done.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

_CPU = torch.device("cpu")
_TENSOR_FACTORIES = (
    "tensor zeros ones empty full arange rand randn randint linspace as_tensor "
    "empty_like zeros_like ones_like full_like Generator"
).split()


def install() -> None:
    """Arrange that megatron modules imported from now on run on the CPU; does nothing with CUDA or a second time.

    Raises:
        RuntimeError: megatron.core is already imported, so some of its modules would keep the real torch.
    """
    if torch.cuda.is_available() or any(isinstance(finder, _MegatronFinder) for finder in sys.meta_path):
        return
    if "megatron.core" in sys.modules:
        raise RuntimeError("megatron.core was imported before cpu_compatibility.install(); import rlhpc.learner first")
    sys.meta_path.insert(0, _MegatronFinder(_torch_stand_in()))
    # These two methods can only raise on a machine without CUDA, so no working behaviour of torch changes.
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.nn.Module.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]


class _ModuleStandIn(types.ModuleType):
    """A module with some names replaced; all others are looked up in the real one."""

    def __init__(self, real: types.ModuleType, replaced: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(replaced, _real=real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)


class _Stream:
    """A CUDA stream or event on a machine that runs everything in order: each operation is already complete."""

    device = _CPU
    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing

    def query(self) -> bool:
        """Whether all work has been done: always."""
        return True

    def elapsed_time(self, _: Any) -> float:
        """Milliseconds between two events: not measured."""
        return 0.0


def _nothing(*_: Any, **__: Any) -> None:
    """Stand for a CUDA call that has no meaning on the CPU."""


def _no_context(*_: Any, **__: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _torch_stand_in() -> types.ModuleType:
    factories = {name: _on_cpu(getattr(torch, name)) for name in _TENSOR_FACTORIES}
    return _ModuleStandIn(torch, {"cuda": _cuda_stand_in(), **factories})


def _cuda_stand_in() -> types.ModuleType:
    stream = _Stream()
    replaced: dict[str, Any] = {
        "current_device": lambda: _CPU,
        "device_count": lambda: 1,
        "manual_seed": torch.manual_seed,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
        "current_stream": lambda *_, **__: stream,
        "default_stream": lambda *_, **__: stream,
        "stream": _no_context,
        "memory_stats": lambda *_, **__: {},
        "Stream": _Stream,
        "Event": _Stream,
        "nvtx": types.SimpleNamespace(range_push=_nothing, range_pop=_nothing, range=_no_context),
    }
    replaced |= {name: _nothing for name in ("set_device", "synchronize", "empty_cache", "manual_seed_all")}
    replaced |= {name: lambda *_, **__: 0 for name in ("memory_allocated", "memory_reserved", "max_memory_allocated")}
    return _ModuleStandIn(torch.cuda, replaced)


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs and _is_cuda(kwargs["device"]):
            kwargs["device"] = _CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return call


def _is_cuda(device: Any) -> bool:
    return (isinstance(device, str) and device.startswith("cuda")) or (
        isinstance(device, torch.device) and device.type == "cuda"
    )


class _MegatronFinder(importlib.abc.MetaPathFinder):
    """Finds megatron's modules as usual and changes each one right after it was executed."""

    def __init__(self, torch_stand_in: types.ModuleType) -> None:
        self._torch = torch_stand_in

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The usual spec with a loader that also adapts the module, for megatron; None for anything else."""
        if not fullname.startswith("megatron."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_adapt(module: types.ModuleType) -> None:
                execute(module)
                self._adapt(module)

            spec.loader.exec_module = execute_and_adapt  # type: ignore[method-assign]
        return spec

    def _adapt(self, module: types.ModuleType) -> None:
        if module.__dict__.get("torch") is torch:
            module.__dict__["torch"] = self._torch
        _ADAPTATIONS.get(module.__name__, _nothing)(module)


@contextlib.contextmanager
def _cuda_type_names() -> Iterator[None]:
    """``Tensor.type()`` says ``torch.cuda.FloatTensor``: some optimizers accept no other name."""
    original = torch.Tensor.type

    def type_name(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        name = original(self, *args, **kwargs)
        return name.replace("torch.", "torch.cuda.", 1) if isinstance(name, str) and ".cuda." not in name else name

    torch.Tensor.type = type_name  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.Tensor.type = original  # type: ignore[method-assign]


def _adapt_random(module: Any) -> None:
    module._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    module._set_cuda_rng_state = lambda new_state, *_, **__: torch.set_rng_state(new_state)


def _adapt_clip_grads(module: Any) -> None:
    module.clip_grad_by_total_norm_fp32 = _cuda_type_names()(module.clip_grad_by_total_norm_fp32)


def _adapt_optimizer(module: Any) -> None:
    mixed_precision = module.Float16OptimizerWithFloat16Params
    mixed_precision.__init__ = _cuda_type_names()(mixed_precision.__init__)


_ADAPTATIONS: dict[str, Callable[[Any], None]] = {
    "megatron.core.tensor_parallel.random": _adapt_random,
    "megatron.core.optimizer.clip_grads": _adapt_clip_grads,
    "megatron.core.optimizer.optimizer": _adapt_optimizer,
}
