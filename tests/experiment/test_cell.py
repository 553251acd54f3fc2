"""A cell's identity: what determines its result, and nothing else."""

from dataclasses import replace

import pytest
import torch

from helpers.configs import in_ledger
from pe_lab import attention, config
from pe_lab.attention import sdpa
from pe_lab.config.reference import TRAINING, setting_effect
from pe_lab.config.schema import RANGES
from pe_lab.config.trainer_arguments import ARGUMENT_NAMES
from pe_lab.data.structured import Structured
from pe_lab.encodings.base import UnfitError
from pe_lab.encodings.families.absolute import Sinusoidal
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.experiment import cell as cell_module
from pe_lab.experiment.cell import Cell
from pe_lab.model.transformer import Transformer
from pe_lab.system.files import digest
from pe_lab.training.optimization import Optimization

DETERMINES = [
    "seed=1",
    "pe=alibi",
    "pe.theta=500",
    "pe.pairing=half",
    "model.depth=5",
    "model.width=128",
    "model.num_heads=2",
    "model.mlp_ratio=2",
    "model.norm=post",
    "model.dropout=0.1",
    "model.embedding_std=0.02",
    "model.scale_tokens=true",
    "model.attention_dropout=0.1",
    "model.parametrization=mup",
    "data.length=17",
    "optimizer=adamw",
    "optimizer.lr=2e-3",
    "optimizer.betas=[0.9,0.99]",
    "optimizer.eps=1e-7",
    "optimizer.weight_decay=0.1",
    "optimizer.schedule=cosine",
    "optimizer.warmup_steps=10",
    "optimizer.schedule=wsd",
    "optimizer=muon",
    "trainer.precision=bf16-mixed",
    "trainer.batch_size=32",
    "trainer.clip=1",
    "attention=reference",
    "model.norm_type=rms",
    "model.mlp=swiglu",
    "model.num_kv_heads=1",
    "model.residual_scale=depth",
    "model.weight_std=0.02",
    "model.qk_norm=true",
    "model.bias=false",
    "model.tie_embeddings=true",
    "model.head_dim=32",
    "model.embedding_norm=true",
    "model.logit_cap=15",
]
LEAVES = [
    "logger=none",
    "logger=csv",
    "logger.wandb.mode=offline",
    "logger.wandb.images=false",
    "logger.wandb.entity=team",
    "logger.wandb.group=mine",
    "logger.wandb.tags=[a,b]",
    "logger.wandb.notes=why",
    "logger.wandb.finish_timeout=5",
    "ledger=elsewhere",
    "workers=3",
    "study_name=mine",
    "trainer.log_every=7",
    "trainer.save_every=0",
    "trainer.device=cpu",
    "attention=sdpa",  # what auto comes to for rope on a CPU
    "epochs=4",  # a checkpoint on the same run
    "pe.theta=10000",
    "pe.theta=1e4",
    "optimizer.lr=0.001",
    "model.dropout=0",
    "model.checkpointing=layer",
    "evaluate.lengths=[1,2]",
    "evaluate.policy=[raw,yarn]",
    "evaluate.offset=[0,64]",
    "evaluate.decode=none",
    "probe=[position,rank]",
]


def cell(tmp_path, *overrides: str) -> Cell:
    if overrides:
        return Cell.from_config(
            config.expand_overrides([f"ledger={tmp_path}", *overrides], multirun=True)[0]
        )  # has all settings
    return Cell.from_config(in_ledger(tmp_path, multirun=False)[0])


