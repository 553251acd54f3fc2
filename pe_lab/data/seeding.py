"""Random seeds by purpose. Every draw is seeded by (seed, purpose) and does not depend on earlier draws."""

import hashlib

import torch
from torch import nn


def derive_seed(seed: int, *names: str | int) -> int:
    """Return a seed in [0, 2^63) for one purpose; the same on every machine."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def make_generator(seed: int, *names: str | int) -> torch.Generator:
    """Return a CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive_seed(seed, *names))


def seed_all(seed: int, device: torch.device) -> None:
    """Seed torch's global generators of the CPU and of this device; torch.manual_seed is slower (1 ms)."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def initialise_parameters(model: nn.Module, seed: int) -> None:
    """Draw every parameter from a hash of seed and module name; then call `scale_parameters` if the model has it.

    Models that differ in one module, the encoding, share all other weights.

    Raises:
        ValueError: a module has parameters but no `reset_parameters`.
    """
    with torch.random.fork_rng(devices=[]):
        draw = torch.default_generator  # of the CPU: initial weights are the same on every device
        for name, module in model.named_modules():
            if hasattr(module, "reset_parameters"):
                draw.manual_seed(derive_seed(seed, "parameters", name))
                module.reset_parameters()
            elif next(module.parameters(recurse=False), None) is not None:
                raise ValueError(f"{type(module).__name__} has parameters: it needs a method reset_parameters")
    scale = getattr(model, "scale_parameters", None)
    if scale is not None:
        scale()
