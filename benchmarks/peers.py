"""Time training steps on one thread of a CPU beside those of x-transformers and of transformers' models.

    python -m benchmarks peers                          # none, rope, alibi and t5, at three sizes
    python -m benchmarks peers --encodings rope --sizes 8x128 --rounds 200

All models have two layers of width 64 with four heads, an MLP of 256 and 32 tokens. A step is forward pass, backward
pass, clipping and Adam, on random tokens without padding. All take a step in turn, in another order each round, and
times are those of the thread, so that other programs on the machine hardly count. Ratios are to the faster peer,
medians over rounds. transformers has no model without positions of this form: GPT-2 stands for it, with its table.
"""

import random
import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import run_benchmark
from benchmarks.encoding_steps import VOCABULARY, step_of
from pe_lab.system.allocator import keep_freed_memory
from pe_lab.system.arguments import Parser
from pe_lab.system.names import unknown_name_message

WIDTH, DEPTH, HEADS = 64, 2, 4
WARM_UP = 5  # rounds that are not counted
NO_MARKS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}  # of the start and end of a text
Step = Callable[[int], None]


def main() -> None:
    """Read the arguments and print the table."""
    parser = Parser("benchmarks peers", description=__doc__)
    parser.add_argument("--encodings", default="none,rope,alibi,t5", help="names, separated by commas (%(default)s)")
    parser.add_argument("--sizes", default="8x128,4x512,1x2048", help="sequences x tokens (%(default)s)")
    parser.add_argument("--rounds", type=int, default=60, help="in which each takes a step (%(default)s)")
    run_benchmark(parser, _time)


def _time(arguments: Namespace) -> None:
    names = arguments.encodings.split(",")
    for name in names:
        if name not in X_TRANSFORMERS:
            raise ValueError(unknown_name_message("--encodings", [*X_TRANSFORMERS], name))
    sizes = [size.split("x") for size in arguments.sizes.split(",")]
    if not all(len(size) == 2 and all(part.isdecimal() and int(part) for part in size) for size in sizes):
        raise ValueError(f"--sizes must be sequences x tokens, as 8x128, got {arguments.sizes}")
    if arguments.rounds < 2:
        raise ValueError(f"--rounds must be at least 2, got {arguments.rounds}")
    torch.set_num_threads(1)
    keep_freed_memory()
    print("encoding, size, pe_lab ms, x-transformers ms, transformers ms, of the faster peer, quartiles", flush=True)
    for batch, length in (map(int, size) for size in sizes):
        for name in names:
            print(f"{name}, {batch} x {length}, {row(name, batch, length, arguments.rounds)}", flush=True)


def row(name: str, batch: int, length: int, rounds: int) -> str:
    """Return the median times of all three, and the median ratio to the faster peer with its quartiles."""
    steps = (
        step_of(name, batch, length),
        peer_step(x_transformers(name, length), batch, length),
        peer_step(transformers_model(name, length), batch, length),
    )
    times = in_turn(steps, rounds)
    medians = [1000 * statistics.median(each) for each in times]
    faster = times[1 if medians[1] <= medians[2] else 2]
    low, median, high = statistics.quantiles((a / b for a, b in zip(times[0], faster, strict=True)), n=4)
    return f"{', '.join(f'{each:.1f}' for each in medians)}, {median:.2f}, {low:.2f} to {high:.2f}"


def in_turn(steps: tuple[Step, ...], rounds: int) -> list[list[float]]:
    """Return the seconds of each step in each round."""
    times: list[list[float]] = [[] for _ in steps]
    order, draw = list(range(len(steps))), random.Random(0)
    for number in range(rounds + WARM_UP):
        draw.shuffle(order)
        for index in order:
            start = time.thread_time()
            steps[index](number)
            if number >= WARM_UP:
                times[index].append(time.thread_time() - start)
    return times


def peer_step(model: nn.Module, batch: int, length: int) -> Step:
    """Return a function that takes a training step of a model, which returns logits [B, T, vocabulary]."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, foreach=True)
    tokens = torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0))
    targets = tokens.roll(-1, 1).flatten()

    def step(number: int) -> None:
        loss = cross_entropy(model(tokens).flatten(0, 1), targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


X_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "none": {"attn_flash": True},
    "rope": {"rotary_pos_emb": True, "rotary_emb_dim": WIDTH // HEADS, "attn_flash": True},
    "alibi": {"alibi_pos_bias": True, "attn_flash": True},
    "t5": {"rel_pos_bias": True},  # which it does not give to PyTorch's fused attention
}


def x_transformers(name: str, length: int) -> nn.Module:
    """Return the model of x-transformers with an encoding."""
    from x_transformers import Decoder, TransformerWrapper

    sizes = {"dim": WIDTH, "depth": DEPTH, "heads": HEADS, "attn_dim_head": WIDTH // HEADS}
    layers = Decoder(**sizes, **X_TRANSFORMERS[name])
    model: nn.Module = TransformerWrapper(
        num_tokens=VOCABULARY, max_seq_len=length, attn_layers=layers, use_abs_pos_emb=False
    )
    return model


class Logits(nn.Module):
    """A causal model of transformers, without a cache, whose output is logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens, use_cache=False).logits
        return logits


class T5Decoder(nn.Module):
    """The decoder of T5 without attention to an encoder, and a linear layer to logits."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import T5Config
        from transformers.models.t5.modeling_t5 import T5Block, T5Stack

        config = T5Config(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            d_kv=WIDTH // HEADS,
            d_ff=4 * WIDTH,
            num_layers=DEPTH,
            num_heads=HEADS,
            dropout_rate=0.0,
            is_decoder=True,
            use_cache=False,
        )
        self.tokens, self.stack = nn.Embedding(VOCABULARY, WIDTH), T5Stack(config)
        for block in self.stack.block:
            assert isinstance(block, T5Block)
            del block.layer[1]  # attention to an encoder
            block.is_decoder = False
        self.out = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.stack(inputs_embeds=self.tokens(tokens), use_cache=False).last_hidden_state
        logits: Tensor = self.out(states)
        return logits


def transformers_model(name: str, length: int) -> nn.Module:
    """Return transformers' model with an encoding: GPT-2, GPT-NeoX with full rotations, Bloom and T5's decoder."""
    import transformers as hf

    if name == "t5":
        return T5Decoder()
    if name == "none":
        sizes: dict[str, Any] = {"n_embd": WIDTH, "n_layer": DEPTH, "n_head": HEADS, "n_positions": length}
        off: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        return Logits(hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=VOCABULARY, **NO_MARKS, **sizes, **off)))
    if name == "alibi":
        bloom = hf.BloomConfig(vocab_size=VOCABULARY, **NO_MARKS, hidden_size=WIDTH, n_layer=DEPTH, n_head=HEADS)
        return Logits(hf.BloomForCausalLM(bloom))
    whole: dict[str, Any] = {"rotary_pct": 1.0}  # which not every version declares
    config = hf.GPTNeoXConfig(
        vocab_size=VOCABULARY,
        **NO_MARKS,
        **whole,
        hidden_size=WIDTH,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=length,
        use_parallel_residual=False,
    )
    return Logits(hf.GPTNeoXForCausalLM(config))
