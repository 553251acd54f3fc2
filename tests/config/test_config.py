"""Bad input gets one line, before torch is loaded."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.utils import get_class
from omegaconf import OmegaConf

from helpers.configs import group_of, in_ledger, pe_settings
from pe_lab import config
from pe_lab.config import overrides as read
from pe_lab.config.schema import RANGES
from pe_lab.system.errors import in_one_line


def complaint(*overrides: str, multirun: bool = False) -> str:
    """Return the line with which these overrides are refused."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 whatever it is, it becomes one line
        config.expand_overrides(list(overrides), multirun)
    line = in_one_line(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["pe=ropes"], ["pe='ropes': did you mean rope? pe must be one of", "alibi", "pe-lab run --help"]),
        (["model.width=65"], ["model.width must be divisible by model.num_heads", "model.width=65"]),
        (["model.depth=0"], ["model.depth must be an integer of at least 1, got 0"]),
        (["model.depth=four"], ["model.depth must be an integer, got 'four'"]),
        (["model.depth=1.5"], ["model.depth must be an integer, got 1.5"]),
        (["epochs=null"], ["epochs or steps must be given, not both: set the other to null, got neither"]),
        (["trainer.clip=Integer"], ["trainer.clip must be a number, got 'Integer'"]),
        (["decide=null"], ["decide must be a group of settings, got None"]),
        (["decide=3"], ["decide must be a group of settings, got 3"]),
        (["decide.seeds=null"], ["decide.seeds must be text, got None"]),
        (["decide.baseline=[rope]"], ["decide.baseline must be text, got ['rope']"]),
        (["evaluate.lengths=2"], ["evaluate.lengths must be a list, got 2"]),
        (["evaluate.lengths=[1,long]"], ["evaluate.lengths[1] must be a number, got 'long'"]),
        (
            ["decide.margin=0.1"],
            ["decide.margin=0.1: did you mean", "decide has the settings baseline, best, looks, seeds"],
        ),
        (["epochs=-1"], ["epochs must be an integer of at least 1, got -1"]),
        (["foo=1"], ["the config has the settings attention,", "got foo=1"]),
        (["pe.foo=1"], ["pe=rope has the settings pairing, rotary_dim, theta: got pe.foo=1"]),
        (["+foo=1"], ["the config has the settings", "epochs", "got foo"]),
        (["+model.foo=1"], ["model has the settings", "depth", "got model.foo=1"]),
        (["+pe.foo=1"], ["pe=rope has the settings pairing, rotary_dim, theta: got pe.foo=1"]),
        (["epoch=3"], ["epoch=3: did you mean epochs?"]),
        (["depth=3"], ["depth=3: did you mean model.depth?"]),
        (["model.dept=3"], ["model.dept=3: did you mean depth?"]),
        (["pe=alibi", "pe.theta=5"], ["pe=alibi has the settings slopes: got pe.theta=5"]),
        (["pe=none", "pe.theta=5"], ["pe=none has no settings: got pe.theta=5"]),
        (["modle.depth=3"], ["modle.depth=3: did you mean model.depth?"]),
        (["optimizer.epochs=3"], ["optimizer.epochs=3: did you mean epochs?"]),
        (["device=cpu"], ["device=cpu: did you mean trainer.device?"]),
        (["pe=rpoe"], ["pe='rpoe': did you mean rope?"]),
        (["pe=RoPE"], ["pe='RoPE': did you mean rope?"]),
        (["model.Depth=3"], ["model.Depth=3: did you mean depth?"]),
        (["seeds=3"], ["seeds=3: did you mean decide.seeds?"]),
        (["search=fair"], ["tune.rates=", "got search=fair"]),
        (["search=wide"], ["search must be one of none, pe_bench_2, got 'wide'"]),
        (["search.rates=[1]"], ["search.rates=[1]"]),
        (["foo=" + 100 * "x"], ["got foo=" + 80 * "x" + "..."]),
        (["++pe.thet=3"], ["pe.thet=3: did you mean theta? pe=rope has the settings pairing, rotary_dim, theta"]),
        (["+study=depth_epoch_pe"], ["study must be one of", "did you mean depth_epochs_pe?"]),
        (["optimizer.rl=3"], ["optimizer.rl=3: did you mean lr? optimizer=adam has the settings"]),
        (["optimizer.zzz=3"], ["optimizer=adam has the settings", "got optimizer.zzz=3"]),
        (["~logger.wandb.mode"], ["'logger.wandb.mode' does not exist"]),
        (["pe._target_=my.Encoding"], ["pe._target_ must be pe_lab.encodings.rotary.RoPE"]),
        (["logger.wandb.project=a/b"], ["logger.wandb.project must be a name"]),
        (["pe.theta=-1"], ["pe.theta must be a positive number, got -1"]),
        (["pe.pairing=both"], ["pe.pairing must be one of interleaved, half, got 'both'"]),
        (["optimizer.lr=nan"], ["optimizer.lr must be a positive number"]),
        (["optimizer=lion"], ["optimizer must be one of adam, adamw, muon, sgd"]),
        (["optimizer.betas=[0.9]"], ["optimizer.betas must be two numbers"]),
        (["trainer.precision=16"], ["trainer.precision must be one of 32, bf16-mixed"]),
        (["trainer.clip=0"], ["trainer.clip must be a positive number, got 0"]),
        (["trainer.graph=maybe"], ["trainer.graph must be true, false or auto, got 'maybe'"]),
        (["model.dropout=1"], ["model.dropout must be in [0, 1)"]),
        (["ledger="], ["ledger must be the path of a folder"]),
        (
            ["model.depth=1,2"],
            ["'model.depth=1,2' is a sweep, which needs -m of pe-lab run; a list is"],
        ),
        (["+study=depth_epochs_pe"], ["+study=depth_epochs_pe is a sweep: add -m"]),
        (["data=bag", "search=pe_bench_2"], ["search=pe_bench_2 is a sweep: add -m"]),
        (["hydra/launcher=rq"], ["hydra/launcher must be one of", "basic", "cores"]),
        (["pe=5"], ["pe must be one of", "alibi", "got 5"]),
        (["pe=[rope,alibi]"], ["pe must be one name, got 'pe=[rope,alibi]'"]),
        (["logger=[none,csv]"], ["logger=none must stand alone, got logger=[none,csv]"]),
        (["logger=[csv,tensorbord]"], ["did you mean tensorboard? logger must be one of csv, none"]),
        (["logger.project=mine"], ["logger.wandb.project, got 'logger.project=mine'"]),
        (["logger=csv", "logger.wandb.project=mine"], ["logger has the settings csv: got logger.wandb.project=mine"]),
        (["+logger.wandb.projects=mine"], ["logger.wandb.projects='mine': did you mean project?"]),
        (["+logger.mine._target_=json.loads"], ["logger.mine._partial_ must be true, got None"]),
        (["pe.name=5"], ["pe.name must be a name of", "got 5"]),
        (["pe._partial_=false"], ["pe._partial_ must be True for pe=rope, got False"]),
        (["~pe.theta"], ["pe.theta must be set, got nothing"]),
        (["pe=randomized_rope", "pe.encoding.theta=-1"], ["pe.encoding.theta must be a positive number, got -1"]),
        (["pe=randomized_rope", "pe.encoding=null"], ["pe.encoding must be another pe, got None"]),
        (["pe=randomized_rope", "~pe.encoding.pairing"], ["pe.encoding.pairing must be set, got nothing"]),
        (["pe=learnable", "pe.share=heads"], ["pe.share must be one of layers, none, got 'heads'"]),
        (["pe=lrope", "pe.share=some"], ["pe.share must be one of none, heads, layers, all, got 'some'"]),
        (["pe=cpe", "pe.std=nan"], ["pe.std must be at least 0, got nan"]),
        (["pe=cope", "pe.std=null"], ["pe.std must be at least 0, got None"]),
        (
            ["pe=yarn", "pe.original_length=banana"],
            ["pe.original_length must be an integer of at least 1, got 'banana'"],
        ),
        (["pe=t5", "pe.num_buckets=514"], ["pe.num_buckets must be at most 512, got 514"]),
        (["data=reverse", "data.symbols=1"], ["data.symbols must be an integer of at least 2, got 1"]),
        (["data=mlm", "data.test_sequences=0"], ["data.test_sequences must be an integer of at least 1, got 0"]),
        (["data.length=1000000000"], ["data.length must be at most 131072, got 1000000000"]),
        (["pe.theta=1" + 400 * "0"], ["pe.theta must be a positive number, got 1000"]),
        (["pe.theta=1" + 5000 * "0"], ["'pe.theta=1000", "cannot be read"]),
        (["model.depth=" + 2000 * "["], ["'model.depth=[[[", "cannot be read"]),
        (["evaluate.lengths.foo=1"], ["evaluate.lengths must be a list, as evaluate.lengths=[...]", "lengths.foo=1"]),
        (["attention=${.}"], ["attention must be one of auto, blocked, flex", "got '${.}'"]),
        (["hydra.sweeper.params=5"], ["hydra.sweeper.params"]),
    ],
)
def test_bad_input_is_named_in_one_line(overrides, parts):
    line = complaint(*overrides)
    assert [part for part in parts if part not in line] == [], line


