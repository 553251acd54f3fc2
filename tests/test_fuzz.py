"""Random overrides over the whole configuration end in a cell or in one line, and equal meanings in equal hashes.

`pytest tests/test_fuzz.py --hypothesis-profile=thorough -s` draws thousands, and prints what became of them.
"""

import resource
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException, InstantiationException
from hypothesis import event, given, reject, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from faults.programs import Program, limit_memory
from faults.sweeps import TINY
from pe_lab import config
from pe_lab.config.option_declarations import declared_ranges
from pe_lab.config.ranges import NAME
from pe_lab.config.schema import RANGES
from pe_lab.data.text import corpus
from pe_lab.encodings.options import Range
from pe_lab.experiment.cell import Cell
from pe_lab.ledger.ledger import Ledger
from pe_lab.system.errors import in_one_line
from pe_lab.system.files import digest

EXAMPLES = settings().max_examples
LEDGER = Path("never")  # of cells that are only composed
SECONDS = 60  # after which it hangs
MEMORY = 4 * 2**30  # more than that no cell of these sizes needs

OTHERS = ("hydra", "study", "probe", "callbacks", "replication")  # not one choice of a cell
FOLDERS = (path for path in config.config_folder().iterdir() if path.name not in OTHERS)
CHOICES = {
    folder.name: sorted(path.stem for path in folder.glob("*.yaml")) for folder in sorted(FOLDERS) if folder.is_dir()
}
LAUNCHERS = sorted(path.stem for path in (config.config_folder() / "hydra" / "launcher").glob("*.yaml"))
STUDIES = sorted(path.stem for path in (config.config_folder() / "study").glob("*.yaml"))
BY_DEFAULT = {
    group: name[0] if OmegaConf.is_list(name) else name
    for entry in OmegaConf.load(config.config_folder() / "config.yaml").defaults
    if OmegaConf.is_dict(entry)
    for group, name in entry.items()
    if group in CHOICES
}

# what fits some setting: which, its range says
FIT = [1, 2, 3, 4, 6, 8, 16, 17, 21, 32, 64, 0, 0.1, 0.5, 0.9, 1.5, 1e-3, 1e-30, 1e30, 300, True, False, "name", "a/b"]
NUMBERS = [
    *("-1", "0", "-0.0", "nan", "inf", "-inf", "1e400", "1e-400", "1e308", "5e-324", "100000000", "1000000000", "2.0"),
    *("1_000", "0x10", ".5", "5.", "--1", "1" + "0" * 30, "1" + "0" * 400, "1" + "0" * 5000),
]
TEXTS = [
    *("''", '"5"', "'5'", "'nan'", "' '", "true", "on", "None", "null", "é", "'\u202e'", "'\udcff'", "../x", "/etc/x"),
    *("a/b", ".", "..", "-", "x.y", "'a, b'", "'\n'", "", " ", "'#'", "x" * 90, "x" * 300, "é" * 90, "'a\nb'", "'${'"),
    *("\\", "`", "&a", "*", "|", "%", "!", "#"),
]
BRACKETS = [
    *(
        "[]",
        "[1]",
        "[nan]",
        "[[1]]",
        "{}",
        "{a:1}",
        "{_target_:os.getcwd}",
        "[",
        "}",
        "(",
        "'",
        '"',
        "[1,2",
        "=",
        "a=b",
    ),
    *(":", "@", "~", "+", "???", "${", "$", "${}", ",", "[" * 2000, "{a:" * 500, "[" + "1," * 500 + "1]"),
]
LINKS = [
    *(
        "${oc.env:HOME}",
        "${oc.env:NOWHERE}",
        "${pe.name}",
        "${nowhere}",
        "${seed}",
        "${.}",
        "${..}",
        "${pe}",
        "${.name}",
    ),
    *("${model.depth}", "${tuned_rate:x}", "${oc.decode:'['}", "${oc.create:{a:1}}", "${hydra:job.name}", "x${seed}y"),
]
SWEEPS = [
    *("1,2", "a,b", "1,", "range(3)", "range(0)", "range(9,1)", "range(1000000000)", "range(0,1,0)", "choice(1,2)"),
    *("choice()", "glob(*)", "interval(0,1)", "sort(2,1)", "int(5)", "str(5)", "float(2)", "float(x)", "shuffle(1,2)"),
    *("tag(a,1)", "range(inf)", "range(0,1,1e-9)", "range(nan)"),
]
ODD = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS),
    st.sampled_from(BRACKETS),
    st.sampled_from(LINKS),
    st.sampled_from(SWEEPS),
    st.integers(-100, 10**6).map(str),
    st.floats().map(str),
    st.text(max_size=6),
    st.text(max_size=6).map("'{}'".format),
)
HYDRA = [
    *("run.dir", "mode", "sweep.dir", "sweep.subdir", "job.name", "sweeper.params", "launcher.n_jobs", "searchpath"),
    "output_subdir",
]
WORDS = [
    *("--bogus", "-x", "--config-name=x", "--config-dir=/etc", "-cd=x", "--package", "--package=pe", "--resolve", "--"),
    *("---", "=", "=1", "@", "+", "~", "a", "", " ", "é=1", "pe", "pe=", "~pe", "~pe.theta", "-1", "study=bag", "-m"),
    *("+study=nowhere", "+study=../pe/rope", "--multirun", "--experimental-rerun=x", "budget=none", "\n", "pe@=rope"),
    *("pe@pe.encoding=rope", "+study=${seed}"),
]


