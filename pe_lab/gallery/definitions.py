"""What the gallery says of each encoding: its formula, its source, known failures, equalities; read from a file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pe_lab.gallery.formulas import has_balanced_braces
from pe_lab.system.plain import abbreviate, plain_data_error, read_yaml

FILE = Path(__file__).with_name("encodings.yaml")
PLACES = ("nowhere", "token embeddings", "attention input", "logits", "attention weights", "values")
MAX_SLIDERS = 2
SLIDER_VALUES = (3, 9)  # of one slider, at least and at most
REQUIRED = ("title", "formula", "symbols", "enters", "source", "failures", "equals", "claims", "sliders")
OPTIONAL = ("published", "trained")
EVIDENCE = ("source", "claim", "row")


@dataclass(frozen=True)
class Source:
    """The publication of an encoding, or what it is where there is none.

    Attributes:
        title: of the publication; otherwise a few words.
        year: of its first version; None: there is no publication.
        url: None: the source is no public page.
    """

    title: str
    year: int | None
    url: str | None


@dataclass(frozen=True)
class Failure:
    """Something that goes wrong with an encoding, and where it was shown: one of the three places.

    Attributes:
        text: a sentence or two.
        source: the URL of a publication.
        claim: a name among the claims of conf/replication/claims.yaml.
        row: a page of the documentation with an anchor, as findings.md#2026-11-21-mutants.
    """

    text: str
    source: str | None = None
    claim: str | None = None
    row: str | None = None

    @property
    def file(self) -> str:
        """The file of the repository that `row` links to."""
        page = str(self.row).partition("#")[0]
        return "sweeps/LOG.md" if page == "findings.md" else f"docs/{page}"

    @property
    def heading(self) -> str:
        """The heading that `row` links to, in lower case: of a finding its date, then its title."""
        words = str(self.row).partition("#")[2].replace("-", " ")
        return re.sub(r"^(\d{4}) (\d\d) (\d\d) ", r"\1-\2-\3, ", words)


@dataclass(frozen=True)
class Equality:
    """Another encoding of conf/pe that has the same numbers under a condition.

    In the file it stands at one of the two; `definitions` gives it to both.

    Attributes:
        name: of the other encoding.
        when: the condition, a phrase that follows the word "when" and reads the same at both.
        test: path::function of a test that shows it; None: it follows from the formulas, and no test shows it.
    """

    name: str
    when: str
    test: str | None


@dataclass(frozen=True)
class PublishedAs:
    """An encoding published under another name that is this one under a condition.

    Attributes:
        title: its name in the publication.
        url: of the publication.
        when, test: as Equality.
    """

    title: str
    url: str
    when: str
    test: str | None


@dataclass(frozen=True)
class Definition:
    """What the gallery says of an encoding. In texts, names of encodings and tasks stand between backticks.

    Attributes:
        name: the file stem in conf/pe.
        title: its name in words.
        formula: LaTeX, each a displayed equation.
        symbols: what the symbols of the formulas are.
        enters: places where position enters the transformer, of PLACES.
        source: the publication.
        failures: known ones, each with its evidence.
        equals: encodings of conf/pe with the same numbers under a condition.
        published: encodings published under other names with the same numbers.
        claims: names among the claims of conf/replication/claims.yaml that speak about it.
        sliders: options that change its curve over distance, and the values to offer, the default among them; None,
            where it is the default, comes first.
        trained: how its training here differs from that of its publication, a sentence; empty: not in kind.
    """

    name: str
    title: str
    formula: tuple[str, ...]
    symbols: str
    enters: tuple[str, ...]
    source: Source
    failures: tuple[Failure, ...] = ()
    equals: tuple[Equality, ...] = ()
    published: tuple[PublishedAs, ...] = ()
    claims: tuple[str, ...] = ()
    sliders: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    trained: str = ""


@cache
def definitions() -> dict[str, Definition]:
    """Return the definitions of all encodings by name, in the order of docs/encodings.md.

    Raises:
        ValueError: the file is damaged; the message names the encoding and the field.
    """
    return read(FILE.read_bytes())


def read(content: bytes) -> dict[str, Definition]:
    """Read and check a file of definitions.

    Raises:
        ValueError: it is not one; the message names the encoding and the field.
    """
    try:
        tree = read_yaml(content)
    except ValueError as error:
        raise ValueError(f"{FILE.name} {error}") from None
    if words := plain_data_error(tree):
        raise ValueError(f"{FILE.name} {words}")
    if not isinstance(tree, dict) or not tree:
        raise ValueError(f"{FILE.name} must have an entry for each encoding, got {abbreviate(tree)}")
    entries = {name: _definition(name, entry) for name, entry in tree.items()}
    for name, definition in entries.items():
        for equality in definition.equals:
            if equality.name not in entries or equality.name == name:
                raise _wrong(f"{name}.equals", "must name another encoding", equality.name)
            if any(back.name == name for back in entries[equality.name].equals):
                raise _wrong(f"{name}.equals", "must stand at one of the two encodings", equality.name)
    return {name: _with_both_ends(definition, entries) for name, definition in entries.items()}


def _with_both_ends(definition: Definition, entries: Mapping[str, Definition]) -> Definition:
    """Add the equalities that stand at the other encoding."""
    back = [
        replace(equality, name=other.name)
        for other in entries.values()
        for equality in other.equals
        if equality.name == definition.name
    ]
    return replace(definition, equals=(*definition.equals, *back))


def _definition(name: str, entry: Any) -> Definition:
    fields = _fields(name, entry, REQUIRED, OPTIONAL)
    formula = _texts(f"{name}.formula", fields["formula"])
    for latex in formula:
        if not has_balanced_braces(latex):
            raise _wrong(f"{name}.formula", "must have balanced braces", latex)
    return Definition(
        name=name,
        title=_text(f"{name}.title", fields["title"]),
        formula=formula,
        symbols=_text(f"{name}.symbols", fields["symbols"]),
        enters=_places(f"{name}.enters", fields["enters"]),
        source=_source(f"{name}.source", fields["source"]),
        failures=tuple(_failure(f"{name}.failures", item) for item in _list(f"{name}.failures", fields["failures"])),
        equals=tuple(_equality(f"{name}.equals", item) for item in _list(f"{name}.equals", fields["equals"])),
        published=tuple(
            _parse_publication(f"{name}.published", item)
            for item in _list(f"{name}.published", fields.get("published", []))
        ),
        claims=_texts(f"{name}.claims", fields["claims"], empty=True),
        sliders=_sliders(f"{name}.sliders", fields["sliders"]),
        trained=_text(f"{name}.trained", fields["trained"]) if "trained" in fields else "",
    )


def _places(place: str, value: Any) -> tuple[str, ...]:
    places = (value,) if isinstance(value, str) else _texts(place, value)
    for each in places:
        if each not in PLACES:
            raise _wrong(place, f"must be among {', '.join(PLACES)}", each)
    if len(set(places)) < len(places) or ("nowhere" in places and len(places) > 1):
        raise _wrong(place, "must have each place once, and nowhere alone", value)
    return places


def _source(place: str, value: Any) -> Source:
    fields = _fields(place, value, ("title", "year", "url"))
    year, url = fields["year"], fields["url"]
    if year is not None and (not isinstance(year, int) or isinstance(year, bool) or not 1900 <= year <= 2100):
        raise _wrong(f"{place}.year", "must be a year or null", year)
    return Source(_text(f"{place}.title", fields["title"]), year, None if url is None else _url(f"{place}.url", url))


def _failure(place: str, value: Any) -> Failure:
    fields = _fields(place, value, ("text",), EVIDENCE)
    if len(fields) != 2:
        raise _wrong(place, f"must have one of {', '.join(EVIDENCE)} beside text", sorted(fields))
    evidence = {name: _text(f"{place}.{name}", fields[name]) for name in EVIDENCE if name in fields}
    if "source" in evidence:
        _url(f"{place}.source", evidence["source"])
    if "row" in evidence:
        page, _, anchor = evidence["row"].partition("#")
        if not page.endswith(".md") or not anchor:
            raise _wrong(f"{place}.row", "must be a page of docs and an anchor, as page.md#anchor", evidence["row"])
    return Failure(_text(f"{place}.text", fields["text"]), **evidence)


def _equality(place: str, value: Any) -> Equality:
    fields = _fields(place, value, ("name", "when", "test"))
    return Equality(
        _text(f"{place}.name", fields["name"]), _text(f"{place}.when", fields["when"]), _test(place, fields["test"])
    )


def _parse_publication(place: str, value: Any) -> PublishedAs:
    fields = _fields(place, value, ("title", "url", "when", "test"))
    return PublishedAs(
        _text(f"{place}.title", fields["title"]),
        _url(f"{place}.url", fields["url"]),
        _text(f"{place}.when", fields["when"]),
        _test(place, fields["test"]),
    )


def _test(place: str, value: Any) -> str | None:
    if value is None:
        return None
    path, _, function = _text(f"{place}.test", value).partition("::")
    if not path.endswith(".py") or not function.startswith("test_"):
        raise _wrong(f"{place}.test", "must be null or path.py::test_name", value)
    return str(value)


def _sliders(place: str, value: Any) -> dict[str, tuple[Any, ...]]:
    if not isinstance(value, dict) or len(value) > MAX_SLIDERS:
        raise _wrong(place, f"must have at most {MAX_SLIDERS} options, each with a list of values", value)
    least, most = SLIDER_VALUES
    for name, values in value.items():
        if not isinstance(values, list) or not least <= len(values) <= most or _has_duplicates(values):
            raise _wrong(f"{place}.{name}", f"must be a list of {least} to {most} values, each once", values)
    return {name: tuple(values) for name, values in value.items()}


def _has_duplicates(values: list[Any]) -> bool:
    return any(value in values[:index] for index, value in enumerate(values))


def _fields(place: str, value: Any, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a mapping that has the required fields and no others than the optional ones."""
    if not isinstance(value, dict):
        raise _wrong(place, f"must have the fields {', '.join(required)}", value)
    for name in value:
        if name not in (*required, *optional):
            raise _wrong(place, f"must have no other fields than {', '.join((*required, *optional))}", name)
    for name in required:
        if name not in value:
            raise _wrong(place, f"must have the field {name}", sorted(value))
    return value


def _list(place: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(place, "must be a list", value)
    return value


def _texts(place: str, value: Any, empty: bool = False) -> tuple[str, ...]:
    texts = tuple(_text(place, item) for item in _list(place, value))
    if not texts and not empty:
        raise _wrong(place, "must not be empty", value)
    return texts


def _text(place: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _wrong(place, "must be a text that is not empty", value)
    return value


def _url(place: str, value: Any) -> str:
    if not _text(place, value).startswith("https://") or any(part.isspace() for part in value):
        raise _wrong(place, "must begin with https:// and have no space", value)
    return str(value)


def _wrong(place: str, requirement: str, got: Any) -> ValueError:
    return ValueError(f"{FILE.name}: {place} {requirement}, got {abbreviate(got)}")
