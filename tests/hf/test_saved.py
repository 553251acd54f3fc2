"""A saved model is nothing else: programs without pe_lab cannot load it, the Auto classes of those with it can."""

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel, pipeline

from helpers.hf_models import logits, replaced, small, tokens
from pe_lab.hf import load, replace, stacks

HEADS = {
    "llama": "AutoModelForCausalLM",
    "gpt2": "AutoModelForCausalLM",
    "bert": "AutoModelForMaskedLM",
    "bert_decoder": "AutoModelForCausalLM",
    "t5": "AutoModelForSeq2SeqLM",
}


@pytest.fixture
def alibi(tmp_path: Path) -> tuple[PreTrainedModel, Path]:
    """A model without parameters of its encoding, and its folder."""
    model = replaced("llama", "alibi")
    model.save_pretrained(tmp_path)
    return model, tmp_path


WITHOUT_PE_LAB = """
import sys
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, LlamaForCausalLM
for made in (AutoConfig, AutoModel, AutoModelForCausalLM, LlamaForCausalLM):
    try:
        made.from_pretrained(sys.argv[1])
    except ValueError as error:
        assert "pe_lab" in str(error), error
        print(made.__name__)
assert "pe_lab" not in sys.modules
"""


@pytest.mark.long
def test_a_program_without_pe_lab_does_not_load_it(alibi: tuple[PreTrainedModel, Path]) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_PE_LAB, alibi[1]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["AutoConfig", "AutoModel", "AutoModelForCausalLM", "LlamaForCausalLM"]


def test_the_class_of_the_original_computes_nothing(alibi: tuple[PreTrainedModel, Path]) -> None:
    model, folder = alibi
    for other in (LlamaForCausalLM.from_pretrained(folder), LlamaForCausalLM(model.config)):
        with pytest.raises(ValueError, match="this model must have the encoding with which it was saved: use pe_lab"):
            other(tokens())


@pytest.mark.parametrize("kind", HEADS)
def test_auto_classes_load_it(kind: str, tmp_path: Path) -> None:
    model = replaced(kind, "lrope")
    model.save_pretrained(tmp_path)
    loaded = getattr(transformers, HEADS[kind]).from_pretrained(tmp_path)
    assert not loaded.training
    assert AutoConfig.from_pretrained(tmp_path).to_dict() == loaded.config.to_dict()
    if kind == "bert":  # it was saved with the head of a decoder
        assert torch.equal(loaded.bert(tokens()).last_hidden_state, model.bert(tokens()).last_hidden_state)
    else:
        assert type(loaded) is type(model)
        assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))
    loaded.save_pretrained(tmp_path / "again")
    assert type(load(tmp_path / "again")) is type(loaded)


def test_other_classes_take_the_weights_that_they_have(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, ids = replaced("llama", "fire"), tokens()
    model.save_pretrained(tmp_path / "lm")
    part = AutoModel.from_pretrained(tmp_path / "lm")
    assert torch.equal(part(ids).last_hidden_state, model.model(ids).last_hidden_state)
    assert not caplog.records
    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "lm", num_labels=3)
    assert classifier(ids).logits.shape == (2, 3)
    assert torch.equal(classifier.model(ids).last_hidden_state, model.model(ids).last_hidden_state)
    (record,) = caplog.records
    assert record.getMessage().endswith("score.weight")
    part.save_pretrained(tmp_path / "part")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "part")
    assert torch.equal(whole.model(ids).last_hidden_state, model.model(ids).last_hidden_state)
    classifier.save_pretrained(tmp_path / "classifier")
    with pytest.raises(ValueError, match="weights must fit this model and encoding: size mismatch for score.weight"):
        transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "classifier", num_labels=5)


def test_arguments_of_from_pretrained_work_or_are_refused(alibi: tuple[PreTrainedModel, Path]) -> None:
    model, folder = alibi
    assert AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).dtype == torch.float64
    assert AutoModelForCausalLM.from_pretrained(folder, dtype="auto").dtype == torch.float32
    assert AutoModelForCausalLM.from_pretrained(folder, use_cache=False).config.use_cache is False
    assert AutoModelForCausalLM.from_pretrained(str(folder.parent), subfolder=folder.name).config.pe_lab is not None
    for options, message in (
        ({"attn_implementation": "sdpa"}, "attn_implementation must be 'pe_lab', got 'sdpa'"),
        ({"output_loading_info": True}, "arguments must be such as pe_lab.hf.load knows, got output_loading_info"),
    ):
        with pytest.raises(ValueError, match=message):
            AutoModelForCausalLM.from_pretrained(folder, **options)
    fresh = AutoModelForCausalLM.from_config(model.config)
    assert stacks(fresh)[0].first.name == "alibi"
    assert not torch.equal(logits(fresh, tokens()), logits(model, tokens()))


def test_a_pipeline_generates_what_the_model_does(alibi: tuple[PreTrainedModel, Path]) -> None:
    model, folder = alibi
    words = Tokenizer(WordLevel({f"w{index}": index for index in range(40)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0")
    tokenizer.save_pretrained(folder)
    settings = {"max_new_tokens": 5, "do_sample": False}
    (made,) = pipeline("text-generation", model=str(folder))("w5 w7 w9", return_full_text=False, **settings)
    expected = model.generate(torch.tensor([[5, 7, 9]]), **settings)[0, 3:]
    assert made["generated_text"].split() == tokenizer.decode(expected).split()


def test_the_config_that_a_model_was_made_from_stays() -> None:
    config = small("llama").config
    before = config.to_dict()
    model = replace(LlamaForCausalLM(config), "alibi")
    assert config.to_dict() == before
    assert model.config is not config
    assert model.config.model_type == model.model.config.model_type == "pe_lab_llama"
    logits(LlamaForCausalLM(config), tokens())


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_a_copy_is_a_replaced_model(kind: str, again: Any) -> None:
    model = replaced(kind, "kerple_log")
    other = again(model)
    assert torch.equal(logits(other, tokens()), logits(model, tokens()))
    assert other.config.to_dict() == model.config.to_dict()


def test_a_folder_of_an_earlier_version_is_loaded(tmp_path: Path) -> None:
    """It had the type of the original, and no settings of the model were read."""
    model = replaced("llama", "rope", from_config=False)
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    del config["_attn_implementation"], config["pe_lab"]["from_config"]
    file.write_text(json.dumps({**config, "model_type": "llama"}))
    loaded = load(tmp_path)
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))
    assert loaded.config.model_type == "pe_lab_llama"
