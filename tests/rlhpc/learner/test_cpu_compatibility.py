"""Megatron-Core must run without CUDA, and nothing else in the process may notice."""

import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from rlhpc.learner.megatron import parallel_state
from rlhpc.learner.weights import read_weights


def run(code: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_torch_itself_still_refuses_cuda_devices() -> None:
    assert parallel_state.torch is not torch
    try:
        torch.zeros(1, device="cuda")
    except (RuntimeError, AssertionError):
        return
    raise AssertionError("torch.zeros(device='cuda') was redirected outside megatron")


def test_megatron_modules_get_cpu_tensors_for_cuda_devices() -> None:
    assert parallel_state.torch.zeros(2, device="cuda").device.type == "cpu"
    assert parallel_state.torch.cuda.current_device() == torch.device("cpu")


def test_transformers_loads_the_weights_that_are_in_the_file(tiny_model: Path) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(tiny_model).state_dict()
    for name, tensor in read_weights(tiny_model).items():
        assert torch.equal(loaded[name], tensor), name


def test_does_nothing_where_cuda_is_available() -> None:
    output = run(
        "import sys, torch\n"
        "torch.cuda.is_available = lambda: True\n"
        "before = list(sys.meta_path), torch.Tensor.cuda\n"
        "from rlhpc.learner import cpu_compatibility\n"
        "cpu_compatibility.install()\n"
        "print((list(sys.meta_path), torch.Tensor.cuda) == before)"
    )
    assert output.strip() == "True"


def test_refuses_to_come_after_megatron() -> None:
    output = run(
        "import sys, types\n"
        "sys.modules['megatron.core'] = types.ModuleType('megatron.core')\n"
        "from rlhpc.learner import cpu_compatibility\n"
        "try:\n"
        "    cpu_compatibility.install()\n"
        "except RuntimeError as error:\n"
        "    print(error)"
    )
    assert "before cpu_compatibility.install()" in output