@pytest.mark.parametrize("override", ["+foo=1", "foo=1", "+model.foo=1", "+pe.sweeper=1"])
def test_a_name_that_is_near_no_other_gets_no_proposal(override):
    """Not itself, which the config has by then, and no setting of Hydra's."""
    assert complaint(override).endswith(f"got {override.lstrip('+')}")


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("seed=range(1000000000)", "at most 100,000 cells"),
        ("seed=range(0)", "at least one cell"),
        ("pe=glob(nothing*)", "at least one cell"),
        ("seed=interval(0,3)", "values that can be listed"),
    ],
)
def test_a_sweep_that_has_no_cell_or_no_end_is_refused(override, part):
    assert f"a sweep must have {part}" in complaint(override, multirun=True)


@pytest.mark.parametrize("overrides", [["pe=rope,ropes"], ["model.depth=1,zero"], ["epochs=range(0,3)"]])
def test_a_sweep_with_one_bad_cell_is_refused_whole(overrides):
    complaint(*overrides, multirun=True)


@pytest.mark.parametrize("multirun", [False, True])
@pytest.mark.parametrize("prefix", ["", "++"])
@pytest.mark.parametrize("setting", ["model.base_width", "model.base_head_dim"])
def test_a_base_of_mup_is_refused_where_nothing_uses_it(setting, prefix, multirun):
    line = f"{setting} needs model.parametrization=mup, got standard"
    assert complaint("model=base", f"{prefix}{setting}=32", multirun=multirun).endswith(line)
    (cfg,) = config.expand_overrides([f"{prefix}{setting}=32", "model.parametrization=mup"], multirun)
    assert OmegaConf.select(cfg, setting) == 32


