"""Replace the positions of a model of transformers."""

import json
from typing import Any

from transformers import PreTrainedModel

from pe_lab.attention import IMPLEMENTATIONS
from pe_lab.encodings.named import make
from pe_lab.encodings.stack import Stack
from pe_lab.hf.attention import NAME
from pe_lab.hf.configs import mark
from pe_lab.hf.families import Family, family_of, uses_interface
from pe_lab.hf.hooks import AttentionHook, InputHook
from pe_lab.hf.settings import with_settings

SIZES = ("width", "num_heads", "depth", "causal", "grid_width", "marks", "name")


def replace(
    model: PreTrainedModel,
    encoding: str | Stack,
    /,
    *,
    length: int | None = None,
    implementation: str = "auto",
    from_config: bool = True,
    **options: Any,
) -> PreTrainedModel:
    """Replace the positions of a model of Llama, GPT-2, BERT or T5 by an encoding of the lab, and return the model.

        model = replace(AutoModelForCausalLM.from_config(config), "alibi")

    The model's own positions are removed with their parameters: rotations, a table of position vectors, or T5's bias.
    The encoding's parameters are the model's: they are trained, moved and saved with it; `load` loads them. Nothing
    else changes; cross-attention has no positions. In T5 encoder and decoder have an encoding each.

    An encoding of the model's own kind has the model's settings where no option is given: in Llama, what rotates pairs
    has its base and pairing; `rope`, `rope_pi`, `rope_dynamic_ntk`, `yarn`, `llama3`, `longrope` and `p_rope` also the
    scaling of its rope type, of which each represents one; `t5` in T5 has its buckets, and `learnable` in GPT-2 and
    BERT its rows. If the encoding is then the model's own, it starts with the model's weights, and the model computes
    what it did.

    Positions count the tokens that are not padding, unless position_ids are given.

    Args:
        model: is changed.
        encoding: a name of `pe_lab.encodings.make`, or a Stack that fits the model.
        length: of training sequences, for which a table of the encoding must suffice; None: max_position_embeddings.
        implementation: of attention, as that of `attend`.
        from_config: whether an encoding of the model's own kind has the model's settings; False: its own defaults.
        options: of the encoding, as its class documents them.

    Raises:
        ValueError: the type of the model is unknown, the encoding is not defined for it or cannot represent the
            settings of its own positions, an option is out of range, or positions were replaced already. The model is
            unchanged then.
    """
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"model must be a PreTrainedModel of transformers, got {type(model).__name__}")
    if stacks(model):
        raise ValueError(f"positions of a model are replaced once: they are those of {stacks(model)[0].first.name}")
    family = family_of(model)
    if implementation not in ("auto", *IMPLEMENTATIONS):
        raise ValueError(f"implementation must be one of auto, {', '.join(IMPLEMENTATIONS)}, got {implementation!r}")
    parts = family.parts(model)
    if isinstance(encoding, Stack) and len(parts) > 1:
        raise ValueError(f"encoding must be a name for a model of {len(parts)} parts, which differ, got a Stack")
    made = [_stack(family, part, encoding, length, from_config, options) for part in parts]
    mark(model)
    for part, stack in zip(parts, made, strict=True):
        _install(family, part, stack.train(model.training), implementation)
    model.config.pe_lab = _record(encoding, made[0].first.sizes.length, implementation, from_config, options)
    return model


def stacks(model: PreTrainedModel) -> list[Stack]:
    """Return the encodings of a model; call `constrain` of each after every optimizer step."""
    return [module for module in model.modules() if isinstance(module, Stack)]


def _stack(
    family: Family,
    part: PreTrainedModel,
    encoding: str | Stack,
    length: int | None,
    from_config: bool,
    options: dict[str, Any],
) -> Stack:
    """Return the encodings of a part of a model."""
    config, depth, causal = part.config, len(family.attentions(part)), family.causal(part)
    width, num_heads = config.hidden_size, config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or getattr(config, "d_kv", None) or width // num_heads
    if head_dim * num_heads != width:
        raise ValueError(f"head_dim must be hidden_size / num_attention_heads = {width} / {num_heads}, got {head_dim}")
    if isinstance(encoding, Stack):
        if options or length is not None:
            given = ", ".join([*options, *(["length"] if length is not None else [])])
            raise ValueError(f"options belong to the name of an encoding, got a Stack and {given}")
        sizes = encoding.first.sizes
        has = {"width": sizes.width, "num_heads": sizes.num_heads, "depth": encoding.depth, "causal": sizes.causal}
        needs = {"width": width, "num_heads": num_heads, "depth": depth, "causal": causal}
        has["head_dim"], needs["head_dim"] = sizes.given_head_dim or head_dim, head_dim
        if has != needs:
            wrong = [name for name in has if has[name] != needs[name]]
            raise ValueError(f"the Stack must have {_listed(needs, wrong)}, got {_listed(has, wrong)}")
        return encoding
    length = getattr(config, "max_position_embeddings", None) if length is None else length
    if length is None:
        raise ValueError(f"length must be given: {config.model_type} has no max_position_embeddings, got None")
    for option in options:
        if option in SIZES:
            raise ValueError(f"options of {encoding} must not be sizes, which are those of the model, got {option}")
    own = family.own(part)
    completed = with_settings(own, encoding, options) if from_config else options
    sizes = {"width": width, "num_heads": num_heads, "depth": depth, "length": length, "causal": causal}
    stack = make(encoding, **sizes, **completed)
    if from_config and encoding == own.name and completed == own.options:
        own.adopt(stack.first)
    return stack


def _install(family: Family, part: PreTrainedModel, stack: Stack, implementation: str) -> None:
    """Put encodings into a part of a model."""
    attentions = family.attentions(part)
    family.remove(part)
    stack.to(part.device)
    part.add_module(NAME, stack)
    part.register_forward_pre_hook(InputHook(stack, family.passes_zeros), with_kwargs=True)
    part.config._attn_implementation = NAME
    for module in part.modules():
        if uses_interface(module):
            module.pe_lab_replaced = True
    for index, attention in enumerate(attentions):
        hook = AttentionHook(index, implementation, family.fused)
        attention.config._attn_implementation = NAME
        attention.register_forward_pre_hook(hook.before, with_kwargs=True)
        attention.get_submodule(family.value).register_forward_hook(hook.after_projection)


def _record(
    encoding: str | Stack, length: int, implementation: str, from_config: bool, options: dict[str, Any]
) -> dict[str, Any]:
    """Return what `load` needs to make the encoding again; no name where it cannot be written down."""
    try:
        json.dumps(options)
        name = encoding if isinstance(encoding, str) else None
    except TypeError:
        name, options = None, {}
    settings = {"length": length, "implementation": implementation, "from_config": from_config}
    return {"encoding": name, **settings, "options": options}


def _listed(values: dict[str, int], names: list[str]) -> str:
    return ", ".join(f"{name}={values[name]}" for name in names)
