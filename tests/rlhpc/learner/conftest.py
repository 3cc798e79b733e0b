from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlhpc.learner.initial_model import write_initial_model
from rlhpc.learner.megatron import Learner, process_groups
from rlhpc.learner.settings import OptimizerSettings, ParallelSettings
from rlhpc.learner.shape import read_shape


@pytest.fixture(scope="module")
def one_rank() -> Iterator[None]:
    with process_groups(ParallelSettings(), seed=0, threads=1):
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_initial_model(folder, hidden_size=32, layers=2, attention_heads=4, key_value_heads=2, feed_forward_size=64)
    return folder


@pytest.fixture
def make_learner(one_rank: None, tiny_model: Path) -> Callable[[], Learner]:
    def make() -> Learner:
        learner = Learner(read_shape(tiny_model), OptimizerSettings())
        learner.load_hugging_face(tiny_model)
        return learner

    return make