@cache
def written(group: str, name: str) -> dict[str, Any]:
    """The settings of a file of conf/; a preset of models says more than its own."""
    file = OmegaConf.to_container(OmegaConf.load(config.config_folder() / group / f"{name}.yaml"))
    return file.get(group, file) or {}


@cache
def of_the_root() -> dict[str, Any]:
    """The settings that stand in no file of a group, with their defaults."""
    root = OmegaConf.to_container(OmegaConf.structured(config.Config))
    flat = config.flatten_settings({key: value for key, value in root.items() if key not in CHOICES})
    return {key: flat[key] for key in flat if key != "ledger"}


def shown(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, list):
        return f"[{','.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{shown(each)}' for key, each in value.items())}}}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def fitting(setting: str, own: dict[str, Range]) -> list[Any]:
    """Return values that the range of a setting holds.

    Args:
        own: the ranges that the classes of the configuration declare, by setting.
    """
    allowed = (RANGES | own).get(setting)
    if allowed is None:
        return [True, False]
    holds, words = allowed.holds, allowed.words
    names = words.rpartition("one of ")[2].split(", ") if "one of" in words else []
    found = [value for value in [*FIT, *names] if holds(value)]
    found += [[value] for value in [*FIT, *names] if holds([value])] + [[a, b] for a in (0, 0.5) for b in (0.9, 0)]
    return [value for value in found if holds(value)] + [None] * allowed.optional


def declared(group: str, name: str, path: str) -> dict[str, Range]:
    """Return the ranges that the class of a file of conf/ declares, by setting."""
    return {f"{path}.{option}": one for option, one in declared_ranges(written(group, name).get("_target_")).items()}


@st.composite
def asked(draw: st.DrawFn, fit: float = 0.5, most: int = 4) -> list[str]:
    """Overrides of a cell: choices, then settings that they have.

    Args:
        fit: the share of values that are in their range.
        most: settings.
    """
    chosen = draw(st.fixed_dictionaries({}, optional={key: st.sampled_from(CHOICES[key]) for key in CHOICES}))
    words = [f"{group}={name}" for group, name in chosen.items()]
    known, own = dict(of_the_root()), {}
    for group, name in (BY_DEFAULT | chosen).items():
        own |= declared(group, name, group)
        place = f"logger.{name}" if group == "logger" else group
        for key, value in written(group, name).items():
            if key != "defaults":
                known[f"{place}.{key}"] = value
                continue
            for inner in [entry["/pe@encoding"] for entry in value if "/pe@encoding" in entry]:
                if draw(st.booleans()):
                    inner = draw(st.sampled_from(CHOICES["pe"]))
                    words.append(f"pe@pe.encoding={inner}")
                known |= {f"pe.encoding.{key}": value for key, value in written("pe", inner).items()}
                own |= declared("pe", inner, "pe.encoding")
    for setting in draw(st.lists(st.sampled_from(sorted(known)), max_size=most, unique=fit == 1)):
        name = setting.rpartition(".")[2]
        if draw(st.floats(0, 1)) < fit:
            usual = [] if name[0] == "_" or name in ("name", "defaults") else fitting(setting, own)
            value = shown(draw(st.sampled_from([known[setting], *usual]))) if usual else shown(known[setting])
        else:
            value = draw(ODD)
        prefix = "" if fit == 1 else draw(st.sampled_from(["", "", "", "", "", "+", "++", "~"]))
        words.append(f"{prefix}{setting}={value}")
    if fit < 1:
        words += draw(st.lists(others(), max_size=1))
    return draw(st.permutations(words))


