"""Compare the time to load a batch with the time of a training step on it."""

import resource
import time
from itertools import count, cycle
from statistics import median

import torch
from omegaconf import DictConfig

from pe_lab.data.base import IGNORE, epoch_order
from pe_lab.data.seeding import initialise
from pe_lab.experiment.cell import Cell
from pe_lab.model.transformer import Transformer

STEPS = 20


def compare_data(cfgs: list[DictConfig]) -> None:
    """Print for each dataset its size, seconds to the first batch, milliseconds per batch and step, and peak memory."""
    torch.set_num_threads(1)
    print(f"{'data':28} {'train':>8} {'first batch s':>14} {'batch ms':>9} {'step ms':>9} {'share':>7} {'peak MB':>8}")
    for cfg in cfgs:
        began = time.perf_counter()
        cell = Cell.from_config(cfg)
        dataset = cell.dataset
        size = dataset.size("train")
        dataset.batch("train", torch.arange(min(size, cfg.trainer.batch_size)))
        first = time.perf_counter() - began

        model = Transformer(cfg.model, cell.encoding, dataset.task, cell.implementation)
        initialise(model, cfg.seed)
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        order = cycle(epoch_order(size, cfg.seed, 0).split(cfg.trainer.batch_size))
        loading, stepping = [], []
        for _, index, epoch in zip(range(STEPS), order, count(), strict=False):
            began = time.perf_counter()
            batch = dataset.batch("train", index, epoch)
            loaded = time.perf_counter()
            logits = model(batch.tokens, batch.layout)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loading.append(loaded - began)
            stepping.append(time.perf_counter() - loaded)
        batch_ms, step_ms = 1000 * median(loading), 1000 * median(stepping)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{cfg.data.name:28} {size:8} {first:14.2f} {batch_ms:9.2f} {step_ms:9.1f} "
            f"{batch_ms / (batch_ms + step_ms):7.1%} {peak:8.0f}",
            flush=True,
        )
