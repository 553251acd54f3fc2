"""Folders of users' configs: found by every program, and refused in one line where they cannot be used."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from pe_lab import config
from pe_lab.config.config_folders import CONFIG_DIR_VARIABLE
from pe_lab.system.errors import in_one_line

MINE = "# mine\n_target_: mine_module.Mine\n_partial_: true\nname: mine\nrate: 1.0\n"
CLASS = """
from pe_lab.encodings import PositionalEncoding, Sizes
from pe_lab.encodings.options import Positive


class Mine(PositionalEncoding):
    def __init__(self, sizes: Sizes, name: str = "mine", rate: Positive = 1.0) -> None:
        super().__init__(sizes, name)
"""
FILES = {"pe/mine.yaml": MINE}
BOMB = "a0: &a0 [1, 2]\n" + "".join(f"a{i}: &a{i} [{'*a' + str(i - 1)}{', *a' + str(i - 1)}]\n" for i in range(1, 40))


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(CONFIG_DIR_VARIABLE, raising=False)
    path = list(sys.path)
    yield
    assert sys.path == path
    assert CONFIG_DIR_VARIABLE not in os.environ


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a module and a folder of configs."""
    (tmp_path / "mine_module.py").write_text(CLASS)
    write(tmp_path / "conf", FILES)
    return tmp_path


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def complaint(folder: Path, *overrides: str) -> str:
    """Return the line with which a folder is refused."""
    with pytest.raises(Exception) as caught, config.add_config_dirs([f"--config-dir={folder}", *overrides]) as rest:  # noqa: PT011
        config.expand_overrides(rest, multirun=False)
    line = in_one_line(caught.value)
    assert "\n" not in line
    return line


def installed(place: Path, value: str, distribution: str = "mine-dist", name: str = "mine") -> None:
    """Write what makes Python take a folder on its path for an installed distribution with an entry point."""
    info = place / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[pe_lab.conf]\n{name} = {value}\n")


def test_a_file_that_has_changed_is_composed_again_and_what_was_composed_may_be_changed(project: Path) -> None:
    def composed() -> DictConfig:
        with config.add_config_dirs([f"--config-dir={project / 'conf'}", "pe=mine", "seed=3"]) as rest:
            return config.expand_overrides(rest, multirun=False)[0]

    first = composed()
    first.pe.rate, first.model.depth = 5.0, 9
    assert (composed().pe.rate, composed().model.depth, composed().seed) == (1.0, 4, 3)
    write(project / "conf", {"pe/mine.yaml": MINE.replace("1.0", "2.5")})
    assert composed().pe.rate == 2.5


@pytest.mark.parametrize("flag", [["--config-dir={}"], ["--config-dir", "{}"], ["-cd", "{}"], ["-cd={}"]])
def test_a_folder_adds_names_and_its_modules_are_found_beside_it(project: Path, flag: list[str]) -> None:
    with config.add_config_dirs([*(word.format(project / "conf") for word in flag), "pe=mine"]) as rest:
        (cfg,) = config.expand_overrides(rest, multirun=False)
        assert str(project) in sys.path
        assert sys.path.index(str(project)) >= len(sys.path) - 2  # after all installed packages
        assert config.config_dir_flags() == [f"--config-dir={project / 'conf'}"]
    assert (cfg.pe._target_, cfg.pe.rate) == ("mine_module.Mine", 1.0)
    with pytest.raises(Exception, match="mine"):
        config.expand_overrides(["pe=mine"], multirun=False)


def test_the_names_of_a_folder_join_those_of_the_package(project: Path) -> None:
    ours = config.find_folders()
    with config.add_config_dirs(["--config-dir", str(project / "conf")]):
        both = config.find_folders()
    assert ours.users == ()
    assert both.users == (project / "conf",)
    assert both.names("pe") == sorted([*ours.names("pe"), "mine"])
    assert both.file("pe", "mine") == project / "conf/pe/mine.yaml"
    assert both.file("pe", "../pe/rope") is None


def test_every_group_of_the_package_takes_names(tmp_path: Path) -> None:
    groups = {
        path.parent.relative_to(config.config_folder()).as_posix() for path in config.config_folder().rglob("*.yaml")
    } - {"."}
    assert {"pe", "data", "optimizer", "probe", "study", "model", "trainer", "logger", "attention"} <= groups
    for group in groups:
        text = "_target_: a.B\n_partial_: true\nname: added\n"
        write(tmp_path, {f"{group}/added.yaml": text})
    with config.add_config_dirs(["-cd", str(tmp_path)]):
        assert all("added" in config.find_folders().names(group) for group in groups)