def run(tmp_path, *overrides: str) -> str:
    return digest(cell(tmp_path, *overrides).identity)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> str:
    return run(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("override", DETERMINES)
def test_what_determines_the_result_changes_the_hash(override, tmp_path, plain):
    assert run(tmp_path, override) != plain


def test_every_setting_is_tested_to_change_the_hash_or_not_to(tmp_path):
    """A new setting must be put in one of the two lists of this file."""
    # the options of encodings and of datasets are not among them: they are hashed alike
    assert set(RANGES) == {
        *("seed", "model.depth", "model.width", "model.num_heads", "model.mlp_ratio"),
        *("model.norm", "model.dropout", "model.attention_dropout", "model.embedding_std", "model.scale_tokens"),
        *("model.parametrization", "model.base_width", "model.base_head_dim"),
        *("model.norm_type", "model.mlp", "model.num_kv_heads", "model.residual_scale", "model.qk_norm", "model.bias"),
        "model.weight_std",
        *("model.tie_embeddings", "model.head_dim", "model.embedding_norm", "model.logit_cap", "model.checkpointing"),
        *("optimizer.name", "optimizer.lr", "optimizer.betas", "optimizer.eps", "optimizer.weight_decay"),
        *(
            "optimizer.schedule",
            "optimizer.warmup_steps",
            "optimizer.momentum",
            *("optimizer.min_lr", "optimizer.decay_fraction", "optimizer.nesterov", "optimizer.ns_steps"),
            *("optimizer.adjust_lr_fn", "optimizer.adamw_lr", "optimizer.adamw_betas", "optimizer.adamw_eps"),
            "trainer.precision",
            "trainer.batch_size",
            "trainer.clip",
        ),
        *(
            "attention.implementation",
            "epochs",
            *("steps", "solve.level", "solve.first", "solve.per_doubling", "trainer.fresh"),  # see test_steps.py
            *(
                "tune.rates",
                "tune.scaled",
                "tune.fraction",
                "tune.steps",
                "tune.margin",
                "tune.baseline",
            ),  # of sweeps, see test_tuning.py
            "ledger",
            "workers",
            *("margin", "decide.baseline", "decide.seeds", "decide.looks", "decide.best", "budget"),
            "study_name",
            "trainer.device",
            "trainer.log_every",
        ),
        *("trainer.save_every", "trainer.graph", "logger.wandb.mode", "logger.wandb.project", "logger.wandb.images"),
        *("logger.wandb.entity", "logger.wandb.group", "logger.wandb.tags", "logger.wandb.notes"),
        *("logger.wandb.decide_timeout", "logger.wandb.open_timeout", "logger.wandb.finish_timeout"),
        *("evaluate.lengths", "evaluate.policy", "evaluate.offset", "evaluate.decode"),
        "evaluate.stride",  # see test_measurement.py
        *(f"trainer.{name}" for name in ARGUMENT_NAMES),  # see test_trainer.py
    }


@pytest.mark.parametrize("override", LEAVES)
def test_what_does_not_determine_the_result_leaves_the_hash(override, tmp_path, plain):
    if torch.cuda.is_available() and override in ("trainer.device=cpu", "attention=sdpa"):
        pytest.skip("auto is another device here")
    assert run(tmp_path, override) == plain


def test_the_settings_reference_says_what_changes_results():
    for override in DETERMINES:
        assert setting_effect(override.partition("=")[0]) == TRAINING, override
    same = ("trainer.device", "attention", "epochs", "pe.theta", "optimizer.lr", "model.dropout")  # with these values
    for override in LEAVES:
        name = override.partition("=")[0]
        assert name in same or setting_effect(name) != TRAINING, override


def test_a_graph_that_can_be_captured_is_part_of_the_identity(tmp_path, monkeypatch):
    """Learning rates are rounded to float32; auto and true have the same numbers."""
    plain = run(tmp_path)
    assert run(tmp_path, "trainer.graph=auto", "trainer.device=cpu") == run(tmp_path, "trainer.device=cpu")
    assert run(tmp_path, "trainer.graph=true") != plain  # refused when the training is made, if not possible
    monkeypatch.setattr(cell_module, "refusal_reason", lambda *_: None)
    assert run(tmp_path) == run(tmp_path, "trainer.graph=auto") == run(tmp_path, "trainer.graph=true")
    assert run(tmp_path, "trainer.graph=false") == plain != run(tmp_path)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_a_schedule_that_depends_on_the_end_gives_each_number_of_epochs_its_own_run(tmp_path, schedule):
    falls = (f"optimizer.schedule={schedule}",)
    assert run(tmp_path, *falls, "epochs=4") != run(tmp_path, *falls, "epochs=16")


def test_settings_of_a_schedule_change_the_hash_where_they_are_used(tmp_path):
    falls = ("optimizer.schedule=wsd", "optimizer.decay_fraction=0.2")
    assert run(tmp_path, *falls) == run(tmp_path, falls[0])
    assert run(tmp_path, falls[0], "optimizer.decay_fraction=0.1") != run(tmp_path, falls[0])
    assert run(tmp_path, falls[0], "optimizer.min_lr=1e-4") != run(tmp_path, falls[0])


def test_a_new_option_at_its_neutral_default_leaves_old_hashes(tmp_path, monkeypatch):
    before = run(tmp_path)
    monkeypatch.setattr(RoPE, "neutral", {**RoPE.neutral, "offset": 0})
    old = cell(tmp_path).identity

    def with_offset(offset: int) -> str:
        made = cell(tmp_path)
        cfg = made.cfg.copy()
        cfg.pe = {**cfg.pe, "offset": offset}
        return digest(replace(made, cfg=cfg).identity)

    assert with_offset(0) == digest(old) == before
    assert with_offset(1) != before


@pytest.mark.parametrize("part", [RoPE, Transformer, Structured, Optimization, sdpa])
def test_a_revision_is_part_of_the_identity(part, tmp_path, monkeypatch):
    before = run(tmp_path)
    monkeypatch.setattr(part, "revision", part.revision + 1)
    assert run(tmp_path) != before


def test_a_revision_in_low_precision_is_part_of_the_identity_there(tmp_path, monkeypatch):
    full, low = run(tmp_path), run(tmp_path, "trainer.precision=bf16-mixed")
    monkeypatch.setattr(sdpa, "low_precision_revision", sdpa.low_precision_revision + 1)
    assert run(tmp_path) == full
    assert run(tmp_path, "trainer.precision=bf16-mixed") != low


def test_an_encoding_within_an_encoding_is_hashed_in_the_same_way(tmp_path, monkeypatch):
    before = run(tmp_path, "pe=randomized_sinusoidal")
    assert run(tmp_path, "pe=randomized_sinusoidal", "pe.encoding.theta=1e4", "pe.encoding.at=input") == before
    assert run(tmp_path, "pe=randomized_sinusoidal", "pe.encoding.theta=500") != before
    assert run(tmp_path, "pe=randomized_sinusoidal", "pe.encoding.at=query_key") != before
    monkeypatch.setattr(Sinusoidal, "revision", Sinusoidal.revision + 1)
    assert run(tmp_path, "pe=randomized_sinusoidal") != before


@pytest.mark.parametrize("pe", ["rope", "randomized_rope"])
def test_the_identity_names_no_import_path_and_no_folder(pe, tmp_path):
    text = str(cell(tmp_path, f"pe={pe}").identity)
    assert "pe_lab" not in text
    assert str(tmp_path) not in text


def test_a_batch_larger_than_the_data_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"trainer.batch_size must be at most .* 4522 in structured, got 4523"):
        cell(tmp_path, "trainer.batch_size=4523")


