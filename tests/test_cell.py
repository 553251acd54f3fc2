"""A cell's identity: what determines its result, and nothing else."""

import pytest
import torch

from pe_lab import config
from pe_lab.attention import sdpa
from pe_lab.cell import Cell
from pe_lab.data.structured import Structured
from pe_lab.encodings.absolute import Sinusoidal
from pe_lab.encodings.rotary import RoPE
from pe_lab.ledger.files import digest
from pe_lab.model import Transformer
from pe_lab.optimization import Optimization
from pe_lab.ranges import RANGES


def cell(tmp_path, *overrides: str) -> Cell:
    return Cell(config.expand([f"ledger={tmp_path}", *overrides], multirun=False)[0])


def road(tmp_path, *overrides: str) -> str:
    return digest(cell(tmp_path, *overrides).identity)


# If one of these changes, ledgers that people have no longer find their cells: it must be meant.
GOLDEN = {
    "alibi": "4d62deed049c91c0",
    "continuous": "417f23030b43b781",
    "cope": "c8e31a779e906085",
    "cpe": "b8ea6941809ac3fb",
    "deberta": "92cd925e90261188",
    "exposb": "58bd8533ca3d63d8",
    "exposb_literal": "f26e8618a1f0aaa8",
    "fire": "f7bdfc416af33f26",
    "forgetting": "23481e830cc196b7",
    "fourier": "b99879e47388940e",
    "integer": "6f1f7eacb2f2ea99",
    "kerple_log": "45f7f5af92e67e73",
    "kerple_power": "c50bf1499430e45b",
    "learnable": "3fb3f5e9f5e69c60",
    "learnable_per_layer": "ef84ecfc2409074b",
    "lrope": "8a78732dae7a7f6f",
    "none": "1e7b8d10785b90a3",
    "normalized": "962e2ea43590a3e4",
    "p_rope": "2786d26908da9782",
    "random": "de8c12674c2c79ba",
    "randomized_alibi": "519f9c7b9c8cdb76",
    "randomized_learnable": "e0dd2235cb6d8dd8",
    "randomized_rope": "3a1dd60175dba05e",
    "randomized_sinusoidal": "cd44f2204d927a11",
    "relative_bias": "418ce5e79d8adaa2",
    "rope": "7dffa2b6e2462b87",
    "rope_dynamic_ntk": "acdd2ac7d128558e",
    "rope_ntk": "2ceef6ecbd7a60f5",
    "rope_pi": "bf7d239c3ee54c37",
    "rse": "0cd9038e3816117f",
    "rse_literal": "c990248500994317",
    "sandwich": "325c3e121c37df1a",
    "shaw": "483e16f450ee483c",
    "sininit": "7ec39cc5545e6827",
    "sinusoidal": "755524f61dcab714",
    "sinusoidal_qk": "dcce64bb20a43fd5",
    "stick_breaking": "7426b4947c51f7c3",
    "t5": "a4104499045fe2af",
    "transformer_xl": "bec89d1a0910acfa",
    "xpos": "77693d3552d591f5",
    "yarn": "0a2427d8afc9e94d",
}


@pytest.mark.parametrize(
    "override",
    [
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
        "data.length=17",
        "optimizer=adamw",
        "optimizer.lr=2e-3",
        "optimizer.betas=[0.9,0.99]",
        "optimizer.eps=1e-7",
        "optimizer.weight_decay=0.1",
        "optimizer.schedule=cosine",
        "optimizer.warmup_steps=10",
        "trainer.precision=bf16-mixed",
        "trainer.batch_size=32",
        "trainer.clip=1",
        "attention=reference",
    ],
)
def test_what_determines_the_result_changes_the_hash(override, tmp_path):
    assert road(tmp_path, override) != road(tmp_path)


def test_every_setting_is_tested_to_change_the_hash_or_not_to(tmp_path):
    """A new setting must be put in one of the two lists of this file."""
    settings = set(RANGES) | {"model.scale_tokens"}
    # the options of encodings are hashed alike
    of_encodings = {name for name in settings if name.startswith("pe.")} - {"pe.theta", "pe.pairing"}
    # and so are those of datasets
    of_data = {name for name in settings if name.startswith("data.")} - {"data.length"}
    assert settings - of_encodings - of_data == {
        *("seed", "pe.theta", "pe.pairing", "model.depth", "model.width", "model.num_heads", "model.mlp_ratio"),
        *("model.norm", "model.dropout", "model.attention_dropout", "model.embedding_std", "model.scale_tokens"),
        "data.length",
        *("optimizer.name", "optimizer.lr", "optimizer.betas", "optimizer.eps", "optimizer.weight_decay"),
        *("optimizer.schedule", "optimizer.warmup_steps", "trainer.precision", "trainer.batch_size", "trainer.clip"),
        *(
            "attention.implementation",
            "epochs",
            "ledger",
            "workers",
            "study_name",
            "trainer.device",
            "trainer.log_every",
        ),
        *("trainer.save_every", "logger.mode", "logger.project", "logger.images"),
        *("evaluate.lengths", "evaluate.policy", "evaluate.offset", "probe"),
    }


