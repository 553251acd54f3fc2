"""Reference levels of text, by counting and by compression."""

import lzma

import numpy as np

REVISION = 1  # raised when a level changes
BLOCK_WINDOWS = 2**12  # windows of a read
XZ_WINDOW = 2**23  # bytes of training text before the text that xz compresses, and its dictionary


class NgramCounts:
    """Counts of tokens after contexts, and the probabilities that they give.

    Modified Kneser-Ney smoothing (Chen and Goodman 1998, section 3): a little is taken from every count, by whether it
    is 1, 2 or more, and given to the tokens as a shorter context has them.

    Args:
        keys: [N] numbers, each a context and a token, as often as they were seen; sorted in place.
        bits: the number of low bits of a key that hold the token.
    """

    def __init__(self, keys: np.ndarray, bits: int) -> None:
        self.bits, self.token = np.uint64(bits), np.uint64(2**bits - 1)
        keys.sort()
        new = np.ones(len(keys), bool)
        np.not_equal(keys[1:], keys[:-1], out=new[1:])
        # of all keys before each; they are counts of at most 2^31 tokens, in few bytes since there are many
        self.total = np.append(np.flatnonzero(new).astype(np.int32), np.int32(len(keys)))
        self.keys = keys[: len(self.total) - 1]
        self.keys[:] = keys[self.total[:-1]]
        counts = np.diff(self.total)
        n = np.maximum(np.bincount(np.minimum(counts, 5), minlength=6), 1)
        y = n[1] / (n[1] + 2 * n[2])
        # above 0, so that no token has probability 0
        self.discounts = np.array([0.0] + [np.clip(c - (c + 1) * y * n[c + 1] / n[c], 0.1, c) for c in (1, 2, 3)])
        self.taken = np.zeros(len(counts) + 1)
        np.take(self.discounts, np.minimum(counts, 3), out=self.taken[1:])
        np.cumsum(self.taken[1:], out=self.taken[1:])

    def _discount(self, counts: np.ndarray) -> np.ndarray:
        taken: np.ndarray = self.discounts[np.minimum(counts, 3)]
        return taken

    def weights(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return own and rest [Q]: P(token | context) = own + rest P(token | shorter context); 0, 1 if it is new."""
        first = np.searchsorted(self.keys, keys >> self.bits << self.bits)
        after = np.searchsorted(self.keys, keys | self.token, side="right")
        begin, end = np.searchsorted(self.keys, keys), np.searchsorted(self.keys, keys, side="right")
        same = self.total[end] - self.total[begin]
        total, taken = self.total[after] - self.total[first], self.taken[after] - self.taken[first]
        some = np.maximum(total, 1)
        return (same - self._discount(same)) / some, np.where(total > 0, taken / some, 1.0)

    def estimate(self, keys: np.ndarray, below: np.ndarray) -> np.ndarray:
        """Return P(token | context) [Q], given P(token | shorter context)."""
        weight, rest = self.weights(keys)
        estimate: np.ndarray = weight + rest * below
        return estimate


def unigram(train: np.ndarray, token: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return P(token) [Q], from the counts of tokens in train [N]."""
    counts = NgramCounts(train.astype(np.uint64), (vocabulary - 1).bit_length())
    return counts.estimate(token.astype(np.uint64), np.full(len(token), 1 / vocabulary))


def ngram(train: np.ndarray, rows: np.ndarray, end: int, vocabulary: int) -> np.ndarray:
    """Return P(rows[:, 1:] | tokens before in window and document) [B, T], by modified Kneser-Ney smoothing.

    As many tokens as fit in 64 bits with the one that is asked. A shorter context counts how many different tokens
    stand before it, and how often none does. Values at END are not used.

    Args:
        train: [N, S + 1] windows that are counted, with the token after them.
        rows: [B, T + 1] windows that are asked.
    """
    bits = (vocabulary - 1).bit_length()
    longest = min(64 // bits, train.shape[1]) - 1
    seen: list[list[np.ndarray]] = [[] for _ in range(longest + 1)]
    for part in range(0, len(train), BLOCK_WINDOWS):
        keys, history_length = histories(train[part : part + BLOCK_WINDOWS], end, bits, longest)
        for number in range(1, longest + 1):
            seen[number].append(keys[history_length == number])
    row_keys, depth = histories(rows, end, bits, longest)
    weights = []
    for number in reversed(range(longest + 1)):
        keys = np.concatenate([np.zeros(0, np.uint64), *seen[number]])
        seen[number].clear()
        counts = NgramCounts(keys, bits)
        enough = depth >= max(1, number)
        weights.append((enough, *counts.weights(row_keys[enough] & np.uint64(2 ** (bits * (number + 1)) - 1))))
        if number:
            seen[number - 1].append(counts.keys & np.uint64(2 ** (bits * number) - 1))
        del counts, keys  # one table at a time: each is as large as the text
    p = np.full(row_keys.shape, 1 / vocabulary)
    for enough, weight, rest in reversed(weights):
        p[enough] = weight + rest * p[enough]
    return p


def histories(rows: np.ndarray, end: int, bits: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return [B, T] the tokens up to a slot and the next one as one number, and how many are in the document.

    The token after the slot is in the lowest bits, the slot's own next. At END there are none.
    """
    slots = rows[:, :-1]
    number = np.arange(1, slots.shape[1] + 1)
    history_length = number - np.maximum.accumulate(np.where(slots == end, number, 0), 1)
    history_length = np.minimum(history_length, longest)
    keys = rows[:, 1:].astype(np.uint64)
    for back in range(longest):
        older = np.where(history_length[:, back:] > back, slots[:, : slots.shape[1] - back], 0)
        keys[:, back:] |= older.astype(np.uint64) << np.uint64(bits * (back + 1))
    return keys, history_length


class Neighbours:
    """P(token | left neighbour, right neighbour).

    Estimated from both neighbours, smoothed by the mean of those from one, and these by that from none.

    Args:
        train: [N, T] windows that are counted.
        mask: the token of an unknown neighbour.
    """

    def __init__(self, train: np.ndarray, end: int, mask: int, vocabulary: int) -> None:
        self.mask, self.vocabulary = mask, vocabulary
        self.bits = (vocabulary - 1).bit_length()
        is_token = train != end
        self.alone = train[is_token]
        left, right = (side[is_token] for side in neighbours(train, end, mask))
        both = (left != mask) & (right != mask)
        self.by_left = self._counts(left != mask, self.alone, left)
        self.by_right = self._counts(right != mask, self.alone, right)
        self.by_both = self._counts(both, self.alone, left, right)

    def _counts(self, where: np.ndarray, token: np.ndarray, *context: np.ndarray) -> NgramCounts:
        return NgramCounts(self._key(token, *context)[where], self.bits)

    def _key(self, token: np.ndarray, *context: np.ndarray) -> np.ndarray:
        key = token.astype(np.uint64)
        for number, side in enumerate(context, 1):
            key |= side.astype(np.uint64) << np.uint64(self.bits * number)
        return key

    def estimate(self, left: np.ndarray, right: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Return P(token | left, right) [Q]."""
        below = unigram(self.alone, token, self.vocabulary)
        from_left = self.by_left.estimate(self._key(token, left), below)
        from_right = self.by_right.estimate(self._key(token, right), below)
        by_side = np.where(
            left == self.mask, from_right, np.where(right == self.mask, from_left, (from_left + from_right) / 2)
        )
        return self.by_both.estimate(self._key(token, left, right), by_side)


def neighbours(rows: np.ndarray, end: int, mask: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens left and right of each slot [B, T], `mask` at the ends of window and document."""
    left, right = np.full_like(rows, mask), np.full_like(rows, mask)
    left[:, 1:] = np.where(rows[:, :-1] == end, mask, rows[:, :-1])
    right[:, :-1] = np.where(rows[:, :-1] == end, mask, rows[:, 1:])
    return left, right


def xz(train: bytes, test: bytes) -> float:
    """Return bits per byte of a text compressed by xz -6 after the last 8 MiB of another text."""
    train = train[-XZ_WINDOW:]
    return 8 * (_compressed_size(train + test) - _compressed_size(train)) / len(test)


def _compressed_size(text: bytes) -> int:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": XZ_WINDOW}]
    return len(lzma.compress(text, lzma.FORMAT_RAW, filters=filters))