def test_a_table_that_is_shorter_than_the_sequences_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"pe.max_len must be at least the length .* got max_len=8, length=16"):
        cell(tmp_path, "pe=learnable", "pe.max_len=8")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_model_with_too_few_layers_does_not_fit(tmp_path):
    with pytest.raises(UnfitError, match="^rnope_swa alternates over 4 layers: depth must be at least that, got 3$"):
        cell(tmp_path, "pe=rnope_swa", "model.depth=3")
    cell(tmp_path, "pe=rnope_swa", "model.depth=4")


@pytest.mark.parametrize(
    ("sizes", "got"),
    [
        (["model.width=66", "model.num_heads=2"], r"got 33 \(width=66, num_heads=2\)"),
        (["model.head_dim=5"], "got 5"),
    ],
)
def test_a_head_whose_dimensions_make_no_pairs_is_refused(sizes, got, tmp_path):
    with pytest.raises(ValueError, match=f"^rope rotates pairs: head_dim must be even, {got}$"):
        cell(tmp_path, "pe=rope", *sizes)


def test_a_head_of_an_odd_size_may_have_some_dimensions_rotated(tmp_path):
    assert cell(tmp_path, "pe=rope", "pe.rotary_dim=4", "model.head_dim=5").encoding_class is RoPE


