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
    import wandb

    url = wandb.setup().settings.base_url
    known = bool(os.environ.get("WANDB_API_KEY"))
    with suppress(OSError, netrc.NetrcParseError):
        known = known or netrc.netrc(os.environ.get("NETRC")).authenticators(urlsplit(url).hostname or "") is not None
    if mode == "online" and not known:
        raise ValueError("logger.mode=online needs a W&B key: wandb login, or logger.mode=offline")
    return mode or ("online" if known and _answers(url) else "offline")


def _answers(url: str) -> bool:
    """Whether something at this address speaks HTTP, whatever it says."""
    try:
        urlopen(url, timeout=REACH).close()
    except HTTPError:
        return True
    except (OSError, HTTPException):
        return False
    return True
