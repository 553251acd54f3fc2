"""A captured step trains as the usual one does.

Without a GPU, a graph is a function that is called again on its buffers.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers.configs import TINY_MODEL, in_ledger
from pe_lab.data.base import Batch
from pe_lab.experiment.job import Job
from pe_lab.training import graph, module
from pe_lab.training.graph import EAGER_STEPS, CapturedStep, batch_tensors, decide_graph, refusal_reason
from pe_lab.training.module import Training


@pytest.fixture(autouse=True)
def all_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute all slots, as on a GPU, so that shapes do not depend on the batch."""
    monkeypatch.setattr(
        module, "answer_logits", lambda model, batch: (model(batch.tokens, batch.layout), batch.targets)
    )


TINY = [*TINY_MODEL, "trainer.batch_size=32", "logger=none"]


def training(ledger: Path, *overrides: str) -> Training:
    (cfg,) = in_ledger(ledger, *TINY, "trainer.device=cpu", *overrides, multirun=False)
    cell = Job.from_config(cfg).cell
    made = cell.lightning_module()
    made.model.to(cell.device)
    made.choose_graph(cell.device)
    return made


class CalledAgain:
    """Stands for a graph: Python code runs at the capture without an effect, and what was captured is called again.

    As a graph does, it writes its results to the same memory every time.
    """

    def __init__(self, made: Training) -> None:
        self.made = made
        self.captured: Callable[[], None] | None = None

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        assert self.captured is None, "captured twice"
        self.captured = function
        model, optimizer, random = copy.deepcopy(
            (self.made.model.state_dict(), self.made.optimizer.state_dict(), torch.get_rng_state())
        )
        function()
        self.made.model.load_state_dict(model)
        self.made.optimizer.load_state_dict(optimizer)
        torch.set_rng_state(random)
        results = self.made.captured.results

        def again() -> None:
            function()
            for mine, new in zip(results, self.made.captured.results, strict=True):
                mine.copy_(new)
            self.made.captured.results = results

        return again


def batches(made: Training, sizes: list[int]) -> list[Batch]:
    index = torch.arange(sum(sizes)).split(sizes)
    return [made.dataset.batch("train", part) for part in index]


def parameters(made: Training) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in made.model.named_parameters()}


def set_rate(made: Training) -> None:
    """Set the learning rate of the step, as the schedule does."""
    for group in made.optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * made.optimization.factor(made.step)


def stepped(made: Training, given: list[Batch]) -> list[float]:
    for batch in given:
        set_rate(made)
        made.training_step(batch, 0)
        made.step += 1
    losses = [float(loss) for loss in made.losses]
    made.losses.clear()
    return losses


def plainly(made: Training, given: list[Batch]) -> list[float]:
    """The loop without a graph."""
    losses = []
    for batch in given:
        made.optimizer.zero_grad()
        set_rate(made)
        loss = made.training_step(batch, 0)
        loss.backward()
        made.configure_gradient_clipping(made.optimizer)
        made.optimizer.step()
        made.constrain()
        made.step += 1
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("overrides", [["pe=rope"], ["pe=kerple_power", "trainer.clip=0.5", "model.dropout=0.1"]])
def test_captured_steps_are_the_usual_ones(overrides: list[str], tmp_path: Path) -> None:
    """Learning rates that change, a batch of another size among them; the rates are rounded to float32."""
    more = [*overrides, "optimizer.schedule=cosine", "optimizer.warmup_steps=4", "optimizer.lr=0.01"]
    more.append("optimizer.eps=1e-3")  # some gradients are zero but for rounding
    plain, made = training(tmp_path, *more), training(tmp_path, *more)
    step_batches = batches(plain, [32] * 6 + [20] + [32] * 3)
    expected = plainly(plain, step_batches)
    made.captured = CapturedStep(made, CalledAgain(made))
    results = stepped(made, step_batches)
    assert made.captured.replayed == 10 - EAGER_STEPS - 1
    assert results == pytest.approx(expected, rel=1e-5)
    for name, value in parameters(plain).items():
        torch.testing.assert_close(dict(made.model.named_parameters())[name], value, rtol=1e-4, atol=1e-6)
    assert all(isinstance(group["lr"], float) and not group["capturable"] for group in made.optimizer.param_groups)


