"""Replace the positions of a model of transformers."""

import json
from functools import partial
from itertools import groupby
from typing import Any

from transformers import PreTrainedModel

from pe_lab.attention import IMPLEMENTATIONS
from pe_lab.encodings.combine import Interleave
from pe_lab.encodings.named import factory, make
from pe_lab.encodings.stack import Stack
from pe_lab.hf.attention import ATTENTION_NAME
from pe_lab.hf.configs import mark_replaced
from pe_lab.hf.hooks import AttentionHook, ImageHook, InputHook, Preparation, ReplacedMethod
from pe_lab.hf.model_families import ModelFamily, model_family, uses_interface, windows
from pe_lab.hf.model_positions import ModelPositions, complete_options, model_head_dim

SIZE_ARGUMENTS = ("width", "num_heads", "depth", "causal", "grid_width", "marks", "name")


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
    """Replace the positions of a model of transformers by an encoding of the lab, and return the model.

        model = replace(AutoModelForCausalLM.from_config(config), "alibi")

    The types of models are those of `pe_lab.hf.model_families.FAMILIES`. The model's own positions are removed with
    their parameters: rotations, a table of position vectors, or a bias. The encoding's parameters are the model's: they
    are trained, moved and saved with it; `load` loads them. Nothing else changes: scales, norms of queries and keys,
    sliding windows and soft caps stay, and cross-attention has no positions. In T5 and mT5 encoder and decoder have an
    encoding each.

    An encoding of the model's own kind has the model's settings where no option is given: what rotates pairs has its
    base, pairing and rotated dimensions, in each layer its own; `rope`, `rope_pi`, `rope_dynamic_ntk`, `yarn`,
    `llama3`, `longrope` and `p_rope` also the scaling of its rope type, of which each represents one; `t5` has its
    buckets, and `learnable` its rows. If the encoding is then the model's own, it starts with the model's weights, and
    the model computes what it did.

    Positions count the tokens that are not padding, unless position_ids are given.

    Args:
        model: the model, which is changed.
        encoding: a name of `pe_lab.encodings.make`, or a Stack that fits the model.
        length: the length of training sequences, for which a table of the encoding must suffice; None:
            max_position_embeddings.
        implementation: the implementation of attention, as in `attend`.
        from_config: whether an encoding of the model's own kind has the model's settings; False: its own defaults.
        options: the options of the encoding, as its class documents them.

    Raises:
        ValueError: the type of the model is unknown, the encoding is not defined for it or cannot represent the
            settings of its own positions, an option is out of range, or positions were replaced already. The model is
            unchanged then.
    """
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"model must be a PreTrainedModel of transformers, got {type(model).__name__}")
    if stacks(model):
        raise ValueError(f"positions of a model are replaced once: they are those of {stacks(model)[0].first.name}")
    family = model_family(model)
    if implementation not in ("auto", *IMPLEMENTATIONS):
        raise ValueError(f"implementation must be one of auto, {', '.join(IMPLEMENTATIONS)}, got {implementation!r}")
    parts = family.parts(model)
    if isinstance(encoding, Stack) and len(parts) > 1:
        raise ValueError(f"encoding must be a name for a model of {len(parts)} parts, which differ, got a Stack")
    part_stacks = [_stack(family, part, encoding, length, from_config, options) for part in parts]
    mark_replaced(model)
    for part, stack in zip(parts, part_stacks, strict=True):
        _install(family, part, stack.train(model.training), implementation)
    if (
        model.can_generate() and part_stacks[-1].first.sizes.causal
    ):  # in an encoder and decoder, the last is the decoder's
        object.__setattr__(model, "prepare_inputs_for_generation", Preparation(model, part_stacks[-1]))
        model.generation_config.disable_compile = True  # steps with a cache are not compiled
    model.config.pe_lab = _record(encoding, part_stacks[0].first.sizes.length, implementation, from_config, options)
    return model


def stacks(model: PreTrainedModel) -> list[Stack]:
    """Return the encodings of a model; call `constrain` of each after every optimizer step."""
    return [module for module in model.modules() if isinstance(module, Stack)]