def test_a_base_of_mup_is_taken_where_some_cells_of_a_sweep_use_it():
    cfgs = config.expand_overrides(["model.base_width=32", "model.parametrization=standard,mup"], multirun=True)
    assert [cfg.model.base_width for cfg in cfgs] == [32, 32]
    assert "model.base_width needs" in complaint("model.base_width=32,64", "seed=0,1", multirun=True)


def test_a_sweep_has_the_cells_hydra_makes_of_it():
    cfgs = config.expand_overrides(["+study=depth_epochs_pe"], multirun=True)
    cells = [(cfg.pe.name, cfg.model.depth, cfg.epochs, cfg.seed) for cfg in cfgs]
    assert len(set(cells)) == 45
    assert cells[0] == ("sinusoidal", 16, 16, 0)
    assert {cfg.study_name for cfg in cfgs} == {"depth_epochs_pe"}
    assert len(config.expand_overrides(["+study=depth_epochs_pe", "seed=range(2)", "pe=rope"], multirun=True)) == 18


@pytest.mark.parametrize("setting", ["data.train_sequences=4096", "data.path=/a-b/c.txt", "data.separator='a, b'"])
def test_a_setting_that_only_the_swept_choices_have_is_taken_by_each(setting):
    cfgs = config.expand_overrides(config.sweep_overrides(["data=clm,mlm", setting, "seed=1"]), multirun=True)
    key, _, value = setting.partition("=")
    assert [(cfg.data.name, str(OmegaConf.select(cfg, key))) for cfg in cfgs] == [
        ("clm", value.strip("'")),
        ("mlm", value.strip("'")),
    ]