def test_a_replay_reads_the_batch_and_the_rates_from_the_same_memory(tmp_path: Path) -> None:
    made = training(tmp_path)
    step_batches = batches(made, [32] * 6)
    made.captured = captured = CapturedStep(made, CalledAgain(made))
    stepped(made, step_batches[: EAGER_STEPS + 1])
    places = [x.data_ptr() for x in (*batch_tensors(captured.batch), *captured.rates)]
    for batch in step_batches[EAGER_STEPS + 1 :]:
        stepped(made, [batch])
        assert [x.data_ptr() for x in (*batch_tensors(captured.batch), *captured.rates)] == places
        assert all(
            torch.equal(mine, its)
            for mine, its in zip(batch_tensors(captured.batch), batch_tensors(batch), strict=True)
        )
        assert not {x.data_ptr() for x in batch_tensors(batch)} & set(places)


def test_every_step_takes_its_rates_from_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph would keep a number; and steps that are not replayed have the same bits."""
    made = training(tmp_path, "optimizer.schedule=cosine")
    made.captured = captured = CapturedStep(made, CalledAgain(made))
    step, seen = made.optimizer.step, []

    def noted() -> None:
        for group, rate in zip(made.optimizer.param_groups, captured.rates, strict=True):
            assert group["lr"] is rate
            assert group["capturable"]
        seen.append(float(captured.rates[0]))
        step()

    monkeypatch.setattr(made.optimizer, "step", noted)
    stepped(made, batches(made, [32] * (EAGER_STEPS + 3)))
    del seen[EAGER_STEPS]  # at the capture
    assert seen == pytest.approx(
        [made.optimization.factor(i) * made.optimization.settings.lr for i in range(EAGER_STEPS + 3)]
    )


def test_a_batch_whose_layout_has_other_facts_is_not_replayed(tmp_path: Path) -> None:
    made = training(tmp_path, "pe=alibi")
    made.captured = captured = CapturedStep(made, CalledAgain(made))
    step_batches = batches(made, [32] * (EAGER_STEPS + 2))
    stepped(made, step_batches)
    assert captured.replayed == 2
    assert "max_distance" in captured.facts
    layout = replace(step_batches[0].layout, pos=2 * step_batches[0].layout.pos)
    stepped(made, [replace(step_batches[0], layout=layout)])
    assert captured.replayed == 2
    stepped(made, step_batches[:1])
    assert captured.replayed == 3


def test_what_cannot_be_captured_is_refused_in_one_line(tmp_path: Path) -> None:
    made, cuda = training(tmp_path), torch.device("cuda")
    adam, sgd = type(made.optimizer), torch.optim.SGD
    assert refusal_reason(made.model, adam, cuda) is None
    assert refusal_reason(made.model, adam, torch.device("cpu")) == "needs a CUDA device, got cpu"
    assert (
        refusal_reason(made.model, sgd, cuda)
        == "needs an optimizer whose steps can be captured, Adam or AdamW, got SGD"
    )
    drawn = training(tmp_path, "pe=randomized_rope")
    assert "draws positions" in refusal_reason(drawn.model, adam, cuda)
    with pytest.raises(ValueError, match=r"^trainer.graph=true needs a CUDA device, got cpu: "):
        training(tmp_path, "trainer.graph=true")


def test_a_failed_capture_is_refused_in_one_line(tmp_path: Path) -> None:
    def fail(function: Callable[[], None]) -> None:
        function()
        raise RuntimeError("operation not permitted when stream is capturing\nCompile with `TORCH_USE_CUDA_DSA`")

    made = training(tmp_path)
    made.captured = CapturedStep(made, fail)
    with pytest.raises(
        ValueError, match=r"^trainer.graph=true cannot capture this step \(operation .*\); use .*=false$"
    ):
        stepped(made, batches(made, [32] * (EAGER_STEPS + 1)))
    assert all(isinstance(group["lr"], float) for group in made.optimizer.param_groups)


@pytest.mark.gpu
@pytest.mark.parametrize("pe", ["rope", "t5", "stick_breaking", "kerple_power"])
def test_on_a_gpu_a_graph_trains_as_the_usual_loop_does(pe: str, tmp_path: Path) -> None:
    """With dropout, whose masks are those of the same seeds."""
    more = [f"pe={pe}", "model.dropout=0.1", "model.attention_dropout=0.1", "trainer.device=cuda"]
    if pe == "stick_breaking":
        more.remove("model.attention_dropout=0.1")
    (plain, made) = (training(tmp_path, *more, f"trainer.graph={on}") for on in ("false", "true"))
    step_batches = [batch.to("cuda") for batch in batches(plain, [32] * 12 + [20] + [32] * 3)]
    expected = plainly(plain, step_batches)
    made.captured = CapturedStep(made)
    results = stepped(made, step_batches)
    assert made.captured.replayed == 16 - EAGER_STEPS - 1
    assert results == pytest.approx(expected, rel=1e-4)
    assert len(set(results)) == len(results)
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_on_a_gpu_a_step_that_reads_a_value_is_refused(tmp_path: Path) -> None:
    made = training(tmp_path, "pe=fire", "trainer.device=cuda", "trainer.graph=true")
    made.captured = CapturedStep(made)
    with pytest.raises(ValueError, match="trainer.graph=true cannot capture this step"):
        stepped(made, [batch.to("cuda") for batch in batches(made, [32] * (EAGER_STEPS + 1))])
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.manual_seed(3)
    (first, second), (other,) = torch.rand(2, device="cuda"), torch.rand(1, device="cuda")
    assert len({float(first), float(second), float(other)}) == 3  # drawn as if nothing had been captured


@pytest.mark.gpu
@pytest.mark.parametrize(("pe", "replays"), [("rope", 8), ("t5", 8), ("fire", 0)])
def test_on_a_gpu_auto_checks_the_graph_and_trains_on(pe: str, replays: int, tmp_path: Path) -> None:
    """The captured step has the bits of the usual one; a step that cannot be captured does not end the training."""
    more = [f"pe={pe}", "model.dropout=0.1", "trainer.device=cuda"]
    plain, made = training(tmp_path, *more), training(tmp_path, *more, "trainer.graph=auto")
    step_batches = [batch.to("cuda") for batch in batches(plain, [32] * (EAGER_STEPS + 9))]
    expected = plainly(plain, step_batches)
    made.captured = CapturedStep(made, check=True)
    assert stepped(made, step_batches) == pytest.approx(expected, rel=1e-4)
    assert (made.captured.replayed, bool(made.captured.given_up)) == (replays, not replays)


def test_a_graph_is_made_when_training_starts_and_left_when_it_ends(tmp_path: Path, monkeypatch) -> None:
    """Lightning moves the parameters to the CPU in between."""
    monkeypatch.setattr(module, "refusal_reason", lambda *_: None)
    for asked, check in (("true", False), ("auto", True)):
        made = training(tmp_path, f"trainer.graph={asked}")
        assert not made.automatic_optimization
        assert made.captured is None
        made.on_train_start()
        assert isinstance(made.captured, CapturedStep)
        assert made.captured.capture is graph.capture_on_cuda
        assert made.captured.check is check
        made.on_train_end()
        assert made.captured is None
        assert made.graph_reason == f"trainer.graph={asked}"


# -- trainer.graph=auto ------------------------------------------------------------------------------------------------

DROPPING = ["pe=kerple_power", "model.dropout=0.1", "trainer.clip=0.5", "optimizer.schedule=cosine"]


def spoiled(made: Training, spoil: Callable[[Training], Tensor]) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Capture for a graph that computes one number wrong, by its last bit."""
    plain = CalledAgain(made)

    def capture(function: Callable[[], None]) -> Callable[[], None]:
        replay = plain(function)

        def again() -> None:
            replay()
            with torch.no_grad():
                wrong = spoil(made).view(-1)
                wrong[0] = torch.nextafter(wrong[0], torch.tensor(torch.inf))

        return again

    return capture


