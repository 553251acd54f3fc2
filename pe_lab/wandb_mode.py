"""Whether W&B is online: decided before it is started, so that it neither asks nor hangs."""

import netrc
import os
from contextlib import suppress
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from omegaconf import DictConfig

MODES = ("online", "offline", "disabled")
REACH = 2.0  # seconds to wait for the W&B server to answer before going offline


def settle_wandb(cfg: DictConfig) -> None:
    """Decide the mode once for this process and those it starts, if W&B is the logger.

    Raises:
        ValueError: it is to be online and there is no key; W&B would ask for one.
    """
    if cfg.logger.name == "wandb":
        os.environ["WANDB_MODE"] = wandb_mode(cfg.logger.mode)


def agent_run() -> str | None:
    """The id of the run that a W&B agent started this process for, or None."""
    return os.environ.get("WANDB_RUN_ID") if os.environ.get("WANDB_SWEEP_ID") else None


def wandb_mode(asked: str | None) -> str:
    """The mode that neither asks nor hangs: WANDB_MODE, else what the config asks for, else online when there is a key
    and the server answers, else offline.

    Raises:
        ValueError: it is to be online and there is no key; or there is no such mode.
    """
    mode = os.environ.get("WANDB_MODE") or asked
    if mode not in (None, *MODES):
        raise ValueError(f"WANDB_MODE must be one of {', '.join(MODES)}, got {mode!r}")
    if mode in ("offline", "disabled"):
        return mode
    known = has_key()
    if mode == "online" and not known:
        raise ValueError("logger.mode=online needs a W&B key: wandb login, or logger.mode=offline")
    return mode or ("online" if known and _answers(_server()) else "offline")


def has_key() -> bool:
    """Whether the user is logged in to the W&B server: by WANDB_API_KEY or a netrc file."""
    known = bool(os.environ.get("WANDB_API_KEY"))
    with suppress(OSError, netrc.NetrcParseError):
        host = urlsplit(_server()).hostname or ""
        known = known or netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    return known


def _server() -> str:
    import wandb

    return wandb.setup().settings.base_url


def _answers(url: str) -> bool:
    """Whether something at this address speaks HTTP, whatever it says."""
    try:
        urlopen(url, timeout=REACH).close()
    except HTTPError:
        return True
    except (OSError, HTTPException):
        return False
    return True
