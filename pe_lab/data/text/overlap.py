"""Find the pieces of a held-out text that occur in the training text, by a rolling hash in bounded memory."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pe_lab.data.seeding import derive_seed

READ_POSITIONS = 2**22  # positions of a read
BLOCK_POSITIONS = 2**16  # positions of a block: its numbers stay in the processor's cache
AT_ONCE = 2**25  # hashes of known sequences that are in memory together
HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that it has an inverse modulo 2^64
HASH_INVERSE = np.uint64(pow(int(HASH_FACTOR), -1, 2**64))


def find_repeats(streams: list[Path], held: Path, length: int, vocabulary: int, folder: Path) -> np.ndarray:
    """Return the sorted positions [N] in a held-out stream whose next `length` tokens are known.

    A sequence of a known stream is known wherever it occurs in the held-out one, and a sequence of the held-out stream
    is known if it occurs anywhere in a known one. Sequences of a stream begin at the multiples of `length`.

    Args:
        streams, held: the .npy files of known streams and of the held-out one, each of at least `length` tokens.
        folder: the folder in which a temporary file keeps the hashes of known sequences, 8 bytes for each.
    """
    value = np.array([derive_seed(0, "repeats", token) for token in range(vocabulary)], np.uint64)
    held_hashes = HashSet(
        np.concatenate([_sequences(at, hashes, length) for at, hashes in rolling_hashes(held, length, value)])
    )
    with TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "hashes"
        with path.open("wb") as file:
            for stream in streams:
                for at, hashes in rolling_hashes(stream, length, value):
                    file.write(_sequences(at, hashes, length).tobytes())
                    file.write(np.unique(hashes[held_hashes(hashes)]).tobytes())
        blocks: dict[int, np.ndarray] = {}  # a bit for each position of a block
        for first in range(0, path.stat().st_size, 8 * AT_ONCE):
            part = HashSet(np.fromfile(path, np.uint64, AT_ONCE, offset=first))
            for at, hashes in rolling_hashes(held, length, value):
                known_here = np.zeros(len(hashes), bool)
                known_here[part(hashes)] = True
                blocks[at] = np.packbits(known_here) | blocks.get(at, np.uint8(0))
    return np.concatenate([at + np.unpackbits(bits).nonzero()[0] for at, bits in blocks.items()])


def _sequences(at: int, hashes: np.ndarray, length: int) -> np.ndarray:
    """Return a copy of the hashes whose position is a multiple of length, so that the others can be freed."""
    return hashes[-at % length :: length].copy()


def rolling_hashes(stream: Path, length: int, value: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first position, hashes) of every `length` consecutive tokens, block by block.

    The hash of t_0, t_1, ... is the sum of value[t_j] HASH_FACTOR^j modulo 2^64, a difference of two running sums.
    """
    block = max(BLOCK_POSITIONS, length)
    power, inverse = (
        np.concatenate([np.ones(1, np.uint64), np.full(block + length - 1, base, np.uint64).cumprod(dtype=np.uint64)])
        for base in (HASH_FACTOR, HASH_INVERSE)
    )
    positions = np.load(stream, mmap_mode="r").shape[0] - length + 1
    for first in range(0, positions, READ_POSITIONS):
        # a new map each time, so that pages already read leave memory
        tokens = np.array(np.load(stream, mmap_mode="r")[first : first + READ_POSITIONS + length - 1])
        for at in range(0, len(tokens) - length + 1, block):
            values = value.take(tokens[at : at + block + length - 1])
            count = len(values) - length + 1
            values *= power[: len(values)]
            sums = np.concatenate([np.zeros(1, np.uint64), values.cumsum(dtype=np.uint64)])
            yield first + at, (sums[length : length + count] - sums[:count]) * inverse[:count]


class HashSet:
    """A set of numbers; a table of their high bits excludes most candidates before the search.

    Args:
        members: the numbers, sorted in place.
    """

    BITS = 30  # most high bits in the table; fewer if at most one position in 32 is taken then

    def __init__(self, members: np.ndarray) -> None:
        members.sort()
        self.members = members
        bits = min(max(16, len(members).bit_length() + 5), self.BITS)
        self.shift = np.uint64(64 - bits)
        self.table = np.zeros(2**bits // 8, np.uint8)
        for at in range(0, len(members), BLOCK_POSITIONS):
            byte, bit = self._bit_positions(members[at : at + BLOCK_POSITIONS])
            begins = np.append(True, byte[1:] != byte[:-1]).nonzero()[0]  # they are in order
            self.table[byte[begins]] |= np.bitwise_or.reduceat(np.uint8(1) << bit, begins)

    def _bit_positions(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the byte of the table, and the bit in it, of each number."""
        high = numbers >> self.shift
        return (high >> np.uint64(3)).astype(np.intp), (high & np.uint64(7)).astype(np.uint8)

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """Return the indices of the numbers that are in the set."""
        byte, bit = self._bit_positions(numbers)
        index = (self.table.take(byte) >> bit & np.uint8(1)).nonzero()[0]
        position = np.searchsorted(self.members, numbers[index])
        position[position == len(self.members)] = 0
        matches: np.ndarray = index[self.members[position] == numbers[index]]
        return matches