def others() -> st.SearchStrategy[str]:
    """Words that are not for a setting of a cell: whole groups, launchers, Hydra's own, names, anything."""
    groups = st.sampled_from([*CHOICES, "evaluate", "pe.encoding", "hydra", "hydra/launcher"])
    words = (
        st.builds("{}={}".format, groups, ODD),
        st.sampled_from(LAUNCHERS).map("hydra/launcher={}".format),
        st.builds("hydra.{}={}".format, st.sampled_from(HYDRA), ODD),
        st.builds("{}={}".format, st.sampled_from(["ledger", "study_name", "pe.name", "data.name"]), ODD),
        st.builds("{}={}".format, st.text(max_size=8), st.text(max_size=8)),
        st.sampled_from(WORDS),
        st.sampled_from(STUDIES).map("+study={}".format),
        st.text(max_size=10),
    )
    return st.one_of(words)


@pytest.fixture(scope="module")
def tally() -> Iterator[Counter[str]]:
    """What became of the examples."""
    counts: Counter[str] = Counter()
    yield counts
    print("", *(f"{count} {what}" for what, count in sorted(counts.items())), sep="\n")


@pytest.fixture(scope="module", autouse=True)
def text(tmp_path_factory) -> Iterator[Path]:
    """A small text, which is the named texts as well; nothing is downloaded, nor written to the checkout."""
    path = tmp_path_factory.mktemp("text") / "small.txt"
    path.write_text("\n".join(f"{number * 7919 % 1009} of them, and {number**2 % 977}" for number in range(3000)))

    def offline(*_: Any, **__: Any) -> None:
        raise OSError("there is no network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "standard_library", lambda: [path])
        patch.setattr(corpus, "shipped_file", lambda name: path)
        patch.setattr("pooch.retrieve", offline)
        patch.chdir(path.parent)
        yield path


@contextmanager
def bounded() -> Iterator[None]:
    """What is inside ends soon and takes no more memory than there is."""

    def hangs(*_: Any) -> None:
        raise BlockingIOError(f"it hangs for {SECONDS} s")

    before, (soft, hard) = signal.signal(signal.SIGALRM, hangs), resource.getrlimit(resource.RLIMIT_AS)
    has = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + MEMORY, hard))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def require_one_line(error: Exception) -> None:
    """It is of a rule that was broken, not of code that was; and reads well."""
    line = in_one_line(error)
    assert isinstance(error, (ValueError, HydraException, OmegaConfBaseException)), line
    assert not isinstance(error, (UnicodeError, InstantiationException)), line
    assert len(line.splitlines()) == 1
    assert " " in line, line
    assert "Error(" not in line, line


def composed(words: list[str], multirun: bool = False) -> list[Cell] | None:
    """The first cells that are asked for, or None if they are refused in one line."""
    given = [f"ledger={LEDGER}", *config.as_lists(words)]
    try:
        return [
            Cell.from_config(cfg)
            for cfg in config.expand_overrides(config.sweep_overrides(given) if multirun else given, multirun)[:3]
        ]
    except Exception as error:
        require_one_line(error)
        return None


