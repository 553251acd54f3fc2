"""Parts of encodings: names on the command line, complete settings in the config and in the identity."""

import re
from pathlib import Path

import pytest

from helpers.configs import compose_config, pe_settings
from pe_lab import config
from pe_lab.config import expand_overrides, resolve_config
from pe_lab.encodings.families.rotary import RoPE
from pe_lab.experiment.cell import Cell
from pe_lab.results.cell_rows import describe_cells, settings_of

SUM = ["pe=sum", "model.depth=2", "trainer.device=cpu"]


def parts(*overrides: str) -> list[dict[str, object]]:
    return resolve_config(compose_config(*SUM, *overrides).pe)["parts"]


def test_names_become_the_settings_of_their_files() -> None:
    rope, alibi = (resolve_config(pe_settings(name)) for name in ("rope", "alibi"))
    assert parts("pe.parts=[rope,alibi]") == [rope, alibi]
    assert parts("pe.parts=[{name:rope,theta:500.0},alibi]") == [rope | {"theta": 500.0}, alibi]
    assert parts("pe.parts=[{name:rope,pairing:half}]") == [rope | {"pairing": "half"}]
    (nested,) = parts("pe.parts=[{name:heads,parts:[alibi,none],shares:[1,3]}]")
    assert [part["name"] for part in nested["parts"]] == ["alibi", "none"]
    assert nested["shares"] == [1, 3]


def test_a_part_inside_of_another_encoding_is_filled_too() -> None:
    cfg = expand_overrides(["pe=randomized_rope", "pe@pe.encoding=sum"], False)[0]
    assert [part.name for part in cfg.pe.encoding.parts] == ["rope", "alibi"]
    assert all("_target_" in part for part in cfg.pe.encoding.parts)


def test_a_part_takes_another_encoding_by_its_name_or_with_settings_of_it() -> None:
    alibi, dape = (dict(resolve_config(expand_overrides([f"pe={name}"], False)[0].pe)) for name in ("alibi", "dape"))
    assert parts("pe.parts=[{name:dape,encoding:alibi}]") == [dape | {"encoding": alibi}]
    (found,) = parts("pe.parts=[{name:dape,width:8,encoding:{name:alibi,slopes:harmonic}}]")
    assert found == dape | {"width": 8, "encoding": alibi | {"slopes": "harmonic"}}
    for wrong, says in (
        ("encoding:nothing", r"^pe\.parts\[0\]\.encoding must be an encoding, or .*, got 'nothing': there are "),
        ("encoding:{name:alibi,theta:3}", r"^pe\.parts\[0\]\.encoding=alibi has the settings slopes: got theta=3$"),
    ):
        with pytest.raises(ValueError, match=says):
            parts(f"pe.parts=[{{name:dape,{wrong}}}]")


def test_cells_of_a_sweep_have_their_own_parts() -> None:
    cfgs = expand_overrides(["pe=sum", "pe.parts=[rope,alibi],[rope,t5]"], True)
    assert [[part.name for part in cfg.pe.parts] for cfg in cfgs] == [["rope", "alibi"], ["rope", "t5"]]


def test_a_users_encoding_can_be_a_part(tmp_path: Path) -> None:
    (tmp_path / "conf" / "pe").mkdir(parents=True)
    (tmp_path / "conf" / "pe" / "mine.yaml").write_text(
        "_target_: pe_lab.encodings.rotary.RoPE\n_partial_: true\nname: mine\ntheta: 7.0\npairing: half\n"
    )
    with config.add_config_dirs(["--config-dir", str(tmp_path / "conf"), *SUM, "pe.parts=[mine,alibi]"]) as words:
        assert [part.name for part in expand_overrides(words, False)[0].pe.parts] == ["mine", "alibi"]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("pe.parts=[]", "pe.parts must be a list that is not empty, got []"),
        ("pe.parts=rope", "pe.parts must be a list that is not empty, got 'rope'"),
        (
            "pe.parts=[ropee,alibi]",
            "pe.parts[0] must be an encoding, or {name: an encoding, and settings of it}, got 'ropee': did you mean",
        ),
        ("pe.parts=[rope,3]", "pe.parts[1] must be an encoding, or {name: an encoding, and settings of it}, got 3"),
        ("pe.parts=[{theta:3}]", "pe.parts[0] must be an encoding, or {name: an encoding, and settings of it}, got {"),
        (
            "pe.parts=[{name:rope,thet:3}]",
            "pe.parts[0]=rope has the settings theta, pairing, rotary_dim: got thet=3: did you mean theta?",
        ),
        (
            "pe.parts=[{name:rope,_partial_:false}]",
            "pe.parts[0]=rope has the settings theta, pairing, rotary_dim: got _partial_=False",
        ),
        ("pe.parts=[{name:rope,theta:-3}]", "pe.parts[0].theta must be a positive number, got -3"),
        ("pe.parts=[{name:sum,parts:[{name:rope,theta:0}]}]", "pe.parts[0].parts[0].theta must be a positive number, "),
    ],
)
def test_bad_parts_are_named_before_torch_is_needed(override: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}") as caught:
        expand_overrides([*SUM, override], False)
    assert "\n" not in str(caught.value)


# -- identity and name -------------------------------------------------------------------------------------------------


def identity(*overrides: str) -> dict[str, object]:
    return Cell.from_config(expand_overrides([*SUM, *overrides], False)[0]).identity["pe"]


def test_a_part_has_the_identity_that_it_has_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options, revision; spelled in another way it is the same."""
    found = identity("pe.parts=[rope,alibi]")
    alone = Cell.from_config(expand_overrides(["pe=rope", "trainer.device=cpu"], False)[0]).identity["pe"]
    assert found["parts"][0] == alone
    assert identity("pe.parts=[{name:rope,theta:10000},alibi]") == found
    assert identity("pe.parts=[alibi,rope]") != found
    assert identity("pe.parts=[{name:rope,theta:500},alibi]") != found
    monkeypatch.setattr(RoPE, "revision", 99)
    assert identity("pe.parts=[rope,alibi]") != found


def labels(*overrides: str) -> list[str]:
    return list(describe_cells([settings_of(cfg) for cfg in expand_overrides([*SUM, *overrides], True)])["pe"])


def test_tables_name_the_parts_and_the_options_that_differ() -> None:
    assert labels() == ["sum[rope+alibi]"]
    assert labels("pe.parts=[rope,alibi],[rope,t5]") == ["sum[rope+alibi]", "sum[rope+t5]"]
    assert labels("pe.parts=[rope,{name:heads,parts:[alibi,none]}]") == ["sum[rope+heads[alibi+none]]"]
    assert labels("pe.parts=[rope,alibi],[{name:rope,theta:5},alibi],[t5]") == [
        "sum[rope+alibi] parts.0.theta=10000",
        "sum[rope+alibi] parts.0.theta=5",
        "sum[t5]",
    ]
