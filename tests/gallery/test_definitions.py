"""Every encoding has an entry in the gallery, and what the entries name exists."""

import ast
import csv
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hydra.utils import get_class
from omegaconf import OmegaConf

from pe_lab.attention import attend
from pe_lab.config import config_folder
from pe_lab.encodings.families.table import Learnable
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.named import make
from pe_lab.encodings.stack import Stack
from pe_lab.gallery import definitions as gallery
from pe_lab.gallery.definitions import FILE, Definition, definitions, read
from pe_lab.gallery.formulas import mathml
from pe_lab.replication import Entry, load_entries

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FILES = {path.stem: path for path in (config_folder() / "pe").glob("*.yaml")}
NAMES = list(definitions())
CLAIMS = {
    name[7:]: entry for name, entry in load_entries().items() if name.startswith("claims/") and not entry.everywhere
}
ARXIV = re.compile(r"https://arxiv\.org/abs/(\d{4}\.\d{5})")
GREEK = re.compile(
    r"\\(alpha|beta|gamma|delta|zeta|theta|kappa|lambda|mu|rho|sigma|varphi|psi|omega|Gamma)(?![A-Za-z])"
)
LENGTH, WIDTH, HEADS = 64, 64, 4  # those of the audit, which draws the curves
ON_GRID = ("rope_2d", "rope_mixed", "sinusoidal_2d", "learnable_2d")


def one_of_each() -> Iterator[tuple[Definition, str]]:
    """Yield each text that a reader sees, with its definition."""
    for one in definitions().values():
        yield one, one.title
        yield one, one.symbols
        for failure in one.failures:
            yield one, failure.text
        for equality in (*one.equals, *one.published):
            yield one, equality.when


def urls(one: Definition) -> list[str]:
    """Return all URLs of a definition."""
    found = [failure.source for failure in one.failures] + [other.url for other in one.published] + [one.source.url]
    return [url for url in found if url is not None]


def page(name: str) -> str:
    """Return the text of a page of the documentation, with what it includes."""
    text = (DOCS / name).read_text()
    return re.sub(r"\[(\S+)\]\(\S+ <!-- include -->", lambda found: (ROOT / found[1]).read_text(), text)


def sections(name: str) -> dict[str, str]:
    """Return the sections of a page by the anchor of their heading."""
    found = {}
    for part in re.split(r"^(?=#+ )", page(name), flags=re.M):
        heading = part.partition("\n")[0].lstrip("# ")
        words = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
        found[re.sub(r"[-\s]+", "-", words)] = part
    return found


def test_every_encoding_has_an_entry_in_the_order_of_the_documentation() -> None:
    listed = re.findall(r"^\| \[`(\w+)`\]\[pe_lab\.", (DOCS / "encodings.md").read_text(), re.M)
    assert listed == NAMES
    assert set(listed) == set(FILES)
    assert all(one.name == name for name, one in definitions().items())


def test_reading_needs_no_torch() -> None:
    code = "import sys; from pe_lab.gallery import definitions as d; d.definitions(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("name", NAMES)
def test_every_formula_becomes_mathml(name: str) -> None:
    pytest.importorskip("latex2mathml", reason="latex2mathml is not installed")
    for formula in definitions()[name].formula:
        tree = ElementTree.fromstring(mathml(formula))  # refuses a bare & of an alignment
        assert tree.tag.endswith("}math")
        assert tree.get("display") == "block"
        words = [element.text for element in tree.iter() if element.text]
        assert not [element for element in tree.iter() if element.tag.endswith("}merror")]
        assert not [word for word in words if "\\" in word]  # a command that it does not know
        assert not [child for child in tree.iter("{*}mtd") if not len(child)]


def test_a_formula_that_cannot_be_read_is_named() -> None:
    pytest.importorskip("latex2mathml", reason="latex2mathml is not installed")
    with pytest.raises(ValueError, match=r"^a formula must be LaTeX that latex2mathml reads, got x_\{ \("):
        mathml("x_{")


def test_without_latex2mathml_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "latex2mathml.converter", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"latex2mathml, which is not installed: pip install 'pe_lab\[docs\]'$"
    ):
        mathml("x")


