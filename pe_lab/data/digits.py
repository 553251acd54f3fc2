"""Handwritten digits as grids of 64 tokens: the task for two-dimensional encodings."""

from itertools import islice

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from pe_lab.data.base import Task
from pe_lab.data.labelled import Labelled
from pe_lab.data.seeding import derive_seed
from pe_lab.encodings.options import FileOrFolder

IMAGES = 1797
IMAGE_SIDE = 8
GREY_LEVELS = 17
SPLIT_SIZES = {"train": 1078, "validation": 359, "test": 360}  # 60 %, 20 %, 20 %


class Digits(Labelled):
    """Classify the 1,797 images of digits of scikit-learn: 8 x 8 pixels, 17 grey levels.

    An image is read row by row, one token per pixel; positions have a row and a column. For instance, of class 0:

         0  0  5 13  9  1  0  0
         0  0 13 15 10 15  5  0
         0  3 15  2  0 11  8  0
         0  4 12  0  0  8  8  0
         0  5  8  0  0  9  8  0
         0  4 11  0  1 12  7  0
         0  2 14  5 10 12  0  0
         0  0  6 13 10  0  0  0

    The splits are 60 %, 20 % and 20 % of the images. The distribution of digits is unknown: there are reference
    levels instead of floors, see `reference_levels`.

    Args:
        seed: the seed of the split.
        path: the path of a CSV file with your own images, see Labelled; null: no file.

    Raises:
        ValueError: a file that is not of the format.
    """

    def __init__(self, seed: int, name: str = "digits", path: FileOrFolder | None = None) -> None:
        task = Task(GREY_LEVELS, IMAGE_SIDE**2, outputs=10, causal=False, pooled=True, grid_width=IMAGE_SIDE)
        super().__init__(seed, name, task, SPLIT_SIZES, path)

    def sequences(self, split: str) -> tuple[Tensor, Tensor]:
        pixels, labels = (torch.from_numpy(array).long() for array in load_digits(return_X_y=True))
        # by a hash of the image, so that the split is the same on every machine
        order = sorted(range(IMAGES), key=lambda image: derive_seed(self.seed, "digits", *pixels[image].tolist()))
        rest = iter(order)
        chosen = {split: torch.tensor(list(islice(rest, size))) for split, size in SPLIT_SIZES.items()}[split]
        return pixels[chosen], labels[chosen]