WRONG = {
    "the loss": lambda made: made.captured.results[0],
    "the logits": lambda made: made.captured.results[1],
    "the gradient norm": lambda made: made.captured.results[2],
    "the gradient of tokens.weight": lambda made: made.model.tokens.weight.grad,
    "tokens.weight after the step": lambda made: made.model.tokens.weight,
    "exp_avg of parameter 0": lambda made: next(iter(made.optimizer.state.values()))["exp_avg"],
    "step of parameter 0": lambda made: next(iter(made.optimizer.state.values()))["step"],
}


def test_a_checked_graph_trains_on_from_the_usual_step(tmp_path: Path) -> None:
    """Its first step is made once, though it is computed twice; with dropout, whose masks are the same."""
    checked, made = training(tmp_path, *DROPPING), training(tmp_path, *DROPPING)
    step_batches = batches(made, [32] * 8)
    checked.captured = CapturedStep(checked, CalledAgain(checked), check=True)
    made.captured = CapturedStep(made, CalledAgain(made))
    assert stepped(checked, step_batches) == stepped(made, step_batches)
    assert (checked.captured.given_up, checked.captured.replayed) == ("", 8 - EAGER_STEPS - 1)
    assert all(torch.equal(x, parameters(made)[name]) for name, x in parameters(checked).items())