@pytest.mark.parametrize(
    "override",
    [
        "logger=none",
        "logger=csv",
        "logger.mode=offline",
        "logger.images=false",
        "ledger=elsewhere",
        "workers=3",
        "study_name=mine",
        "trainer.log_every=7",
        "trainer.save_every=0",
        "trainer.device=cpu",
        "attention=sdpa",  # what auto comes to for rope on a CPU
        "epochs=16",  # a stop on the same road
        "pe.theta=10000",
        "pe.theta=1e4",
        "optimizer.lr=0.001",
        "model.dropout=0",
        "evaluate.lengths=[1,2]",
        "evaluate.policy=[raw,yarn]",
        "evaluate.offset=[0,64]",
        "probe=[position,rank]",
    ],
)
def test_what_does_not_determine_the_result_leaves_the_hash(override, tmp_path):
    if torch.cuda.is_available() and override in ("trainer.device=cpu", "attention=sdpa"):
        pytest.skip("auto is another device here")
    assert road(tmp_path, override) == road(tmp_path)


def test_a_schedule_that_looks_at_the_end_makes_each_number_of_epochs_a_road(tmp_path):
    cosine = ("optimizer.schedule=cosine",)
    assert road(tmp_path, *cosine, "epochs=4") != road(tmp_path, *cosine, "epochs=16")


def test_a_new_option_at_its_neutral_default_leaves_old_hashes(tmp_path, monkeypatch):
    before = road(tmp_path)
    monkeypatch.setattr(RoPE, "neutral", {"offset": 0})
    old = cell(tmp_path).identity
    new = cell(tmp_path)
    monkeypatch.setattr(new, "cfg", new.cfg.copy())
    new.cfg.pe = {**new.cfg.pe, "offset": 0}
    assert digest(new.identity) == digest(old) == before
    new.cfg.pe = {**new.cfg.pe, "offset": 1}
    assert digest(new.identity) != before


@pytest.mark.parametrize("part", [RoPE, Transformer, Structured, Optimization, sdpa])
def test_a_revision_is_part_of_the_identity(part, tmp_path, monkeypatch):
    before = road(tmp_path)
    monkeypatch.setattr(part, "revision", part.revision + 1)
    assert road(tmp_path) != before


def test_an_encoding_within_an_encoding_is_hashed_in_the_same_way(tmp_path, monkeypatch):
    before = road(tmp_path, "pe=randomized_sinusoidal")
    assert road(tmp_path, "pe=randomized_sinusoidal", "pe.encoding.theta=1e4", "pe.encoding.at=input") == before
    assert road(tmp_path, "pe=randomized_sinusoidal", "pe.encoding.theta=500") != before
    assert road(tmp_path, "pe=randomized_sinusoidal", "pe.encoding.at=query_key") != before
    monkeypatch.setattr(Sinusoidal, "revision", 2)
    assert road(tmp_path, "pe=randomized_sinusoidal") != before


@pytest.mark.parametrize("pe", ["rope", "randomized_rope"])
def test_the_identity_names_no_import_path_and_no_folder(pe, tmp_path):
    text = str(cell(tmp_path, f"pe={pe}").identity)
    assert "pe_lab" not in text
    assert str(tmp_path) not in text


def test_a_batch_larger_than_the_data_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"trainer.batch_size must be at most .* 4525 in structured, got 4526"):
        cell(tmp_path, "trainer.batch_size=4526")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="trainer.device=cuda needs a CUDA device"):
        cell(tmp_path, "trainer.device=cuda")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["attention=triton"], "attention=triton cannot compute this: the kernels need a CUDA device"),
        (["pe=rse", "attention=sdpa"], "breaks a stick"),
    ],
)
def test_an_implementation_that_cannot_is_refused_not_replaced(overrides, reason, tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=reason):
        cell(tmp_path, *overrides)


def test_the_implementation_that_runs_is_what_auto_came_to(tmp_path):
    assert cell(tmp_path, "pe=rope", "trainer.device=cpu").implementation == "sdpa"
    assert cell(tmp_path, "pe=rse", "trainer.device=cpu").implementation == "reference"


ON_A_GRID = {
    "learnable_2d": "deba9a5a185a2e93",
    "rope_2d": "dee5190b95da21ad",
    "rope_mixed": "a85b9a90eb0fe26f",
    "sinusoidal_2d": "f28bd52fe8a73aed",
}
# with sinusoidal
DATA = {
    "addition": "00a1bb5512813597",
    "bag": "b2addebea99e87c0",
    "copy": "b6e08a417e14dbf4",
    "digits": "05c0d467d14ded5a",
    "mqar": "05149d2121680228",
    "parity": "20886bfafdc8f9f3",
    "pattern": "92ee2a2a787152eb",
    "pattern_hard": "0e6d624e192267da",
    "repeat": "f5995201604c406f",
    "reverse": "fb1e548714f33700",
    "sort": "645f24a80c3976c0",
    "structured": "755524f61dcab714",
}


@pytest.mark.parametrize("name", sorted(path.stem for path in (config.folder() / "data").glob("*.yaml")))
def test_the_golden_hash_of_every_dataset_stands(name, tmp_path):
    if name in ("clm", "mlm"):
        pytest.skip("the text is that of this Python")
    assert road(tmp_path, f"data={name}", "pe=sinusoidal", "trainer.device=cpu") == DATA[name]


@pytest.mark.parametrize("name", sorted(path.stem for path in (config.folder() / "pe").glob("*.yaml")))
def test_the_golden_hash_of_every_encoding_stands(name, tmp_path):
    overrides = (f"pe={name}", "trainer.device=cpu")
    if name not in GOLDEN:
        with pytest.raises(ValueError, match=rf"^pe={name} needs positions on a grid"):
            road(tmp_path, *overrides)
        overrides += ("data=digits",)
    assert road(tmp_path, *overrides) == (GOLDEN | ON_A_GRID)[name]