def test_an_option_with_the_name_of_another_class_s_has_no_rule_of_that(project: Path) -> None:
    write(project / "conf", {"pe/mine.yaml": f"{MINE}pairing: none\n"})
    with config.add_config_dirs([f"--config-dir={project / 'conf'}"]):
        (cfg,) = config.expand_overrides(["pe=mine", "model.head_dim=5"], multirun=False)
    assert cfg.pe.pairing == "none"


def test_files_may_state_a_base_of_mup_that_nothing_uses(project: Path) -> None:
    study = "# @package _global_\nhydra:\n  sweeper:\n    params:\n      model.base_width: 32\n      seed: 0,1\n"
    write(project / "conf", {"study/one.yaml": study, "model/wide.yaml": "defaults: [base]\nbase_head_dim: 8\n"})
    with config.add_config_dirs([f"--config-dir={project / 'conf'}"]):
        cfgs = config.expand_overrides(["+study=one", "model=wide"], multirun=True)
        (cfg,) = config.expand_overrides(["model=wide"], multirun=False)
    assert [(one.model.base_width, one.model.base_head_dim) for one in (*cfgs, cfg)] == [(32, 8), (32, 8), (64, 8)]


def test_a_study_of_a_folder_is_a_sweep_like_those_of_the_package(project: Path) -> None:
    study = (
        "# @package _global_\nstudy_name: mine\nhydra:\n  sweeper:\n    params:\n      pe: mine,rope\n      seed: 0,1\n"
    )
    parts = "studies:\n  small:\n    - +study=one seed=range(2)\n"
    write(project / "conf", {"study/one.yaml": study, "study/many.yaml": parts})
    with config.add_config_dirs(["-cd", str(project / "conf")]):
        cfgs = config.expand_overrides(["+study=one"], multirun=True)
        assert [(cfg.pe.name, cfg.seed) for cfg in cfgs] == [("mine", 0), ("mine", 1), ("rope", 0), ("rope", 1)]
        assert {cfg.study_name for cfg in cfgs} == {"mine"}
        assert config.study_overrides(["-m", "+study=many"]) == [["+study=one", "seed=range(2)"]]
    assert config.study_overrides(["-m", "+study=many"]) == []


def test_a_file_may_begin_with_another_of_its_group(project: Path) -> None:
    text = "# long\ndefaults:\n  - rope\n  - _self_\nname: long\ntheta: 500_000.0\n"
    write(project / "conf", {"pe/long.yaml": text})
    with config.add_config_dirs(["-cd", str(project / "conf")]):
        (cfg,) = config.expand_overrides(["pe=long"], multirun=False)
        assert OmegaConf.to_container(cfg.pe) == {
            "_target_": "pe_lab.encodings.rotary.RoPE",
            "_partial_": True,
            "name": "long",
            "theta": 500_000.0,
            "pairing": "interleaved",
            "rotary_dim": None,
        }
        with pytest.raises(ValueError, match=r"pe=long has the settings pairing, rotary_dim, theta: got pe.foo=1"):
            config.expand_overrides(["pe=long", "+pe.foo=1"], multirun=False)
        with pytest.raises(ValueError, match=r"pe\._target_ must be pe_lab\.encodings\.rotary\.RoPE for pe=long"):
            config.expand_overrides(["pe=long", "pe._target_=mine_module.Mine"], multirun=False)


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["pe=mine", "pe.rate=-1"], "pe.rate must be a positive number, got -1"),
        (["pe=mine", "+pe.foo=1"], "pe=mine has the settings rate: got pe.foo=1"),
        (["pe=mine", "~pe.rate"], "pe.rate must be set, got nothing"),
        (["pe=mine", "pe._target_=other.Mine"], "pe._target_ must be mine_module.Mine for pe=mine"),
        (["pe=mines"], "pe must be one of abacus, "),
        (
            ["pe=mine", "hydra.searchpath=[file:///tmp]"],
            "hydra.searchpath cannot be set: give a folder by --config-dir",
        ),
    ],
)
def test_options_of_a_users_class_are_checked_as_those_of_the_package(
    project: Path, overrides: list[str], part: str
) -> None:
    assert part in complaint(project / "conf", *overrides)