@pytest.mark.parametrize("null", ["null", "NULL"])
def test_null_is_taken_by_each_too(null):
    words = config.sweep_overrides(["pe=shape", f"pe.max_shift={null}", "seed=1,2"])
    cfgs = config.expand_overrides(words, multirun=True)
    assert [(cfg.pe.max_shift, cfg.seed) for cfg in cfgs] == [(None, 1), (None, 2)]


@pytest.mark.long
def test_every_range_is_of_a_setting_that_exists_and_its_default_is_in_it():
    seen = set()
    for group in ("data", "logger", "optimizer", "search"):
        for path in (config.config_folder() / group).glob("*.yaml"):
            cfg = config.expand_overrides(config.sweep_overrides([f"{group}={path.stem}"]), multirun=True)[0]
            seen |= {s for s in RANGES if OmegaConf.select(cfg, s, default=seen) is not seen}
    assert seen == set(RANGES)


ANSWERS = {  # with their exit status
    ("--help",): 0,
    ("--cfg", "job"): 0,
    ("pe=ropes",): 1,
    ("model.depth=four",): 1,
    ("model.width=65",): 1,
    ("-m", "pe=rope,ropes"): 1,
    ("pe.theta=-1",): 1,
    ("pe=randomized_rope", "pe.encoding.pairing=both"): 1,
    ("-m", "data=clm,mlm", "data.tokenizer=bytes,words"): 1,
    ("--config-name", "other"): 1,
    ("--bogus",): 1,
    ("ledger=/dev/null/ledger",): 1,
}
WITHOUT_TORCH = """
import sys
from pe_lab.run import main
for words in {words}:
    sys.argv = ["pe_lab.run", *words]
    status = 0
    try:
        main()
    except SystemExit as stop:
        status = stop.code or 0
    heavy = [m for m in ("torch", "lightning", "pandas", "scipy", "wandb") if m in sys.modules]
    for stream in (sys.stdout, sys.stderr):
        print("ended", status, heavy, file=stream)
"""


def test_answers_that_need_no_torch_do_not_load_it(tmp_path):
    code = WITHOUT_TORCH.format(words=list(ANSWERS))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    errors: list[list[str]] = [[]]
    for line in done.stderr.strip().splitlines():
        if line.startswith("ended"):
            errors[-1].append(line)
            errors.append([])
        else:
            errors[-1].append(line)
    for (words, status), (*lines, end) in zip(ANSWERS.items(), errors[:-1], strict=True):
        assert (end, len(lines)) == (f"ended {status} []", status), (words, lines)
    assert list(tmp_path.iterdir()) == []


def test_configs_say_what_they_are_in_their_first_line():
    for path in Path(config.config_folder()).rglob("*.yaml"):
        assert path.read_text().startswith("# "), path