def resolved(cell: Cell) -> dict[str, Any]:
    return OmegaConf.to_container(cell.cfg, resolve=True)


@pytest.mark.long
@given(asked(), st.integers(0, 9))
def test_overrides_make_a_cell_or_are_refused_in_one_line(tally, words, number):
    with bounded():
        sweep = number == 0 and not any("study" in word for word in words)  # studies have hundreds of cells
        cells = composed(words, multirun=sweep)
        what = "refused" if cells is None else "composed"
        event(what)
        tally[what] += 1
        for cell in cells or []:
            assert digest(Cell.from_config(OmegaConf.create(resolved(cell))).identity) == digest(cell.identity)
    assert not LEDGER.exists()


def spelled(draw: st.DrawFn, word: str, cell: Cell) -> str:
    """An override of a cell in other letters."""
    key, _, text = word.partition("=")
    if "@" in key or key in CHOICES or "/" in key:
        return word
    value, forms = OmegaConf.select(cell.cfg, key), [text]
    loose = key.startswith(("pe.", "data.")) and of_cell(cell).get(key, NAME).holds(1.5)
    if isinstance(value, float) or (loose and isinstance(value, int)):
        forms += [f"{value:.17e}", repr(float(value)), *([str(int(value))] if value == int(value) else [])]
    elif isinstance(value, str) and text == value:
        forms += [f"'{value}'", f'"{value}"']
    return f"{draw(st.sampled_from(['', '++']))}{key}={draw(st.sampled_from(forms))}"


def of_cell(cell: Cell) -> dict[str, Range]:
    """Return the ranges that the classes of a cell declare, by setting."""
    found = {}
    for path in ("pe", "pe.encoding", "data"):
        leaf = OmegaConf.select(cell.cfg, path) or {}
        found |= {f"{path}.{option}": one for option, one in declared_ranges(leaf.get("_target_")).items()}
    return found


def reordered(tree: Any) -> Any:
    """The same with all keys in another order."""
    return {key: reordered(tree[key]) for key in reversed(tree)} if isinstance(tree, dict) else tree


MATTERS_NOT = [
    *("logger=none", "logger=csv", "study_name=mine", "hydra/launcher=basic", "trainer.log_every=7"),
    *("trainer.save_every=0", "ledger=elsewhere", "evaluate.offset=[0,3]", "probe=[rank]", "trainer.profiler=simple"),
]


