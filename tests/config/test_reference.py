"""The settings reference: every key of conf/ has words, which stand beside it."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf

from pe_lab import config, run
from pe_lab.config import help, reference
from pe_lab.config.errors import describe_hydra_error
from pe_lab.config.schema import LIST_GROUPS, RANGES, TYPED_GROUPS, Config
from pe_lab.config.trainer_arguments import ALIASES, DECIDED_ARGUMENTS, TAKEN_ARGUMENTS

OTHERS = ("study", "replication")  # not settings of a cell
FILES = [file for file in sorted(config.config_folder().rglob("*.yaml")) if file.parent.name not in OTHERS]
PRESETS = [file for file in FILES if "# @package _global_" in file.read_text()]


def group(file: Path) -> str:
    place = file.parent.relative_to(config.config_folder()).as_posix()
    return "" if place == "." else place


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_key_says_what_it_is(file: Path) -> None:
    described = {one.name for one in reference.settings_of_config() if one.description} if file in PRESETS else set()
    for one in reference.read_config_settings(file, group(file)):
        assert one.description or one.name in described, one


def test_every_key_of_a_file_is_a_setting_of_it() -> None:
    for file in FILES:
        written = OmegaConf.load(file)
        unlisted = [key for key in ("_target_", "_partial_", "name", "defaults", "hydra") if key in written]
        keys = {key for key in written if key not in unlisted}
        names = {one.name for one in reference.read_config_settings(file)}
        package = file.read_text().startswith("# @package ") and file not in PRESETS
        assert {name.split(".")[-1] if package else name.split(".")[0] for name in names} == keys, file


@pytest.mark.parametrize(("group", "typed"), [("", Config), *TYPED_GROUPS])
def test_a_setting_of_the_schema_has_a_range_and_is_written_in_conf(group: str, typed: type) -> None:
    """And the reverse: what conf/ has is in the schema, with the name that it has there."""
    others = {"pe", "data", "optimizer", *LIST_GROUPS, *dict(TYPED_GROUPS)} if group == "" else {"_target_"}
    others |= {*ALIASES, *DECIDED_ARGUMENTS} if group == "trainer" else set()
    settings = {f"{group}.{setting.name}".lstrip(".") for setting in fields(typed) if setting.name not in others}
    written = {one.name for one in reference.settings_of_config()}
    assert settings <= RANGES.keys()
    assert settings == {name for name in written if name.rpartition(".")[0] == group and name not in others}


def test_a_range_is_shown_where_values_are_checked() -> None:
    shown = {one.name: one.range for one in reference.settings_of_config()}
    assert all(shown[f"trainer.{name}"] for name in TAKEN_ARGUMENTS)
    assert {name for name, words in shown.items() if not words} == {"solve", "tune", "evaluate", "decide"}


def test_words_go_on_at_the_same_column_and_belong_to_the_key_they_stand_beside(tmp_path: Path) -> None:
    (file := tmp_path / "file.yaml").write_text(
        "# a file\n"
        "first: 1     # words that\n"
        "             # go on\n"
        "# of the next\n"
        "second: '#'  # more\n"
        "group:       # a group\n"
        "  inner: [1, 2]\n"
        "             # of no key\n"
        "parts:\n"
        "  - a        # within a list\n"
        "  - b\n"
    )
    assert [(one.name, one.default, one.description) for one in reference.read_config_settings(file)] == [
        ("first", "1", "words that go on"),
        ("second", "'#'", "more"),
        ("group", "", "a group"),
        ("group.inner", "[1, 2]", ""),
        ("parts", "- a        # within a list - b", ""),
    ]


def test_help_shows_the_common_settings_and_every_choice() -> None:
    known = config.find_folders()
    text, words = (
        help.help_text(known, [], every=False),
        help.help_text(known, [], every=False).replace(",", " ").split(),
    )
    assert all(f"  {name}=" in text for name in reference.COMMON_SETTINGS)
    assert {
        name
        for group, names in known.files.items()
        if group and "hydra" not in group and group != help.REGISTRY
        for name in names
    } <= set(words)
    assert max(map(len, text.splitlines())) <= help.WIDTH


def test_help_of_evaluate_is_its_own() -> None:
    text = help.help_text(config.find_folders(), [], every=False, train=False)
    assert text.startswith("usage: pe-lab evaluate")
    assert all(f"  {one.name}" in text for one in reference.settings_of_config() if one.name.startswith("evaluate"))
    assert "  optimizer.lr=" not in text


def test_help_on_a_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="pe must be one of .*'foo'"):
        help.help_text(config.find_folders(), ["pe=foo"], every=False)


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("nosuch", "--help all"),
        ("foo=3", "--help foo"),
        ("epoch", "epochs?"),
        ("depth", "mean model.depth?"),
        ("yarn", "mean pe=yarn?"),
    ],
)
def test_help_on_a_word_that_names_nothing_is_refused(word: str, named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        help.help_text(config.find_folders(), [word], every=False)


def test_a_name_nearly_that_of_its_group_comes_before_an_equal_one_of_another_group() -> None:
    with pytest.raises(HydraException) as caught:
        config.expand_overrides(["evaluate.length=[1,2]"], multirun=False)
    assert "did you mean lengths?" in describe_hydra_error(caught.value)


def test_help_on_a_setting_shows_it_alone() -> None:
    text = help.help_text(config.find_folders(), ["model.depth"], every=False)
    assert "  model.depth=4" in text
    assert "seed=0" not in text


def test_help_on_a_group_describes_every_choice(program) -> None:
    status, lines, errors = program(run.main, "--help", "pe")
    assert (status, errors) == (0, "")
    described = {line.split()[0] for line in lines if line.startswith("  ") and len(line.split()) > 1}
    assert set(config.find_folders().names("pe")) <= described


def test_all_help_shows_every_setting() -> None:
    text = help.help_text(config.find_folders(), [], every=True)
    assert all(f"  {one.name}" in text for one in reference.settings_of_config())


def test_help_on_a_choice_shows_its_settings() -> None:
    text = help.help_text(
        config.find_folders(), ["pe=yarn,rope", "callbacks=[early_stopping]", "+study=text", "seed=1"], every=False
    )
    assert "pe.beta_fast=32.0" in text
    assert "callbacks.early_stopping.patience=3" in text
    assert "study=text" in text
    assert "trainer.batch_size" not in text


@pytest.mark.parametrize("name", ["solve", "tune", "evaluate", "decide"])
def test_defaults_of_the_file_are_those_of_the_schema(name: str) -> None:
    """By these it is decided whether a setting was given."""
    of_schema = next(one.type for one in fields(Config) if one.name == name)
    written = OmegaConf.load(config.config_folder() / "config.yaml")[name]
    assert OmegaConf.to_container(OmegaConf.structured(of_schema)) == OmegaConf.to_container(written)