@pytest.mark.parametrize(
    "overrides",
    [
        ["pe=rope,randomized_rope", "optimizer.lr=1e-3,2e-3", "model.depth=1,4", "logger=none"],
        ["pe=randomized_rope", "pe@pe.encoding=rope,lrope", "optimizer.betas=[0.9,0.98],[0.8,0.9]", "optimizer=adamw"],
        pytest.param(
            [
                *("+study=depth_epochs_pe", "pe=learnable", "pe.max_len=16,32"),
                *("hydra.launcher.n_jobs=3", "~logger.wandb.project", "seed=1"),
            ],
            marks=pytest.mark.long,
        ),
        pytest.param(
            ["pe=glob(kerple*)", "seed=1,2", "++pe.name=a,b", "epochs=2", "++seed=3", "+extra=5,6"],
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_cells_of_a_sweep_are_what_hydra_makes_of_its_jobs(overrides, monkeypatch):
    """Cells share what is composed; Hydra composes job by job."""
    monkeypatch.setattr("pe_lab.config.compose.check_config", lambda *_: None)
    cfgs = iter(config.expand_overrides(overrides, multirun=True))
    with initialize_config_dir(str(config.config_folder()), version_base="1.3"):
        parser = OverridesParser.create(GlobalHydra.instance().config_loader())
        fixed = [
            override.input_line for override in parser.parse_overrides(overrides) if not override.is_sweep_override()
        ]
        params = compose("config", fixed, return_hydra_config=True).hydra.sweeper.params or {}
        swept = parser.parse_overrides([f"{key}={value}" for key, value in params.items()] + overrides)
        basic = next(kind for kind in Plugins.instance().discover(Sweeper) if kind.__name__ == "BasicSweeper")
        for job in basic.split_arguments(swept, None)[0]:
            assert OmegaConf.to_yaml(next(cfgs)) == OmegaConf.to_yaml(compose("config", list(job)))
    assert next(cfgs, None) is None


PES = sorted(path.stem for path in config.config_folder().glob("pe/*.yaml"))


@pytest.mark.parametrize(
    "name", [name if place % 7 == 0 else pytest.param(name, marks=pytest.mark.slow) for place, name in enumerate(PES)]
)
def test_the_settings_that_tests_read_of_an_encoding_are_what_is_composed(name):
    assert pe_settings(name) == config.expand_overrides([f"pe={name}"], multirun=False)[0].pe


@pytest.mark.parametrize("multirun", [True, False])
def test_the_configs_that_tests_change_are_what_is_composed(multirun, tmp_path):
    words = ["pe=none,rope"] if multirun else ["pe=rope"]
    for ledger in (tmp_path / "one", tmp_path / "two"):
        made = in_ledger(ledger, *words, multirun=multirun)
        assert made == config.expand_overrides([*words, f"ledger={ledger}"], multirun)
        made[0].seed = 7


@pytest.mark.parametrize("path", sorted(config.config_folder().glob("[pd][ea]*/*.yaml")), ids=lambda path: path.stem)
def test_a_class_has_the_defaults_that_its_file_states(path):
    cfg = group_of(path)
    parameters = {}
    for kind in reversed(get_class(cfg._target_).__mro__[:-1]):  # a class may pass options on to the one it is made of
        parameters |= inspect.signature(kind).parameters
    options = {key: value for key, value in OmegaConf.to_container(cfg).items() if key[0] != "_"}
    assert set(options) <= set(parameters)
    if parameters["name"].default != path.stem:  # a second file of the class
        return
    own = {key: value for key, value in options.items() if not isinstance(value, dict) and key != "parts"}
    assert {key: parameters[key].default for key in own} == own


@pytest.mark.parametrize(
    ("launcher", "extra"), [("submitit", "slurm"), ("submitit_here", "slurm"), ("ray", "ray"), ("pe_lab_ray", "ray")]
)
def test_a_launcher_whose_package_is_missing_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, launcher: str, extra: str
) -> None:
    monkeypatch.setattr(read, "distributions", lambda name: iter([]))
    with pytest.raises(ValueError, match=rf"hydra/launcher={launcher} needs .*pe_lab\[{extra}\]"):
        config.expand_overrides([f"hydra/launcher={launcher}"], multirun=True)
