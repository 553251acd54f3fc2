"""Tokenizers: bytes, and byte-pair encoding."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import tokenizers

# bytes that UTF-8 never uses, for tokens that are not text
MASK, END = b"\xfe", b"\xff"
LONGEST = 1024  # most bytes of a word: the work grows with their square


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
        return np.dtype(np.uint8 if self.vocabulary <= 2**8 else np.uint16)

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
        vocabulary: 256 bytes, learned tokens, MASK and END.
    """

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.identity = {"tokenizer": "bpe", "vocabulary": vocabulary, "tokenizers": version("tokenizers")}

    @cached_property
    def model(self) -> "tokenizers.Tokenizer":
        import tokenizers  # loaded at the first use
        from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

        model = tokenizers.Tokenizer(tokenizers.models.BPE())
        cut = Split(tokenizers.Regex(f".{{{LONGEST}}}"), "isolated")
        model.pre_tokenizer = Sequence([ByteLevel(add_prefix_space=False), cut])
        return model

    def learn(self, text: Iterable[bytes]) -> None:
        from tokenizers.pre_tokenizers import ByteLevel
        from tokenizers.trainers import BpeTrainer

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
        readable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in readable]
        byte_of = {chr(byte): byte for byte in readable} | {chr(256 + n): byte for n, byte in enumerate(others)}
        learned = sorted(self.model.get_vocab().items(), key=lambda item: item[1])
        return [bytes(byte_of[character] for character in token) for token, _ in learned] + [MASK, END]