def _stack(
    family: ModelFamily,
    part: PreTrainedModel,
    encoding: str | Stack,
    length: int | None,
    from_config: bool,
    options: dict[str, Any],
) -> Stack:
    """Return the encodings of a part of a model."""
    attentions = family.attentions(part)
    config, depth, causal = part.config, len(attentions), family.is_causal(part)
    width, num_heads, head_dim = config.hidden_size, config.num_attention_heads, model_head_dim(config)
    if isinstance(encoding, Stack):
        if options or length is not None:
            names = ", ".join([*options, *(["length"] if length is not None else [])])
            raise ValueError(f"options belong to the name of an encoding, got a Stack and {names}")
        stack_sizes = encoding.first.sizes
        has = {
            "width": stack_sizes.width,
            "num_heads": stack_sizes.num_heads,
            "depth": encoding.depth,
            "causal": stack_sizes.causal,
        }
        needs = {"width": width, "num_heads": num_heads, "depth": depth, "causal": causal}
        has["head_dim"], needs["head_dim"] = stack_sizes.given_head_dim or head_dim, head_dim
        if has != needs:
            wrong = [name for name in has if has[name] != needs[name]]
            raise ValueError(
                f"the Stack must have {_values_in_words(needs, wrong)}, got {_values_in_words(has, wrong)}"
            )
        _require_windows(encoding, part, attentions)
        return encoding
    length = family.length(config) if length is None else length
    if length is None:
        raise ValueError(f"length must be given: {config.model_type} has no max_position_embeddings, got None")
    for option in options:
        if option in SIZE_ARGUMENTS:
            raise ValueError(f"options of {encoding} must not be sizes, which are those of the model, got {option}")
    sizes: dict[str, Any] = {"width": width, "num_heads": num_heads, "depth": depth, "length": length, "causal": causal}
    if head_dim * num_heads != width:
        sizes["head_dim"] = head_dim
    stack = _with_settings(family.positions(part), encoding, options, sizes) if from_config else None
    stack = stack or make(encoding, **sizes, **options)
    _require_windows(stack, part, attentions)
    return stack


def _with_settings(positions: ModelPositions, encoding: str, options: dict[str, Any], sizes: dict[str, Any]) -> Stack:
    """Return the encodings of layers with the model's settings, which may differ by layer."""
    layers = positions.of_layers(sizes["depth"])
    kinds = list(dict.fromkeys(layers))
    encodings = [complete_options(kind, encoding, options) for kind in kinds]
    name, completed = encodings[0]
    if all(each == encodings[0] for each in encodings):
        stack = make(name, **sizes, **completed)
        first = [stack.first] * len(kinds)
    else:
        stacks = [make(name, **sizes, **completed) for name, completed in encodings]  # errors name an option
        if any(stack.first.period > 1 for stack in stacks):
            raise ValueError(
                f"{encoding} alternates over layers, and positions of the model differ by layer too: give "
                f"from_config=False for an encoding with none of the model's settings"
            )
        period = next(
            n for n in range(1, len(layers) + 1) if all(a is b for a, b in zip(layers, layers[n:], strict=False))
        )
        runs = [(kinds.index(kind), len(list(run))) for kind, run in groupby(layers[:period])]
        parts = [
            partial(factory(encodings[kind][0]), name=encodings[kind][0], **encodings[kind][1]) for kind, _ in runs
        ]
        stack = make("interleave", **sizes, parts=parts, layers=[count for _, count in runs])
        alternating = [stack.of_layer(layers.index(kind)) for kind in kinds]
        first = [each.members()[0] for each in alternating if isinstance(each, Interleave)]
    for kind, each, its in zip(kinds, first, encodings, strict=True):
        if its == (kind.name, kind.options):
            kind.adopt(each)
    return stack


def _require_windows(stack: Stack, part: PreTrainedModel, attentions: list[Any]) -> None:
    """Raise ValueError if layers have sliding windows, and the encoding draws positions, which makes them wider."""
    limits = windows(part, attentions)
    if limits and stack.first.draws_positions:
        raise ValueError(
            f"{stack.first.name} draws its own positions, and layers of {type(part).__name__} see "
            f"{', '.join(map(str, sorted(limits)))} positions: use an encoding that takes positions as they are"
        )


def _install(family: ModelFamily, part: PreTrainedModel, stack: Stack, implementation: str) -> None:
    """Put encodings into a part of a model."""
    attentions = family.attentions(part)
    family.remove(part)
    stack.to(part.device)
    part.add_module(ATTENTION_NAME, stack)
    part.config._attn_implementation = part.config.pe_lab_attention
    argument = ATTENTION_NAME
    if family.images:
        image = ImageHook(stack)
        part.register_forward_pre_hook(image, with_kwargs=True)
        part.get_submodule("embeddings.dropout").register_forward_pre_hook(image.embed)
    else:
        replaced = None
        if family.position_method is not None:
            replaced, argument = ReplacedMethod(), family.position_method.argument
            object.__setattr__(
                part.get_submodule(family.position_method.module), family.position_method.method, replaced
            )
        hook = InputHook(stack, family.passes_zeros, family.mask, replaced)
        part.register_forward_pre_hook(hook, with_kwargs=True)
    for module in part.modules():
        if uses_interface(module):
            object.__setattr__(module, "pe_lab_replaced", True)
    head_dim, config = stack.first.sizes.head_dim, part.config
    num_values = head_dim * (getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    for index, attention in enumerate(attentions):
        if family.rewritten is not None:
            attention.__class__ = family.rewritten
            attention.config = part.config
        attention.config._attn_implementation = attention.config.pe_lab_attention
        entering = AttentionHook(index, implementation, family.fused, argument, head_dim, num_values)
        attention.register_forward_pre_hook(entering.before, with_kwargs=True)
        attention.get_submodule(family.value).register_forward_hook(entering.after_projection)


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


def _values_in_words(values: dict[str, int], names: list[str]) -> str:
    return ", ".join(f"{name}={values[name]}" for name in names)