@given(st.data())
@settings(max_examples=EXAMPLES // 10)
def test_equal_meanings_have_equal_hashes(tally, data):
    words = data.draw(asked(fit=1))
    with bounded():
        (cell,) = composed(words) or reject()
        name, whole = digest(cell.identity), resolved(cell)
        known = config.flatten_settings({group: whole[group] for group in ("pe", "data", "model", "optimizer")})
        refused = set() if cell.cfg.model.parametrization == "mup" else {"model.base_width", "model.base_head_dim"}
        out = data.draw(st.lists(st.sampled_from(sorted(known.keys() - refused)), max_size=4, unique=True))
        out = [f"{key}={shown(OmegaConf.select(cell.cfg, key))}" for key in out if "'" not in str(known[key])]
        taken = {word.partition("=")[0].partition(".")[0] for word in words}
        extra = data.draw(
            st.lists(st.sampled_from(MATTERS_NOT), max_size=3, unique_by=lambda word: word.partition("=")[0])
        )
        extra = [word for word in extra if word.partition("=")[0].partition(".")[0] not in taken]
        again = [*[spelled(data.draw, word, cell) for word in [*words, *out]], *extra]
        for other in composed(data.draw(st.permutations(again))) or [None]:
            assert other is not None, again
            assert digest(other.identity) == name, again
        assert digest(Cell.from_config(OmegaConf.create(reordered(whole))).identity) == name
    tally["equal meanings"] += 1


def meaning(cell: Cell) -> dict[str, Any]:
    """What determines the result, as the resolved config has it."""
    whole, own = resolved(cell), cell.dataset.content()
    found = {key: whole[key] for key in ("pe", "data", "model", "optimizer", "seed")}
    found["data"] = {key: value for key, value in found["data"].items() if key not in own} | own
    found["model"] = {key: value for key, value in found["model"].items() if key != "checkpointing"}  # on a CPU
    return found | {"trainer": {key: whole["trainer"][key] for key in ("batch_size", "clip", "precision")}}


@pytest.mark.long
@given(st.data())
@settings(max_examples=EXAMPLES // 10)
def test_other_meanings_have_other_hashes(tally, data):
    words = data.draw(asked(fit=1))
    with bounded():
        (cell,) = composed(words) or reject()
        known = config.flatten_settings(meaning(cell))
        own = of_cell(cell)
        with_range = sorted(key for key in known if key in RANGES | own and key[-5:] != ".name")
        setting = data.draw(st.sampled_from(with_range))
        more = f"{setting}={shown(data.draw(st.sampled_from(fitting(setting, own))))}"
        (other,) = composed([*words, more]) or reject()
        same = meaning(cell) == meaning(other)
        assert (digest(cell.identity) == digest(other.identity)) == same, (words, more)
    tally["the same meaning" if same else "another meaning"] += 1


def small(words: list[str], text: Path) -> list[str]:
    """Overrides before those that are drawn, so that a cell is trained in a moment."""
    data = next((word[5:] for word in words if word.startswith("data=") and word[5:] in CHOICES["data"]), "structured")
    sizes = {"train": 256, "validation": 32, "test": 32, "demo": 1, "train_sequences": 64, "test_sequences": 8}
    given = [f"data.{key}={sizes[key]}" for key in written("data", data) if key in sizes]
    if data in ("clm", "mlm"):
        given += [f"data.path={text}", "data.length=16"]
    given += (
        [] if any(word.lstrip("+~").startswith("logger") for word in words) else ["logger=none"]
    )  # W&B loads slowly
    return [word for word in TINY if not word.startswith("data")] + ["epochs=1", "trainer.batch_size=64", *given]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.long
@given(asked(fit=0.85, most=3))
@settings(max_examples=EXAMPLES // 15)
def test_the_program_ends_with_a_cell_or_in_one_line(tmp_path_factory, text, tally, words):
    elsewhere = (
        "ledger",
        "data.path",
        "data.cache",
        "data.corpus",
        "workers",
        "hydra.run.dir",
        "hydra.output_subdir",
        "-m",
        "--multirun",
        "--",
        "+study",
    )
    words = [word for word in words if not word.lstrip("+~").startswith(elsewhere) and "\0" not in word]
    words = [word.encode(errors="surrogateescape").decode(errors="surrogateescape") for word in words if _typed(word)]
    folder = tmp_path_factory.mktemp("program")
    here = folder / "here"
    here.mkdir()
    env = {"HOME": str(folder / "home"), "TRITON_INTERPRET": "0"}  # interpreted, a cell takes minutes
    given = [*small(words, text), *words]
    program = Program(given, folder / "printed", here, env, partial(limit_memory, MEMORY / 2**20))
    status, _, errors = program.wait(SECONDS)
    assert "Traceback" not in errors, (given, errors)
    stops = [(run, epochs) for run in Ledger(here / "ledger").runs() for epochs in run.checkpoints()]
    for run, epochs in stops:
        run.identity()
        run.verify(epochs)
    if status == 0:
        assert len(stops) == 1, (given, errors)
    else:
        assert status == 1, (given, status, errors)
        assert errors.startswith("error: "), (given, errors)
        assert len(errors.splitlines()) == 1, (given, errors)
    outside = {path for path in files(folder) if not path.startswith(("here/ledger/", "printed/"))}
    assert outside <= {"here", "here/ledger", "printed"}, (given, outside)
    what = (
        "finished" if status == 0 else "failed while it ran" if (here / "ledger").exists() else "refused by the program"
    )
    event(what)
    tally[what] += 1


def _typed(word: str) -> bool:
    """Whether a word can be typed: a terminal has no half of a character, but bytes that are none."""
    try:
        word.encode(errors="surrogateescape")
    except UnicodeError:
        return False
    return True
