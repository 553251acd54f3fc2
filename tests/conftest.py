"""What all tests share: one thread, no network, equal randomness."""

import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined: without a GPU, kernels run on CPU tensors


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors are slower on two threads, and two are not reproducible; processes that tests start do likewise."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def _wandb_stays_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """W&B is off unless a test turns it on, and writes to a temporary folder when it is."""
    folder = tmp_path_factory.mktemp("wandb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "disabled")
        for name in ("DIR", "CONFIG_DIR", "CACHE_DIR", "DATA_DIR"):
            patch.setenv(f"WANDB_{name}", str(folder))
        yield


@pytest.fixture(scope="session", autouse=True)
def _cache_stays_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Corpora, tokens and reference levels are kept in a temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _same_randomness() -> None:
    """A test draws the same numbers whichever tests ran before."""
    torch.manual_seed(0)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
