"""RoPE until a share of the training is done, and no encoding after it."""

from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from helpers.configs import TINY_MODEL
from helpers.fits import fit
from pe_lab.attention import attend
from pe_lab.config import expand_overrides
from pe_lab.data.base import Batch
from pe_lab.encodings import PADDING, DroPE, Layout, Randomized, RoPE, Sizes, make
from pe_lab.encodings.policies import apply_policy
from pe_lab.experiment.cell import Cell
from pe_lab.experiment.job import Job
from pe_lab.training.checkpoints import SafeTensorsIO
from pe_lab.training.data import Sequences
from pe_lab.training.module import Training

B, H, d, T = 2, 2, 6, 9
SIZES = Sizes(H * d, H, T)
TINY = [*TINY_MODEL, "trainer.batch_size=32", "trainer.device=cpu"]
DATA = ["data=copy", "data.longest=5", "data.train=256", "data.validation=9", "data.test=9", "logger=none"]


def layouts() -> list[Layout]:
    segment = torch.tensor([[PADDING] * 2 + [0] * 4 + [3] * 3, [1] * 8 + [PADDING]])
    return [Layout.whole(B, T, True), Layout(torch.arange(70, 70 + T)[None], segment, True)]


def by_definition(q: Tensor, k: Tensor, v: Tensor, layout: Layout, rotates: bool) -> Tensor:
    """Attention by loops over pairs: rotated by the angle of the distance, or not at all."""
    pos, rows = layout.pos.expand(B, T).tolist(), []
    for b in range(B):
        for i in range(T):
            keys = [j for j in range(i + 1) if layout.segment[b, j] == layout.segment[b, i]]
            logits = []
            for j in keys:
                z = torch.zeros(H, dtype=torch.float64)
                for c in range(0, d, 2):
                    t = torch.tensor((pos[b][i] - pos[b][j]) * 500.0 ** (-c / d) * rotates, dtype=torch.float64)
                    (x, y), (u, w) = (one.unbind(-1) for one in (q[b, :, i, c : c + 2], k[b, :, j, c : c + 2]))
                    z = z + (x * t.cos() - y * t.sin()) * u + (x * t.sin() + y * t.cos()) * w
                logits.append(z / d**0.5)
            weights = torch.stack(logits, -1).softmax(-1)
            rows.append((weights[..., None] * v[b][:, keys]).sum(1))
    return torch.stack(rows).view(B, T, H, d).transpose(1, 2)


@pytest.mark.proves("drope")
@pytest.mark.parametrize("rotates", [True, False])
def test_values_and_gradients_are_those_of_rope_before_the_drop_and_of_none_after_it(rotates: bool) -> None:
    encoding = DroPE(SIZES, theta=500.0, drop_at=0.5).double()
    encoding.advance(0.49 if rotates else 0.5)
    for layout in layouts():
        is_token = (layout.segment != PADDING)[:, None, :, None]
        qkv = [torch.randn(B, H, T, d, dtype=torch.float64, requires_grad=True) for _ in range(3)]
        upstream = torch.randn(B, H, T, d, dtype=torch.float64) * is_token
        terms = encoding.terms(torch.zeros(B, T, H * d, dtype=torch.float64), layout)
        got, expected = attend(*qkv, terms, layout), by_definition(*qkv, layout, rotates)
        assert_close(got * is_token, expected * is_token, rtol=0, atol=1e-12)
        for one, other in zip(*(torch.autograd.grad(out, qkv, upstream) for out in (got, expected)), strict=True):
            assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_before_the_drop_it_has_the_bits_of_rope_and_after_it_those_of_none(pairing) -> None:
    encoding, rope = (kind(SIZES, pairing=pairing) for kind in (DroPE, RoPE))
    h, q, k = torch.randn(B, T, H * d), *torch.randn(2, B, H, T, d)
    layout = layouts()[1]
    for done, expected in ((None, rope), (0.0, rope), (0.8749, rope), (0.875, None), (0.99, None), (0.3, rope)):
        if done is not None:  # as it is made, before the first step
            encoding.advance(done)
        actual, wanted = (
            attend(q, k, q, one.terms(h, layout), layout, "reference")
            for one in (encoding, expected or make("none", width=H * d, num_heads=H, depth=1, length=T).first)
        )
        assert torch.equal(actual, wanted), done


