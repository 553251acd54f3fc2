"""What a GPU would be given, on a machine without one: kernels specialised and compiled as there, in every preset.

A stand-in takes the place of Triton's driver, in a process of its own; see tests/emulation.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from emulation import attempts, steps
from emulation.driver import MAX_SHARED_BYTES, standing_in
from emulation.synchronisations import Synchronisations
from emulation.worker import worker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the kernels themselves: test_gpu.py"),
]
PARTS = 5  # of the presets: one call to the worker each


@pytest.fixture(scope="module")
def call() -> Callable[..., Any]:
    """Calls a function in a process whose kernels are compiled."""
    return worker()


def wrong(found: list[steps.Step]) -> list[str]:
    """What is not as it should be, with the setting that shows it."""
    return [f"{step.setting}: {step.wrong}" for step in found if step.wrong]


def test_the_stand_in_refuses_a_process_of_interpreted_kernels() -> None:
    with pytest.raises(RuntimeError, match="needs a process without TRITON_INTERPRET"), standing_in():
        pass


@pytest.mark.parametrize("part", range(PARTS))
def test_a_step_of_every_preset_launches_what_there_is_or_is_refused_as_announced(
    part: int, call: Callable[..., Any]
) -> None:
    """In both dtypes, causal or not, with packed sequences and dropout or without; a kernel without blocks fails."""
    names = steps.presets()[part::PARTS]
    actual = call(steps.steps, names, "sm_90", compiles=False, every=False)
    assert {step.setting.preset for step in actual} == set(names)
    assert not wrong(actual)
    for step in actual:
        assert (step.announced is None) == bool(step.launches)
        for launch in step.launches:
            assert min(launch.grid) >= 1
            assert max(launch.grid[1:]) <= 65535
    print(steps.summary(actual))  # shown by -rP


def test_stick_breaking_trains_without_a_table(call: Callable[..., Any]) -> None:
    """Blocks are looked up for launched kernels only: there are none for the gradient of a table that is not there."""
    for architecture in MAX_SHARED_BYTES:
        actual = call(steps.steps, ["stick_breaking"], architecture, compiles=False, every=True)
        ran = [step for step in actual if step.announced is None]
        assert len(ran) == 8  # those without dropout
        assert not wrong(ran)
        for step in ran:
            assert "stick_backward_tables" not in {launch.kernel for launch in step.launches}


@pytest.mark.exhaustive  # 40 minutes on one core without Triton's cache
@pytest.mark.parametrize("architecture", MAX_SHARED_BYTES)
@pytest.mark.parametrize("name", steps.presets())
def test_every_preset_compiles_in_every_setting(name: str, architecture: str, call: Callable[..., Any]) -> None:
    """Within the shared memory that a program has."""
    actual = call(steps.steps, [name], architecture, compiles=True, every=True)
    assert not wrong(actual)
    shared = [launch.shared for step in actual for launch in step.launches]
    assert all(size <= MAX_SHARED_BYTES[architecture] for size in shared)


def test_steps_of_one_shape_differ_in_nothing_that_a_launch_is_given(call: Callable[..., Any]) -> None:
    """So that a step can be captured once and replayed: kernels, grids, numbers and the addresses of kept tensors."""
    first, *others = call(attempts.repeated, 3)
    assert first
    for other in others:
        assert [launch.kernel for launch in other] == [launch.kernel for launch in first]
        for one, two in zip(first, other, strict=True):
            assert (one.grid, one.arguments) == (two.grid, two.arguments)
            for name in ("q", "k", "v"):
                assert one.addresses.get(name) == two.addresses.get(name)


def test_attention_does_not_wait_for_the_device(call: Callable[..., Any]) -> None:
    """Forward and backward, once the layout's flags are known."""
    for family, counts in call(attempts.waits).items():
        assert not counts, f"{family} waits: {counts}"


@pytest.mark.parametrize(
    ("cause", "operation"),
    [
        ("item() or bool()", lambda x: x.sum().item()),
        ("item() or bool()", lambda x: bool(x.sum() > 0)),
        ("item() or bool()", lambda x: float(x[0, 0])),
        ("a tensor of Python numbers", lambda x: x[:, [0, 1]]),
        ("a tensor of Python numbers", lambda x: torch.tensor([1.0, 2.0])),
        ("a mask as an index", lambda x: x[x > 0]),
        ("a copy between devices", lambda x: x.to("meta")),
        ("nonzero", lambda x: x.nonzero()),
        ("unique", lambda x: x.unique()),
        ("masked_select", lambda x: x.masked_select(x > 0)),
    ],
)
def test_a_synchronisation_is_counted(cause: str, operation: Callable[[torch.Tensor], object]) -> None:
    with Synchronisations() as counter:
        operation(torch.ones(2, 2))
    assert counter.counts == Counter({cause: 1})


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + 1,
        lambda x: x[:, torch.arange(2)],
        lambda x: x[1].cpu(),
        lambda x: x.where(x > 0, 0.0),
        lambda x: torch.full((3,), 2.0) @ torch.arange(3.0),
        lambda x: x.softmax(-1).sum(),
    ],
)
def test_what_stays_on_the_device_is_not_counted(operation: Callable[[torch.Tensor], object]) -> None:
    with Synchronisations() as counter:
        operation(torch.ones(2, 2))
    assert counter.total == 0