@pytest.mark.parametrize("name", WRONG)
def test_a_graph_that_differs_in_one_bit_is_given_up_and_leaves_no_trace(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checked, made = training(tmp_path, *DROPPING), training(tmp_path, *DROPPING)
    step_batches = batches(made, [32] * 8)
    checked.captured = CapturedStep(checked, spoiled(checked, WRONG[name]), check=True)
    made.captured = CapturedStep(made, CalledAgain(made))
    assert stepped(checked, step_batches) == stepped(made, step_batches)
    reason = f"the captured step differs from the usual one in {name}"
    assert (checked.captured.given_up, checked.captured.replayed) == (reason, 0)
    messages = [
        record.getMessage() for record in caplog.records if not record.name.startswith("wandb")
    ]  # of other tests
    assert messages == [f"trainer.graph=auto trains without a graph: {reason}"]
    assert all(torch.equal(x, parameters(made)[name]) for name, x in parameters(checked).items())


def test_a_failed_capture_is_given_up_where_it_was_not_asked_for(tmp_path: Path) -> None:
    def fail(function: Callable[[], None]) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nCompile with `TORCH_USE_CUDA_DSA`")

    checked, made = training(tmp_path), training(tmp_path)
    step_batches = batches(made, [32] * (EAGER_STEPS + 3))
    checked.captured, made.captured = CapturedStep(checked, fail, check=True), CapturedStep(made, CalledAgain(made))
    assert stepped(checked, step_batches) == stepped(made, step_batches)
    checked.on_train_end()
    reason = "a step cannot be captured (operation not permitted when stream is capturing)"
    assert checked.graph_reason == f"trainer.graph=auto; none: {reason}"


def test_auto_is_used_where_nothing_refuses_and_says_why_not(tmp_path: Path) -> None:
    def decided(setting: str, *obstacles: str | None, more: Sequence[str] = ()) -> tuple[bool, str]:
        (cfg,) = in_ledger(tmp_path, *TINY, f"trainer.graph={setting}", *more, multirun=False)
        return decide_graph(cfg, *obstacles)

    assert decided("auto", None, None) == (True, "trainer.graph=auto")
    assert decided("true", None) == (True, "trainer.graph=true")
    assert decided("false", None) == decided("false", "needs more") == (False, "trainer.graph=false")
    assert decided("auto", None, "needs more", "and more") == (False, "trainer.graph=auto; none: needs more")
    with pytest.raises(ValueError, match=r"^trainer.graph=true needs more: "):
        decided("true", None, "needs more")
    recomputing = ["model.checkpointing=layer"]  # it reads the state of the random generator
    assert not decided("auto", None, more=recomputing)[0]
    with pytest.raises(ValueError, match=r"^trainer.graph=true .*model.checkpointing"):
        decided("true", None, more=recomputing)
    assert training(tmp_path, "trainer.graph=auto").automatic_optimization