BAD = {
    "a group that does not exist": (
        {"pes/mine.yaml": MINE},
        "conf/pes/mine.yaml must be in the folder of a group, one of",
    ),
    "the group that was meant": ({"datas/mine.yaml": MINE}, "got 'datas': did you mean data?"),
    "a file outside of groups": ({"mine.yaml": MINE}, "conf/mine.yaml must be in the folder of a group"),
    "a folder within a group": ({"pe/more/mine.yaml": MINE}, "got 'pe/more'"),
    "no file": (
        {"pe/mine.txt": MINE},
        "--config-dir, or PE_LAB_CONFIG_DIR, must have a folder for a group, one of attention, ",
    ),
    "another ending": ({"pe/mine.yml": MINE}, "conf/pe/mine.yml must be named NAME.yaml, NAME a name of letters"),
    "a name with a space": ({"pe/my own.yaml": MINE}, "conf/pe/my own.yaml must be named NAME.yaml"),
    "broken YAML": ({"pe/mine.yaml": "a: [1\nb: 2\n"}, "conf/pe/mine.yaml must be YAML: "),
    "a key twice": ({"pe/mine.yaml": "a: 1\na: 2\n"}, "conf/pe/mine.yaml must be YAML: "),
    "an alias of aliases": ({"pe/mine.yaml": BOMB}, "conf/pe/mine.yaml must have at most 10,000 values"),
    "an alias within itself": ({"pe/mine.yaml": "a: &a [*a]\n"}, "conf/pe/mine.yaml must have no alias within"),
    "too many levels": ({"pe/mine.yaml": "a: " + "[" * 3000 + "]" * 3000}, "conf/pe/mine.yaml must have at most 64"),
    "a folder as a file": ({"pe/mine.yaml/x": ""}, "conf/pe/mine.yaml must be a file, got a folder"),
    "a list": ({"pe/mine.yaml": "- 1\n"}, "conf/pe/mine.yaml must have settings, key: value, got a list"),
    "no class": (
        {"pe/mine.yaml": "name: mine\n"},
        "conf/pe/mine.yaml must have a _target_, the import path of a class",
    ),
    "an empty file": ({"data/mine.yaml": ""}, "conf/data/mine.yaml must have a _target_"),
    "a probe without a class": ({"probe/mine.yaml": "a: 1\n"}, "conf/probe/mine.yaml must have a _target_"),
    "no _partial_": (
        {"pe/mine.yaml": "_target_: a.B\nname: mine\n"},
        "conf/pe/mine.yaml must have _partial_: true, got None",
    ),
    "another name": ({"pe/other.yaml": MINE}, "conf/pe/other.yaml must have name: other, as the file, got 'mine'"),
    "a name of the package": (
        {"pe/rope.yaml": MINE.replace("mine", "rope")},
        f"pe=rope must have one file, got {config.config_folder() / 'pe/rope.yaml'} and ",
    ),
    "the root of the package": ({"config.yaml": "epochs: 1\n"}, "conf/config.yaml must be in the folder of a group"),
    "a launcher of Hydra": ({"hydra/launcher/joblib.yaml": "n_jobs: 3\n"}, "hydra/launcher=joblib must have one file"),
    "a module that is not there": (
        FILES | {"pe/mine.yaml": MINE.replace("mine_module", "nowhere")},
        "there is no module nowhere",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_folder_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    files, part = BAD[case]
    (tmp_path / "conf").mkdir()
    write(tmp_path / "conf", files)
    overrides = ["pe=mine"] if "module" in case else []
    assert part in complaint(tmp_path / "conf", *overrides)


def test_a_fifo_is_refused_and_a_few_aliases_are_taken(tmp_path: Path) -> None:
    write(tmp_path / "conf", {"model/wide.yaml": "sizes: &wide [16, 2]\nothers: [*wide, *wide]\n"})
    with config.add_config_dirs(["-cd", str(tmp_path / "conf")]):
        assert "wide" in config.find_folders().names("model")
    (tmp_path / "conf" / "pe").mkdir()
    os.mkfifo(tmp_path / "conf" / "pe" / "mine.yaml")
    assert "conf/pe/mine.yaml must be a file, got a FIFO" in complaint(tmp_path / "conf")


@pytest.mark.parametrize("given", ["nowhere", "", "file", os.pathsep])
def test_a_config_dir_must_be_a_folder(tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("", encoding="utf-8")
    assert complaint(Path(given) if given else "").startswith("--config-dir must be a folder of configs, got ")
    with pytest.raises(ValueError, match="-cd must be a folder of configs, got ''"), config.add_config_dirs(["-cd"]):
        pass


def test_two_folders_with_the_same_name_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, FILES)
    arguments = ["-cd", str(tmp_path / "one"), "-cd", str(tmp_path / "two")]
    with pytest.raises(ValueError, match="pe=mine must have one file, got .*one/pe/mine.yaml and .*two/pe/mine.yaml"):
        config.add_config_dirs(arguments).__enter__()
    with config.add_config_dirs([*arguments[:2], *arguments[:2]]):  # one folder, given twice
        assert len(config.find_folders().users) == 1


def test_the_variable_names_folders_for_processes_that_have_no_arguments(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project / "more", {"pe/other.yaml": MINE.replace("name: mine", "name: other")})
    with monkeypatch.context() as patch:
        patch.setenv(CONFIG_DIR_VARIABLE, f"{project / 'conf'}{os.pathsep}{project / 'more'}")
        assert {"mine", "other"} <= set(config.find_folders().names("pe"))
        with config.add_config_dirs([]):
            assert config.expand_overrides(["pe=other"], multirun=False)[0].pe.name == "other"
        patch.syspath_prepend(project / "more")  # restores the path that a notebook's call extends
        assert config.expand_overrides(["pe=mine"], multirun=False)[0].pe.name == "mine"
        assert str(project) in sys.path
        patch.setenv(CONFIG_DIR_VARIABLE, str(project / "nowhere"))
        with pytest.raises(ValueError, match="PE_LAB_CONFIG_DIR, must be a folder of configs, got .*nowhere"):
            config.find_folders()


@pytest.mark.parametrize("value", ["mine_package.conf", "mine_package", "mine_package.names"])
def test_an_installed_package_adds_its_configs_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    package = tmp_path / "mine_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('must not be imported to find its configs')")
    (package / "names.py").write_text("")
    write(package / "conf" if value == "mine_package.conf" else package, FILES)
    installed(tmp_path, value)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert "mine" in config.find_folders().names("pe")
        assert "mine_package" not in sys.modules
        patch.setenv(CONFIG_DIR_VARIABLE, str(config.find_folders().users[0]))  # the same folder, given twice
        assert len(config.find_folders().users) == 1


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("nowhere.conf", "must be a package that can be imported: there is no package nowhere"),
        ("mine_package.nowhere", "mine_package.nowhere is no folder of a package"),
        ("mine_module", "mine_module is no folder of a package"),
        ("mine_package", "must have a folder for a group"),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_refused_in_one_line(
    project: Path, monkeypatch: pytest.MonkeyPatch, value: str, part: str
) -> None:
    (project / "mine_package").mkdir()
    (project / "mine_package" / "__init__.py").write_text("")
    installed(project, value)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(project)
        with pytest.raises(ValueError, match="the entry point pe_lab.conf: mine = .* of mine-dist must") as caught:
            config.find_folders()
    assert part in str(caught.value)


def test_two_packages_with_the_same_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        write(tmp_path / f"{name}_package", FILES | {"__init__.py": ""})
        installed(tmp_path, f"{name}_package", f"{name}-dist", name)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        with pytest.raises(ValueError, match="pe=mine must have one file, got .*one_package.* and .*two_package"):
            config.find_folders()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["pe_lab.run", "pe.rate=-1"], "pe.rate must be a positive number, got -1"),
        (["pe_lab", "run", "pe.rate=-1"], "pe.rate must be a positive number, got -1"),
        (["pe_lab.run", "--config-d=x"], "--config-dir must be written --config-dir=DIR, got 'x'"),
    ],
)
def test_a_program_refuses_before_torch_is_loaded(project: Path, words: list[str], part: str) -> None:
    program, *rest = words
    command = ["-X", "importtime", "-m", program, *rest, "--config-dir", str(project / "conf"), "pe=mine"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=project)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == 1
    assert len(lines) == 1
    assert part in lines[0]
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)
    assert re.search(r"\| +hydra$", done.stderr, re.MULTILINE)


def test_modules_are_found_in_the_current_folder_by_script_and_module(project: Path) -> None:
    code = "import sys; from pe_lab import cli; sys.argv[1:] = sys.argv[1:]; cli.main()"
    overrides = ["run", "pe=none", "pe.name=mine", "pe._target_=mine_module.Mine", "+pe.rate=-1"]
    for flags in ([], ["-P"]):
        done = subprocess.run(
            [sys.executable, *flags, "-c", f"import sys; sys.path[:] = [p for p in sys.path if p]; {code}", *overrides],
            capture_output=True,
            text=True,
            cwd=project,
        )
        assert done.returncode == 1
        wanted = "there is no module mine_module" if flags else "pe.rate must be a positive number, got -1"
        assert wanted in done.stderr
