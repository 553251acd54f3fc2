"""The settings of studies that add seeds."""

import re

import pytest

from pe_lab import config

PE = ["pe=rope,lrope"]
BASELINE = "decide.baseline=rope"


def test_seeds_margin_and_budget_are_read_from_the_command_line():
    words = [*PE, "decide.baseline=all pairs", "decide.seeds=2..8", "margin=0.05 gap", "budget=2"]
    first, second = config.expand_overrides(words, multirun=True)
    assert (first.decide.baseline, first.decide.seeds, first.margin, first.budget) == (
        "all pairs",
        "2..8",
        "0.05 gap",
        2,
    )
    assert first.decide == second.decide


def test_a_study_of_a_users_folder_may_decide(tmp_path, monkeypatch):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "mine.yaml").write_text(
        "# @package _global_\nstudy_name: mine\nmargin: 0.05 gap\ndecide:\n  baseline: rope\n  seeds: 3..8\n"
        "hydra:\n  sweeper:\n    params:\n      pe: rope,lrope,learnable\n"
    )
    monkeypatch.setenv("PE_LAB_CONFIG_DIR", str(tmp_path))
    cfgs = config.expand_overrides(["+study=mine"], multirun=True)
    assert [cfg.pe.name for cfg in cfgs] == ["rope", "lrope", "learnable"]
    assert {(cfg.decide.baseline, cfg.decide.seeds, cfg.margin) for cfg in cfgs} == {("rope", "3..8", "0.05 gap")}


def test_seeds_of_a_study_can_be_left_out_to_decide():
    words = ["+study=bag", BASELINE, "~hydra.sweeper.params.seed"]
    assert {cfg.seed for cfg in config.expand_overrides(words, multirun=True)} == {0}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([BASELINE, "decide.seeds=5..3"], "decide.seeds must be first..most with 2 <= first <= most"),
        ([BASELINE, "decide.seeds=1..3"], "decide.seeds must be first..most with 2 <= first <= most"),
        ([BASELINE, "decide.looks=[3,5]"], "decide.looks must ascend from 5 to 12, as decide.seeds=5..12 says"),
        ([BASELINE, "margin=0.05"], "margin must be a number above 0 and one of gap, nats, share"),
        ([BASELINE, "margin=0 nats"], "margin must be a number above 0"),
        ([BASELINE, "margin=-1 nats"], "margin must be a number above 0"),
        ([BASELINE, "budget=0"], "budget must be a number of core-hours above 0, got 0.0"),
        (["budget=3"], "budget needs decide.baseline"),
        (["decide.seeds=3..8"], "decide.seeds needs decide.baseline"),
        (["decide.best=2"], "decide.best needs decide.baseline"),
        (["margin=0.05 gap"], "margin='0.05 gap' needs study_name"),
        ([BASELINE, "decide.best=2"], "decide.best=2 needs decide.baseline=best, got 'rope'"),
        ([BASELINE, "seed=0"], "seed must not be given beside decide"),
        ([BASELINE, "seed=0,1"], "seed must not be given beside decide"),
        ([BASELINE, "+study=bag"], "seed must not be given beside decide"),
        (["decide.baseline=rope,lrope"], "decide must be the same for all cells of a sweep"),
        (["margin=0.1 nats,0.2 nats", "study_name=mine"], "margin must be the same for all cells of a sweep"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_in_one_line(words, line):
    with pytest.raises(ValueError, match=re.escape(line)) as error:
        config.expand_overrides([*PE, *words], multirun=True)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "words",
    [["workers=1"], [BASELINE], ["tune.rates=[1e-3,1e-2]", "steps=100"], ["decide.seeds=3..8"], ["budget=1"]],
    ids=str,
)
def test_settings_of_a_sweeper_are_refused_for_a_single_cell_by_name(words):
    setting = words[0].partition("=")[0]
    with pytest.raises(ValueError, match=rf"^{re.escape(setting)}\b.* needs ") as error:
        config.expand_overrides(words, multirun=False)
    assert "\n" not in str(error.value)


def test_a_single_cell_may_declare_the_margin_of_its_study():
    (cfg,) = config.expand_overrides(["margin=0.05 gap", "study_name=mine"], multirun=False)
    assert cfg.margin == "0.05 gap"


def test_deciding_is_no_part_of_a_cells_identity():
    from pe_lab.experiment.cell import Cell

    plain, decided = (
        Cell.from_config(config.expand_overrides([*PE, "model.depth=1", *words], multirun=True)[0]).identity
        for words in ([], [BASELINE, "margin=0.05 gap", "budget=1"])
    )
    assert plain == decided