def test_a_device_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="trainer.device=cuda needs a CUDA device"):
        cell(tmp_path, "trainer.device=cuda")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["attention=triton"], "attention=triton cannot compute this: the kernels need a CUDA device"),
        (["pe=rse", "attention=sdpa"], "breaks a stick"),
        (["attention=flex", "trainer.device=cpu"], "attention=flex cannot compute this: flex computes no gradients on"),
    ],
)
def test_an_implementation_that_cannot_is_refused_not_replaced(overrides, reason, tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=reason):
        cell(tmp_path, *overrides)


@pytest.mark.parametrize(("precision", "dtype"), [("32", torch.float32), ("bf16-mixed", torch.bfloat16)])
def test_attention_is_chosen_for_trained_queries_of_the_precision_that_runs(precision, dtype, tmp_path, monkeypatch):
    asked = []

    def choose(implementation, q, terms, layout, dropout=None):
        asked.append((q.dtype, q.requires_grad, terms.distance_bias.requires_grad, torch.is_grad_enabled()))
        return attention.choose(implementation, q, terms, layout, dropout)

    monkeypatch.setattr(cell_module, "choose", choose)
    made = cell(tmp_path, "pe=t5", f"trainer.precision={precision}", "trainer.device=cpu", "attention=sdpa")
    assert asked == [(dtype, True, True, True)]
    assert (made.implementation, made.attention_reason) == ("sdpa", "attention=sdpa")


def test_the_implementation_that_runs_is_what_auto_came_to(tmp_path):
    assert cell(tmp_path, "pe=rope", "trainer.device=cpu").implementation == "sdpa"
    assert cell(tmp_path, "pe=rse", "trainer.device=cpu").implementation == "reference"
    long = ("data=flip_flop", "data.length=514", "data.train=64", "data.validation=8", "data.test=8")
    for depth, name in ((1, "sdpa"), (2, "blocked")):  # layers before the last mix wider values
        made = cell(tmp_path, "pe=tape", f"model.depth={depth}", *long, "trainer.device=cpu")
        assert made.implementation == name


def test_a_cell_has_nothing_that_only_its_study_reads() -> None:
    words = ["pe=rope", "workers=3", "margin=0.05 gap", "study_name=mine", "decide.baseline=all pairs", "budget=2"]
    (cfg,) = config.expand_overrides(words, multirun=True)
    cell = Cell.from_config(cfg)
    assert not {"tune", "workers", "margin", "decide", "budget"} & cell.settings().keys()
    asked, left = config.study_settings(cfg), config.study_settings(cell.cfg)
    assert (asked.workers, asked.margin, asked.decide.baseline, asked.budget) == (3, "0.05 gap", "all pairs", 2.0)
    assert (left.workers, left.margin, left.decide.baseline, left.budget) == (None, None, None, None)
    assert cell.settings()["study_name"] == "mine"


@pytest.mark.parametrize("parts", ["rope,stick_breaking", "stick_breaking,rope"])
@pytest.mark.parametrize("layers", ["[1,1]", "[2,1]"])
def test_attention_is_chosen_for_all_layers_of_an_encoding_that_alternates(parts, layers, tmp_path):
    made = cell(tmp_path, "pe=interleave", f"pe.parts=[{parts}]", f"pe.layers={layers}", "trainer.device=cpu")
    assert made.implementation == "reference"
    batch = made.make_dataset().batch("train", torch.arange(2))
    made.lightning_module().model(batch.tokens, batch.layout)


def test_layers_that_alternate_get_what_the_layer_before_carries(tmp_path):
    parts = ("pe=interleave", "pe.parts=[tape,stick_breaking]", "pe.layers=[2,1]")
    assert cell(tmp_path, *parts, "model.depth=3", "trainer.device=cpu").implementation == "reference"
