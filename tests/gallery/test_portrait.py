"""Portraits say what an encoding is, and are kept until something that they depend on changes."""

import inspect
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pe_lab import config
from pe_lab.audit.audited_encoding import AuditedEncoding
from pe_lab.encodings.families.bias import Alibi
from pe_lab.gallery import portrait as made_by
from pe_lab.gallery.gallery_data import GalleryData
from pe_lab.gallery.portrait import Portrait, portrait
from pe_lab.system.files import digest


def test_a_portrait_has_class_source_family_and_options(content: GalleryData) -> None:
    found = content.portraits["alibi"]
    assert found.code == inspect.getsource(Alibi)
    assert found.family == "Encodings that add a fixed function of distance to the logits"
    assert found.options == {"name": "alibi", "slopes": "geometric"}
    assert (found.causal_only, found.on_grid, found.reads_marks) == (False, False, False)
    assert content.portraits["none"].family == "No encoding"
    assert content.portraits["rope_2d"].on_grid
    assert "<svg" in found.picture
    assert "prefers-color-scheme: dark" in found.picture


def test_a_portrait_is_read_again_until_the_values_change(
    cache: Path, content: GalleryData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made_by, "_make", lambda *_: pytest.fail("made again"))
    sliders = dict(content.definitions["alibi"].sliders)
    assert portrait("alibi", sliders, cache, audited=True) == content.portraits["alibi"]
    with pytest.raises(pytest.fail.Exception):
        portrait("alibi", {"slopes": ("geometric", "harmonic", "other")}, cache, audited=True)
    with pytest.raises(pytest.fail.Exception):
        portrait("alibi", sliders, cache, audited=False)


def test_a_portrait_is_made_again_when_code_changes(
    cache: Path, content: GalleryData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made_by, "_make", lambda *_: pytest.fail("made again"))
    monkeypatch.setattr(made_by, "_source_digest", lambda: "of another version")
    with pytest.raises(pytest.fail.Exception):
        portrait("alibi", dict(content.definitions["alibi"].sliders), cache, audited=True)


def test_what_portraits_depend_on_has_all_that_they_are_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    bytes_of = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.as_posix()) or bytes_of(path))
    made_by._source_digest.__wrapped__()
    ends = ("families/bias.py", "attention/reference.py", "model/transformer.py", "audit/measures.py", "pe/alibi.yaml")
    for end in (*ends, "gallery/kernels.py", "gallery/portrait.py", "attention/triton/__init__.py"):
        assert any(path.endswith(end) for path in read), end


@pytest.mark.parametrize(
    ("name", "lacks"), [("alibi", ""), ("stick_breaking", ""), ("shaw", "content_bias"), ("cope", "content_bias")]
)
def test_fused_kernels_are_those_that_have_a_place_for_all_of_it(name: str, lacks: str) -> None:
    found = made_by._unsupported_terms(AuditedEncoding.of(name))
    assert (lacks in found) if lacks else found == "", found


@pytest.mark.parametrize("name", ["alibi", "heads", "dape", "randomized_rope", "rope_mixed"])
def test_settings_are_those_that_are_composed(name: str) -> None:
    (cfg,) = config.expand_overrides([f"pe={name}"], multirun=False)
    assert made_by._leaf(name) == cfg.pe


def test_a_folder_without_permission_is_read_and_named_where_it_lacks_a_portrait(
    cache: Path, content: GalleryData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe_lab.gallery.portrait.is_writable", lambda folder: folder != cache)
    sliders = dict(content.definitions["alibi"].sliders)
    assert portrait("alibi", sliders, cache, audited=True) == content.portraits["alibi"]
    message = f"--cache lacks alibi, and must be a folder that can be written to, got '{cache}'"
    with pytest.raises(ValueError, match=re.escape(message)):
        portrait("alibi", {"slopes": ("geometric", "harmonic")}, cache, audited=True)


def _with(**more: Any) -> Callable[[Path], None]:
    """Change the entry of a portrait, and give it the digest of what it has then."""

    def change(path: Path) -> None:
        value = json.loads(path.read_text(encoding="utf-8"))["portrait"] | more
        value = {key: one for key, one in value.items() if one is not None}
        path.write_text(json.dumps({"portrait": value, "digest": digest(value)}), encoding="utf-8")

    return change


def _linked(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "damage",
    [
        _with(picture=5),
        _with(extra=1),
        _with(code=None),
        _with(code=["x"]),
        _with(name="rope"),
        _with(properties={"a": "b"}),
        _with(curves={}),
        _with(curves={"sliders": [], "quantity": "", "unit": "", "distances": [0], "curves": {"": [["x"]]}}),
        lambda path: path.write_text(path.read_text().replace("class Alibi", "class Other")),
        lambda path: path.write_text("[]"),
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        _linked,
        _fifo,
    ],
)
def test_an_entry_that_is_not_what_was_written_is_made_anew(
    damage: Callable[[Path], None],
    content: GalleryData,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (entry,) = cache.glob("alibi-*.json")
    path = Path(shutil.copy(entry, tmp_path))
    damage(path)
    expected = content.portraits["alibi"]
    monkeypatch.setattr(made_by, "_make", lambda *_: expected)
    assert _read(tmp_path, content) == expected
    assert capsys.readouterr().err.count(str(path)) == 1
    monkeypatch.setattr(made_by, "_make", lambda *_: pytest.fail("made again"))
    assert _read(tmp_path, content) == expected
    assert capsys.readouterr().err == ""


def _read(folder: Path, content: GalleryData) -> Portrait:
    return portrait("alibi", dict(content.definitions["alibi"].sliders), folder, audited=True)