def test_parts_and_wrapped_encodings_drop_too() -> None:
    sizes = {"width": 8, "num_heads": 2, "depth": 2, "length": T}
    for stack in (
        make("sum", parts=["alibi", "drope"], **sizes),
        make("interleave", parts=["none", "drope"], **sizes),
        make("randomized_rope", encoding=DroPE, **sizes),
        make("dape", encoding=DroPE, **sizes),
    ):
        (inner,) = [module for module in stack.modules() if isinstance(module, DroPE)]
        assert stack.first.phased
        stack.advance(0.9)
        assert inner.rotates.item() == 0
        stack.advance(0.1)
        assert inner.rotates.item() == 1
    assert not make("rope", **sizes).first.phased
    assert not Randomized(SIZES, "randomized", RoPE).phased


def training(*overrides: str) -> Training:
    return Cell.from_config(
        expand_overrides([*TINY, *DATA, "epochs=1", *overrides], multirun=False)[0]
    ).lightning_module()


def train(made: Training, steps: int) -> Training:
    def evaluate(batch: Batch) -> Tensor:
        made.optimizer.zero_grad()
        loss = made.training_step(batch, 0)
        loss.backward()
        return loss

    data = Sequences(made.cfg).train_dataloader()
    data.order.start = made.step
    for batch in islice(data, steps):
        made.optimizer.step(partial(evaluate, batch))
        made.step += 1
    return made


def test_training_is_that_of_rope_to_the_drop_and_of_none_from_there() -> None:
    """8 steps, the last of them without."""
    dropped, rope, none = (training(f"pe={name}") for name in ("drope", "rope", "none"))
    assert dropped.total_steps == 8
    train(dropped, 8)
    train(rope, 7)
    none.model.load_state_dict(rope.model.state_dict())
    none.optimizer.load_state_dict(rope.optimizer.state_dict())
    none.step = 7
    train(none, 1)
    losses = torch.stack(dropped.losses)
    assert torch.equal(losses, torch.stack([*rope.losses, *none.losses]))
    weights = dropped.model.state_dict()
    assert weights.pop("encodings.0.rotates").item() == 0
    assert all(torch.equal(value, none.model.state_dict()[key]) for key, value in weights.items())


@pytest.mark.parametrize("step", [3, 5, 7])
def test_a_training_continues_with_the_same_bits_in_either_phase(step: int, tmp_path: Path) -> None:
    overrides = ("pe=drope", "pe.drop_at=0.6")  # 5 steps of 8
    whole, continued = training(*overrides), training(*overrides)
    fit(whole, max_epochs=-1, max_steps=8)
    fit(training(*overrides), max_epochs=-1, max_steps=step).save_checkpoint(tmp_path / "state")
    continued.load_state_dict(SafeTensorsIO().load_checkpoint(tmp_path / "state")["state_dict"])
    assert continued.model.encodings.first.rotates.item() == (step <= 5)
    fit(continued, tmp_path / "state", max_epochs=-1, max_steps=8)
    states = [one.model.state_dict() for one in (whole, continued)]
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    assert torch.equal(torch.stack(whole.losses), torch.stack(continued.losses))


def test_a_checkpoint_is_of_its_phase_and_of_a_run_of_its_own(tmp_path: Path) -> None:
    """The number of epochs decides when rotations end, so that it is in the identity, as with a cosine schedule."""
    made = [
        Job.from_config(expand_overrides([*TINY, *DATA, f"ledger={tmp_path}", *more], multirun=False)[0])
        for more in (
            ("pe=drope", "epochs=1"),
            ("pe=drope", "epochs=2"),
            ("pe=drope", "epochs=1", "pe.drop_at=1"),
            ("pe=sum", "pe.parts=[drope,alibi]", "epochs=1"),
            ("pe=rope", "epochs=1"),
        )
    ]
    assert len({job.run.name for job in made}) == 5
    assert [job.cell.identity.get("epochs") for job in made] == [1, 2, 1, 1, None]
    for job, rotates in ((made[0], 0), (made[2], 1)):
        job.request()
        job.complete(wait=True)
        weights = load_file(job.run.checkpoint(1) / "weights.safetensors")
        assert weights["encodings.0.rotates"].item() == rotates


def test_what_it_is_not_defined_for_is_refused() -> None:
    with pytest.raises(ValueError, match="drope is defined for causal attention only, .*: use rope"):
        DroPE(Sizes(H * d, H, T, causal=False))
    for value in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"^drop_at must be in \[0, 1\], got"):
            DroPE(SIZES, drop_at=value)
    with pytest.raises(ValueError, match="policy=yarn is defined for rope, got drope"):
        apply_policy("yarn", DroPE(SIZES), 2)