@pytest.mark.parametrize("name", NAMES)
def test_every_greek_letter_of_the_formulas_is_explained(name: str) -> None:
    """In words, or by a formula that begins with it."""
    one = definitions()[name]
    parts = [part for formula in one.formula for part in formula.split(r"\quad ")]
    defined = {found[1] for found in map(GREEK.match, parts) if found}
    used = {letter for part in parts for letter in GREEK.findall(part)}
    words = set(re.findall(r"\w+", one.symbols))
    assert not {letter for letter in used - defined if letter.removeprefix("var") not in words}


def test_texts_are_sentences_in_characters_of_a_keyboard() -> None:
    tasks = {path.stem for path in (config_folder() / "data").glob("*.yaml")}
    for one, text in one_of_each():
        assert text.isascii(), (one.name, text)
        assert "  " not in text, (one.name, text)
        assert not set(re.findall(r"`(\w+)`", text)) - {*NAMES, *tasks}, (one.name, text)
    for one in definitions().values():
        for text in (one.symbols, *(failure.text for failure in one.failures)):
            assert text[-1] == ".", (one.name, text)
            assert text[0].isupper() or one.symbols == text, (one.name, text)
        assert one.title[0].isupper(), one.name
        assert one.title[-1] != ".", one.name


# -- sources and evidence ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_source_is_that_of_the_class(name: str) -> None:
    source = definitions()[name].source
    ours = (get_class(OmegaConf.load(FILES[name])._target_).__doc__ or "") + FILES[name].read_text()
    if source.url is None:
        assert source.year is None
        assert source.title.startswith("No publication") or "seed report" in ours.lower()
    elif found := ARXIV.fullmatch(source.url):
        assert f"arXiv:{found[1]}" in ours
        assert source.year == 2000 + int(found[1][:2])
    else:  # released code without a paper
        assert source.url.removeprefix("https://") in ours
        assert f"{source.year}" in ours


@pytest.mark.parametrize("name", NAMES)
def test_every_publication_is_one_of_our_documentation(name: str) -> None:
    known = "".join(path.read_text() for path in (*DOCS.glob("*.md"), *(ROOT / "pe_lab/encodings").rglob("*.py")))
    for url in urls(definitions()[name]):
        assert url.startswith("https://")
        if "arxiv" in url:
            found = ARXIV.fullmatch(url)
            assert found is not None, url
            assert f"arXiv:{found[1]}" in known, url


def spoken_of(claim: Entry) -> set[object]:
    """Return the encodings that the tests of a claim name; none, where it compares all."""
    asked = [rows.get("pe", ()) for test in claim.values.values() for rows in (test.value, *test.others)]
    return {name for names in asked for name in (names if isinstance(names, tuple) else [names])}


@pytest.mark.parametrize("name", NAMES)
def test_claims_exist_and_speak_of_the_encoding(name: str) -> None:
    one = definitions()[name]
    assert set(one.claims) == {claim for claim, entry in CLAIMS.items() if name in spoken_of(entry)}
    for failure in one.failures:
        assert failure.claim is None or failure.claim in one.claims


@pytest.mark.parametrize("name", NAMES)
def test_measured_failures_have_the_numbers_of_their_section(name: str) -> None:
    for failure in definitions()[name].failures:
        if failure.row is None:
            continue
        where, _, anchor = failure.row.partition("#")
        section = sections(where)[anchor]
        assert (ROOT / failure.file).is_file()
        assert failure.heading.replace(",", "").replace(" ", "-") == anchor
        numbers = re.findall(r"\d+\.\d+", failure.text)
        assert not [number for number in numbers if number not in section], failure.text
        if anchor.startswith("2026"):
            assert f"`{name}`" in section or name.partition("_")[0] == "randomized", failure.text
        if found := re.search(r"takes (\d+) times as long", failure.text):
            with (ROOT / "sweeps/results/audit/table.csv").open(encoding="utf-8") as file:
                times = {row["pe"]: float(row["time_1024"] or "nan") for row in csv.DictReader(file)}
            assert int(found[1]) == round(times[name])


# -- equalities --------------------------------------------------------------------------------------------------------


