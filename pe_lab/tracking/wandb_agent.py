"""Whether a W&B agent has started this process. Loads nothing, as a program asks before it knows its config."""

import os


def agent_run() -> str | None:
    """Return the id of the W&B run that a W&B agent started this process for, or None."""
    return os.environ.get("WANDB_RUN_ID") if os.environ.get("WANDB_SWEEP_ID") else None
