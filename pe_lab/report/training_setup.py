"""How fair a comparison was: whether each encoding had a learning rate of its own, and from which search."""

from typing import Any

import numpy as np
import pandas as pd

from pe_lab.config import LR
from pe_lab.ledger.ledger import Ledger
from pe_lab.results.columns import merge_tables, setting_columns
from pe_lab.results.frame import Results
from pe_lab.results.from_ledger import settings_of_identity
from pe_lab.results.number_text import range_in_words
from pe_lab.system.exact_csv import read_csv
from pe_lab.system.files import LedgerError, digest, read_json

IDENTITIES = "identities.json"  # what determines the training, by run: of one cell for each task of a study
CORPORA = {  # by the digest of their bytes as tokens, which identities hold
    "2307e308077e2004": "tinyshakespeare",
    "a2f96b73ccec6c6e": "the source of Python 3.11's standard library",
}
STRUCTURED = {"structured": 4_522, "structured_heldout": 4_525}  # training sequences of tasks whose size is no setting
SEARCHED = {"pe", LR, "at_edge", "tried"}  # columns that the rates.csv of a search has


def ladders(results: Results) -> tuple[list[float], list[float]]:
    """Return the learning rates that seeds tried, and those of encodings with a starting scale, which may be none.

    Args:
        results: the results of a study whose seeds tune for themselves.
    """
    tune = results.declared.tune or {}
    rates = tune.get("rates") or results.cells[LR].dropna().unique()
    return sorted(float(rate) for rate in rates), sorted({float(rate) for rate, _ in tune.get("scaled") or []})


def tries_in_words(results: Results) -> str:
    """Say at the best of how many tries each seed was trained; empty for a study without `tune`.

    Encodings with a starting scale are tried at pairs of rate and scale, the others at rates.
    """
    if results.declared.tune is None or results.cells.empty:
        return ""
    rates, scaled = ladders(results)[0], results.declared.tune.get("scaled") or []
    has_scale = (
        results.cells["start_scale"].notna().groupby(results.cells["pe"]).any() if scaled else pd.Series([False])
    )
    counts = sorted({len(scaled) if scale else len(rates) for scale in has_scale})
    tries = "tries of learning rate and starting scale" if has_scale.any() else "learning rates"
    return f"at the best of {' or '.join(map(str, counts))} {tries}"


def rates_of_seeds(results: Results) -> str:
    """Say of how many learning rates seeds took the best; empty for a study without `tune`."""
    if results.declared.tune is None or results.cells.empty:
        return ""
    rates, scaled = ladders(results)
    has_scale = results.cells.get("start_scale", pd.Series(np.nan, results.cells.index)).notna()
    counts = sorted({len(scaled) if scale and scaled else len(rates) for scale in has_scale.unique()})
    return f"at the best of {' or '.join(map(str, counts))} learning rates"


def rates_in_words(results: Results, rate: float | None = None) -> str:
    """Say whether the encodings had one learning rate, each its own, or each several, as far as the rows tell.

    Args:
        rate: the learning rate of all encodings, if it is known and is to be named.
    """
    cells = results.cells
    alone = cells["pe"].nunique() == 1
    if choice := tries_in_words(results):
        tune = results.declared.tune or {}
        after = f" after {tune['steps']} steps" if tune.get("steps") else ""
        return f"{'' if alone else 'each '}{choice} by validation{after}"
    if LR in setting_columns(cells):
        tried = cells.groupby("pe", sort=False)[LR].agg(lambda rates: tuple(sorted(rates.dropna().unique())))
        same = "" if tried.nunique() == 1 else ", not the same for all"
        return f"{'' if alone else 'each '}at {range_in_words(tried.map(len), 'g', ' to ')} learning rates{same}"
    searched = searched_rates(results)
    if searched is not None:
        edge = int(searched["at_edge"].astype(str).str.lower().eq("true").sum())
        where = f"the best was the lowest or highest in {edge or 'none'} of {len(searched)} searches"
        scales = "start_scale" in searched and searched["start_scale"].notna().any()
        what = "at the learning rate and starting scale" if scales else "at the learning rate"
        whose = f"{what} that a search chose" if alone else f"each {what} that a search of its own chose"
        return f"{whose} ({range_in_words(searched['tried'], 'g', ' to ')} tried, {where})"
    if LR in cells:
        if alone:
            return "at learning rates, with no record of how they were chosen"
        return "each at its own learning rate, with no record of how it was chosen"
    words = "at one learning rate" if rate is None else f"at the learning rate {rate:g}"
    return words if alone else f"{words} for all, not tuned for each"