def functions(path: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", NAMES)
def test_tests_of_equalities_exist(name: str) -> None:
    one = definitions()[name]
    for equality in (*one.equals, *one.published):
        if equality.test is not None:
            path, _, function = equality.test.partition("::")
            assert function in functions(path), equality.test


def test_an_equality_stands_at_both_encodings_and_names_the_one_it_means() -> None:
    ends = [(one.name, other.name, other.when) for one in definitions().values() for other in one.equals]
    assert len(set(ends)) == len(ends)
    for name, other, when in ends:
        assert (other, name, when) in ends
        assert f"`{name}`" in when or f"`{other}`" in when
    written = FILE.read_text().count("when:")
    published = sum(len(one.published) for one in definitions().values())
    assert len(ends) == 2 * (written - published)


def test_every_identity_with_a_publication_is_listed() -> None:
    """Those that docs/proofs.md lists by an identity with an arXiv number."""
    listed = set(re.findall(r"^\| `(\w+)` \| identity: .*arXiv", (DOCS / "proofs.md").read_text(), re.M))
    assert listed == {one.name for one in definitions().values() if one.published}


# -- sliders -----------------------------------------------------------------------------------------------------------

SLIDERS = [(name, option) for name, one in definitions().items() for option in one.sliders]


def stack(name: str, **options: Any) -> Stack:
    """Return an encoding with these options, for sizes that the audit has."""
    if name == "randomized_learnable":  # in its file the table is as long as the range to draw from
        options["encoding"] = partial(Learnable, **options)
    grid = 8 if name in ON_GRID else None
    return make(name, width=WIDTH, num_heads=HEADS, depth=1, length=LENGTH, grid_width=grid, **options)


def attended(name: str, **options: Any) -> torch.Tensor:
    """Return attention of equal tokens with different values, encoded by an encoding with these options."""
    torch.manual_seed(0)
    encoded = stack(name, **options).double().eval()
    torch.manual_seed(1)
    token, weights = torch.randn(WIDTH, dtype=torch.float64), torch.randn(3, WIDTH, WIDTH, dtype=torch.float64) / 8
    layout = replace(Layout.whole(1, LENGTH, True, 8 if name in ON_GRID else None), seed=3)
    x, positions = encoded(token.expand(1, LENGTH, WIDTH), layout)
    both, v, terms, _ = positions.layer(0, x)
    q, k, v = (
        (h @ weight).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for h, weight in zip((both, both, v), weights, strict=True)
    )
    v = v + torch.randn(LENGTH, 1, dtype=torch.float64)  # equal values would have one mean
    return attend(q, k, v, terms, positions.layout, "reference")


@pytest.mark.parametrize("name", [name for name, one in definitions().items() if one.sliders])
def test_sliders_are_options_that_the_class_accepts(name: str) -> None:
    sliders, options = definitions()[name].sliders, OmegaConf.load(FILES[name])
    for option, values in sliders.items():
        assert option in options
        assert options[option] in values
        rest = [value for value in values if value is not None]
        assert rest == sorted(rest)
        assert None not in values[1:]
    for values in product(*sliders.values()):
        stack(name, **dict(zip(sliders, values, strict=True)))


@pytest.mark.parametrize(("name", "option"), SLIDERS)
def test_a_slider_changes_attention(name: str, option: str) -> None:
    sliders = definitions()[name].sliders
    others = {other: values[-1] for other, values in sliders.items() if other != option}
    least, most = (attended(name, **others, **{option: sliders[option][at]}) for at in (0, -1))
    assert least.isfinite().all()
    assert not torch.allclose(least, most, rtol=1e-6, atol=1e-9)


# -- what is refused ---------------------------------------------------------------------------------------------------

ENTRY = """
one:
  title: One
  formula: ['x_{i}']
  symbols: x is a number.
  enters: logits
  source: {title: A paper, year: 2021, url: https://arxiv.org/abs/2104.09864}
  failures: [{text: It fails., source: https://arxiv.org/abs/2104.09864}]
  equals: [{name: two, when: '`one` is two', test: tests/a.py::test_a}]
  claims: [blind]
  sliders: {theta: [1, 2, 3]}
two:
  title: Two
  formula: ['y = \\{ z \\}']
  symbols: y is a number.
  enters: [logits, values]
  source: {title: Nothing, year: null, url: null}
  failures: []
  equals: []
  published: [{title: Deux, url: https://example.org/two, when: it is French, test: null}]
  claims: []
  sliders: {}
"""


def test_an_entry_is_read() -> None:
    one, two = read(ENTRY.encode()).values()
    assert (one.title, one.formula, one.enters, one.claims) == ("One", ("x_{i}",), ("logits",), ("blind",))
    assert one.source == gallery.Source("A paper", 2021, "https://arxiv.org/abs/2104.09864")
    assert one.failures == (gallery.Failure("It fails.", source="https://arxiv.org/abs/2104.09864"),)
    assert one.equals == (gallery.Equality("two", "`one` is two", "tests/a.py::test_a"),)
    assert two.equals == (gallery.Equality("one", "`one` is two", "tests/a.py::test_a"),)
    assert two.published == (gallery.PublishedAs("Deux", "https://example.org/two", "it is French", None),)
    assert one.sliders == {"theta": (1, 2, 3)}
    assert two.enters == ("logits", "values")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("  title: One\n", "", "one must have the field title, got "),
        ("title: One", "title: ''", "one.title must be a text that is not empty, got ''"),
        ("title: One", "titel: One", "one must have no other fields than title, .*, got 'titel'"),
        ("'x_{i}'", "'x_{i'", "one.formula must have balanced braces, got 'x_{i'"),
        ("'x_{i}'", "'x}_{i'", "one.formula must have balanced braces, got 'x}_{i'"),
        ("['x_{i}']", "[]", "one.formula must not be empty, got "),
        ("['x_{i}']", "x_i", "one.formula must be a list, got 'x_i'"),
        ("enters: logits", "enters: keys", "one.enters must be among nowhere, .*, values, got 'keys'"),
        ("[logits, values]", "[logits, nowhere]", "two.enters must have each place once, and nowhere alone, got "),
        ("[logits, values]", "[logits, logits]", "two.enters must have each place once, and nowhere alone, got "),
        ("year: 2021", "year: '2021'", "one.source.year must be a year or null, got '2021'"),
        ("year: 2021", "year: true", "one.source.year must be a year or null, got True"),
        ("year: 2021, ", "", "one.source must have the field year, got "),
        ("2021, url: https", "2021, url: http", "one.source.url must begin with https:// and have no space, got "),
        ("fails., source: https", "fails., source: http", "one.failures.source must begin with https://"),
        (", source: https://arxiv.org/abs/2104.09864}]", "}]", "one.failures must have one of source, claim, row"),
        ("fails., ", "fails., claim: blind, ", "one.failures must have one of source, claim, row"),
        ("fails., source: https://arxiv.org/abs/2104.09864", "fails., row: a.md", "one.failures.row must be a page"),
        ("name: two", "name: three", "one.equals must name another encoding, got 'three'"),
        ("name: two", "name: one", "one.equals must name another encoding, got 'one'"),
        ("tests/a.py::test_a", "tests/a.py", "one.equals.test must be null or path.py::test_name, got "),
        ("  equals: []", "  equals: [{name: one, when: now, test: null}]", "must stand at one of the two encodings"),
        ("url: https://example.org/two", "url: two", "two.published.url must begin with https://"),
        ("[1, 2, 3]", "[1, 2]", "one.sliders.theta must be a list of 3 to 9 values, each once, got "),
        ("[1, 2, 3]", "[1, 2, 2.0]", "one.sliders.theta must be a list of 3 to 9 values, each once, got "),
        ("{theta: [1, 2, 3]}", "[1, 2, 3]", "one.sliders must have at most 2 options"),
        ("sliders: {}", "sliders: {a: [1, 2, 3], b: [1, 2, 3], c: [1, 2, 3]}", "two.sliders must have at most 2"),
        ("claims: [blind]", "claims: [1]", "one.claims must be a text that is not empty, got 1"),
        ("two:\n", "one:\n", "encodings.yaml must have each key once"),
        ("symbols: x is", "symbols: ${x} is", "encodings.yaml must have no interpolation"),
        ("claims: [blind]", "claims: &a [blind]", "encodings.yaml must have no aliases"),
        (ENTRY, "", "encodings.yaml must have an entry for each encoding, got None"),
        (ENTRY, "one: 1", "one must have the fields title, formula, .*, got 1"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(old: str, new: str, says: str) -> None:
    assert ENTRY.count(old) == 1 or old == "claims: [blind]"
    with pytest.raises(ValueError, match=says) as raised:
        read(ENTRY.replace(old, new).encode())
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith("encodings.yaml")
