"""What a config asks to be measured on the trained cell beyond the test: other lengths, policies, offsets, probes."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from omegaconf import DictConfig

from pe_lab.attention import IMPLEMENTATIONS
from pe_lab.data.base import Dataset
from pe_lab.encodings import policies
from pe_lab.encodings.base import PositionalEncoding
from pe_lab.encodings.layout import Layout
from pe_lab.encodings.options import MAX_LENGTH, prefix_errors
from pe_lab.encodings.sizes import Sizes
from pe_lab.encodings.stack import Stack
from pe_lab.encodings.terms import Terms
from pe_lab.experiment.identity import identity_options
from pe_lab.probes.base import probe_class
from pe_lab.training import decoding, metrics


def requested_measurements(cfg: DictConfig) -> list[dict[str, Any]]:
    """Return the measurements that a config asks for, each as all that determines it."""
    evaluate = cfg.evaluate
    kinds: list[tuple[dict[str, Any], int]] = [({"kind": "length"}, metrics.revision)]
    if evaluate.decode != "none":
        kinds.append(({"kind": "decode", "decode": evaluate.decode}, decoding.revision))
    if evaluate.stride is not None:
        kinds.append(({"kind": "stride", "stride": evaluate.stride}, metrics.revision))
    items: list[dict[str, Any]] = [
        kind | {"length": length, "policy": policy, "offset": offset, "revision": [revision, policies.revision]}
        for (kind, revision), length, policy, offset in product(
            kinds, evaluate.lengths, evaluate.policy, evaluate.offset
        )
        if (kind["kind"], length, policy, offset) != ("length", 1, "raw", 0)  # that is the test itself
    ]
    lengths = dict.fromkeys([1, *evaluate.lengths])  # the training length, and all others that are asked for
    for name, length in product(cfg.probe, lengths):
        probe_options = identity_options(cfg.probe[name], probe_class(name, cfg.probe[name]))
        request = {"kind": "probe", "probe": name, "revision": probe_options.pop("revision")}
        items.append(
            request
            | ({"options": probe_options} if probe_options else {})
            | ({} if length == 1 else {"length": length})
        )
    return items


def check_requests(cfg: DictConfig, dataset: Dataset, encoding: Callable[[Sizes], PositionalEncoding]) -> None:
    """Raise ValueError if the dataset or the encoding lacks a length, policy or offset, or what a probe reads."""
    if cfg.evaluate.decode != "none" and not dataset.generates:
        raise ValueError(
            f"evaluate.decode={cfg.evaluate.decode} needs a task whose answer is written token by token, as copy or "
            f"addition, got data={cfg.data.name}"
        )
    length, sizes = dataset.task.length, dataset.task.sizes(cfg.model.width, cfg.model.num_heads, cfg.model.head_dim)
    for factor in cfg.evaluate.lengths:
        if factor * length > MAX_LENGTH:
            raise ValueError(
                f"evaluate.lengths must lead to at most {MAX_LENGTH} tokens, got {factor:g} times {length}"
            )
    longer: dict[float, Dataset] = {1: dataset}
    for request in requested_measurements(cfg):
        factor = request.get("length", 1)
        if factor not in longer:
            longer[factor] = dataset.longer(factor)
        if request["kind"] == "probe":
            probe_class(request["probe"], cfg.probe[request["probe"]]).require(longer[factor])
            continue
        if request["kind"] == "stride":
            longer[factor].strided(request["stride"])
        task = longer[factor].task
        layout = task.example(task.length)
        try:
            with prefix_errors("evaluate"):
                under = policies.apply_policy(request["policy"], encoding(sizes).eval(), factor)
            if request["policy"] != "raw":  # raw is the policy of training
                _require_attention(cfg, request["policy"], under, task.example(min(16, task.length)))
            Stack([under], 1).locate(layout.shifted(request["offset"]))
        except ValueError as error:
            raise ValueError(f"evaluate.lengths={factor:g}, evaluate.offset={request['offset']}: {error}") from None
        if request["kind"] == "decode" and under.whole_sequence is None:
            _require_cached_attention(cfg)


def _require_attention(cfg: DictConfig, policy: str, under: PositionalEncoding, layout: Layout) -> None:
    """Raise ValueError if the requested implementation of attention does not compute the content bias of a policy."""
    implementation = cfg.attention.implementation
    if implementation == "auto":
        return
    h = torch.zeros(*layout.segment.shape, under.sizes.width)
    content_bias = Stack([under], 1)(h, layout)[1].layer(0, h).terms.content_bias
    if content_bias is None:
        return
    if reason := IMPLEMENTATIONS[implementation].refusal_reason(
        torch.empty(1, 1, 1, 2), Terms(content_bias=content_bias), layout
    ):
        raise ValueError(
            f"evaluate.policy={policy} cannot be computed with attention.implementation={implementation}: {reason}; "
            f"use attention.implementation=auto"
        )


def _require_cached_attention(cfg: DictConfig) -> None:
    """Raise ValueError if the implementation of attention that is asked for cannot compute a step with a cache."""
    implementation = cfg.attention.implementation
    keys = Layout.of_lengths(torch.tensor([2]), 2, causal=True)
    step = replace(keys.last(1), keys=keys)
    reason = (
        None
        if implementation == "auto"
        else IMPLEMENTATIONS[implementation].refusal_reason(torch.empty(1, 1, 1, 2), Terms(), step)
    )
    if reason:
        raise ValueError(
            f"evaluate.decode={cfg.evaluate.decode} cannot be computed with attention.implementation={implementation}: "
            f"{reason}; use attention.implementation=auto"
        )
