"""Names of length policies with their options, as `self_extend:8:32`. Nothing here imports torch."""

from pe_lab.encodings.options import OptionError

PLAIN_POLICIES = ("raw", "pi", "ntk", "dynamic_ntk", "yarn", "llama3", "randomized")
FAR_POLICIES = {  # policies that rotate distant pairs in another way, and their options: all are given, or none
    "self_extend": ("GROUP", "WINDOW"),
    "rerope": ("WINDOW",),
    "leaky_rerope": ("WINDOW", "K"),
}
POLICY_NAMES = (*PLAIN_POLICIES, *FAR_POLICIES)
POLICY_FORMS = (*PLAIN_POLICIES, *(f"{name}[:{':'.join(options)}]" for name, options in FAR_POLICIES.items()))


def parse_policy(policy: object) -> tuple[str, tuple[int, ...]]:
    """Return the name and the integer options of a policy; no options: the defaults are used.

    Raises:
        OptionError: there is no such policy, or it takes no such options.
    """
    name, *numbers = policy.split(":") if isinstance(policy, str) else [""]
    counts = (0, len(FAR_POLICIES[name])) if name in FAR_POLICIES else (0,) if name in PLAIN_POLICIES else ()
    if len(numbers) not in counts or not all(option.isdecimal() and int(option) >= 1 for option in numbers):
        raise OptionError(
            f"policy must be one of {', '.join(POLICY_FORMS)}, where words in capitals are integers of at least 1, got "
            f"{policy!r}"
        )
    return name, tuple(map(int, numbers))


def is_policy(policy: object) -> bool:
    """Return whether a policy is valid."""
    try:
        parse_policy(policy)
    except OptionError:
        return False
    return True