def training_sentence(results: Results) -> str:
    """Return the sentence on the learning rates of all encodings, see `rates_in_words`."""
    rates = rates_in_words(results)
    if rates.startswith("each "):
        return f"Each encoding was trained {rates.removeprefix('each ')}."
    return f"Encodings were trained {rates}."


def shared_settings(results: Results) -> dict[str, Any]:
    """Return the settings, by dotted name, that the first cells of all tasks share.

    They are from the ledger, or from IDENTITIES in the folder of the study; none where these lack a task.

    Raises:
        ValueError: an entry of IDENTITIES is not what a run is the hash of.
    """
    cells = results.cells
    if cells.empty or "run" not in cells:
        return {}
    tasks = cells["data"] if "data" in cells else pd.Series("", cells.index)
    stored, identities = _stored_identities(results), []
    for _, runs in cells["run"].astype(str).groupby(tasks, sort=False):
        identity = next((stored[run] for run in runs if run in stored), None)
        try:
            identities.append(identity or Ledger(results.source).named(runs.iloc[0]).identity())
        except (LedgerError, OSError):
            return {}
    first, *others = map(settings_of_identity, identities)
    return {name: value for name, value in first.items() if all(other.get(name, ...) == value for other in others)}


def _stored_identities(results: Results) -> dict[str, dict[str, Any]]:
    """Return what determines the training of some runs, by run, from the folder of a study; empty without the file."""
    path = results.folder / IDENTITIES
    entries = read_json(path) if path.is_file() else {}
    for run, identity in entries.items():
        if digest(identity) != run:
            raise ValueError(f"{path} must hold what its runs are the hashes of, got another entry for {run}")
    return dict(entries)


def setting_in_words(results: Results) -> str:
    """Return size, data and optimizer of the models, as far as all cells agree; empty where `shared_settings` is."""
    identity = shared_settings(results)
    varied = results.cells.columns  # settings that differ between cells, and rates that were chosen
    shared = {name: value for name, value in identity.items() if name not in varied and value not in (None, "null")}
    fresh = "new ones in every epoch, " if shared.get("trainer.fresh") else ""
    tasks = set(results.cells["data"]) if "data" in results.cells and "data.length" in shared else set()
    if len(tasks) == 1 and (size := STRUCTURED.get(tasks.pop())) and "data.train" not in shared:
        shared["data.train"] = size
    words = {
        "model.width": "width {}",
        "model.num_heads": "{} heads",
        "data.corpus": "{} in {tokens}",
        "data.length": "sequences of {} tokens",
        "data.longest": "sequences of up to {} items",
        "data.train": "{:,} sequences for training, " + fresh,
        "data.train_sequences": "{:,} of them for training",
        "trainer.batch_size": "batches of {}",
        "optimizer.name": "{}",
        LR: "learning rate {:g}",
        "solve.level": "solved at a validation score of {:g}",
        "solve.first": "first measured after {} steps",
    }
    if "solve.level" not in shared:
        del words["solve.first"]
    if results.declared.tune is not None:  # every seed has its own
        del words[LR]
    if "data.corpus" in shared:
        shared["data.corpus"] = CORPORA.get(str(shared["data.corpus"]), "text")
    tokens = shared.get("data.tokenizer", "tokens")
    said = [text.format(shared[name], tokens=tokens) for name, text in words.items() if name in shared]
    return ", ".join(text.removesuffix(", ") for text in said)


def searched_rates(results: Results) -> pd.DataFrame | None:
    """Return the rates of a search, a line per encoding and setting, if they are those of the cells; otherwise None.

    Encodings of which all cells failed were searched too, and are left out.
    """
    path = results.folder / "rates.csv"
    if not path.is_file():
        return None
    rates, cells = read_csv(path, dtype={"pe": str, "data": str}), results.cells
    if not set(rates) >= SEARCHED or not set(rates["pe"]) >= set(cells["pe"]):
        return None
    rates = rates[rates["pe"].isin(cells["pe"])]
    if LR not in cells:  # one rate for all
        return rates if rates[LR].nunique() == 1 else None
    keys = ["pe", *(name for name in setting_columns(cells) if name in rates)]
    if rates.duplicated(keys).any():
        return None
    both = merge_tables(cells[[*keys, LR]], rates[[*keys, LR]], keys, how="left", suffixes=("", "_searched"))
    return rates if np.isclose(both[LR], both[f"{LR}_searched"], rtol=1e-6, atol=0).all() else None
