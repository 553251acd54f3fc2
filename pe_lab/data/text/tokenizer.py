"""Tokenizers: bytes, byte-pair encoding, and those of a file."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

# bytes that UTF-8 never uses, for tokens that are not text
MASK, END = b"\xfe", b"\xff"
MAX_FILE_TOKENS = 2**20  # tokens of a file
MAX_WORD_BYTES = 1024  # most bytes of a word: the work grows with their square


class Tokenizer(ABC):
    """Maps text to integers; the two highest are MASK and END.

    Attributes:
        identity: everything but the text that the tokens depend on.
        vocabulary: the number of tokens.
    """

    identity: dict[str, object]
    vocabulary: int

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.uint8 if self.vocabulary <= 2**8 else np.uint16 if self.vocabulary <= 2**16 else np.uint32)

    @abstractmethod
    def learn(self, text: Iterable[bytes]) -> None:
        """Fit to the text of the training split, given in pieces."""

    @abstractmethod
    def encode(self, piece: bytes) -> np.ndarray:
        """Return the tokens of a piece of text."""

    @abstractmethod
    def spelling(self) -> list[bytes]:
        """Return the bytes of every token."""


class Bytes(Tokenizer):
    """One token per byte."""

    identity = {"tokenizer": "bytes"}
    vocabulary = 2**8

    def learn(self, text: Iterable[bytes]) -> None:
        """Do nothing: bytes are fixed."""

    def encode(self, piece: bytes) -> np.ndarray:
        return np.frombuffer(piece, np.uint8)

    def spelling(self) -> list[bytes]:
        return [bytes([byte]) for byte in range(self.vocabulary)]


class BPE(Tokenizer):
    """Byte-level byte-pair encoding (Radford et al. 2019), learned from the training split.

    Words of more than 1,024 bytes are cut.

    Args:
        vocabulary: the number of tokens: 256 bytes, learned tokens, MASK and END.
    """

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.identity = {"tokenizer": "bpe", "vocabulary": vocabulary, "tokenizers": version("tokenizers")}

    @cached_property
    def model(self) -> tokenizers.Tokenizer:
        model = tokenizers.Tokenizer(tokenizers.models.BPE())
        cut = Split(tokenizers.Regex(f".{{{MAX_WORD_BYTES}}}"), "isolated")
        model.pre_tokenizer = Sequence([ByteLevel(add_prefix_space=False), cut])
        return model

    def learn(self, text: Iterable[bytes]) -> None:
        trainer = BpeTrainer(
            vocab_size=self.vocabulary - 2,
            min_frequency=2,
            show_progress=False,
            initial_alphabet=ByteLevel.alphabet(),
        )
        self.model.train_from_iterator((piece.decode() for piece in text), trainer)
        learned = self.model.get_vocab_size() + 2
        if learned < self.vocabulary:
            raise ValueError(
                f"data.vocabulary_size must be at most {learned}, which this text gives, got {self.vocabulary}"
            )

    def encode(self, piece: bytes) -> np.ndarray:
        return np.array(self.model.encode(piece.decode()).ids, self.dtype)

    def spelling(self) -> list[bytes]:
        """Return the bytes of every token; the library writes printable bytes as themselves, others from 256 on."""
        byte_of = _bytes_by_character()
        learned = sorted(self.model.get_vocab().items(), key=lambda item: item[1])
        return [bytes(byte_of[character] for character in token) for token, _ in learned] + [MASK, END]


class FromFile(Tokenizer):
    """The tokenizer of a tokenizer.json that gives every text back, as those of GPT-2, Llama 3 and Qwen do.

    Nothing is added to the text. MASK and END come behind its tokens.

    Args:
        path: the path of the file, or of a folder with it, as `AutoTokenizer` saves one.

    Raises:
        ValueError: there is no such file, or its tokens are not bytes, or are more than 2^20.
    """

    def __init__(self, path: str) -> None:
        location = Path(path).expanduser()
        self.file = location / "tokenizer.json" if location.is_dir() else location
        try:
            content = self.file.read_bytes()
            self.model = tokenizers.Tokenizer.from_str(content.decode())
            described = json.loads(self.model.to_str())
        except OSError:
            raise ValueError(
                f"data.tokenizer must be bytes, bpe, or a tokenizer.json or a folder with it, got {path}: no such file"
            ) from None
        except Exception as error:  # the library raises no class of its own
            raise ValueError(f"data.tokenizer must be a tokenizer.json, got {self.file} ({error!s:.100})") from None
        if "ByteLevel" not in str(described.get("decoder")):
            raise ValueError(
                f"data.tokenizer must have bytes as its tokens (ByteLevel), got {self.file}, which has not"
            )
        self.model.no_truncation()
        self.model.no_padding()
        self.ids = self.model.get_vocab()
        self.added = {token["content"] for token in described.get("added_tokens") or ()}
        self.vocabulary = max(self.ids.values()) + 3
        if self.vocabulary > MAX_FILE_TOKENS:
            raise ValueError(
                f"data.tokenizer must have at most {MAX_FILE_TOKENS - 2} tokens, got {self.vocabulary - 2} in "
                f"{self.file}"
            )
        self.identity = {"tokenizer": sha256(content).hexdigest(), "tokenizers": version("tokenizers")}

    def learn(self, text: Iterable[bytes]) -> None:
        """Do nothing: the tokens are those of the file."""

    def encode(self, piece: bytes) -> np.ndarray:
        ids = self.model.encode(piece.decode(), add_special_tokens=False).ids
        if b"".join(self._spelling[token] for token in ids) != piece:
            raise ValueError(f"data.tokenizer must give the text back, got {self.file}, which changes it")
        return np.array(ids, self.dtype)

    @cached_property
    def _spelling(self) -> list[bytes]:
        byte_of = _bytes_by_character()
        spelled = [b""] * (self.vocabulary - 2) + [MASK, END]
        for token, number in self.ids.items():
            as_bytes = token not in self.added and all(character in byte_of for character in token)
            spelled[number] = bytes(byte_of[character] for character in token) if as_bytes else token.encode()
        return spelled

    def spelling(self) -> list[bytes]:
        return self._spelling


def _bytes_by_character() -> dict[str, int]:
    """Return the byte that each character stands for: printable bytes are written as themselves, others from 256 on."""
    readable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in readable]
    return {chr(byte): byte for byte in readable} | {chr(256 + n): byte for n, byte in enumerate(others)}
