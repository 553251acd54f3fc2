"""Decide whether W&B is online before it starts, so that it neither prompts nor hangs."""

import netrc
import os
import shlex
import sys
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from omegaconf import DictConfig

from pe_lab.system.time_limit import call_within

MODES = ("online", "offline", "disabled")
# print only this program's lines; send no telemetry, which the end of the program would wait for
QUIET_VARIABLES = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
REACH_SECONDS = 5.0  # seconds to wait for the W&B server to answer before going offline


def settle_wandb(cfg: DictConfig) -> None:
    """Set WANDB_MODE for this process and those it starts, if W&B is a logger; say so where it is offline unasked.

    Raises:
        ValueError: online is asked for and there is no key.
    """
    if wandb := cfg.logger.get("wandb"):
        chosen = os.environ.get("WANDB_MODE") or wandb.mode
        os.environ["WANDB_MODE"] = mode = wandb_mode(wandb.mode, wandb.decide_timeout)
        if mode == "offline" and not chosen:
            print(f"W&B is offline: {how_to_upload(Path(cfg.ledger).absolute() / 'wandb')}", file=sys.stderr)


def how_to_upload(folder: Path) -> str:
    """Return where offline runs are, as the command that uploads them."""
    return f"wandb sync {shlex.quote(str(folder))}/offline-run-* uploads the runs"


def wandb_mode(configured: str | None, seconds: float = REACH_SECONDS) -> str:
    """Return WANDB_MODE, else the config's mode, else online if there is a key and the server answers, else offline.

    An empty WANDB_MODE is removed: W&B would refuse it.

    Args:
        seconds: the time in which the server must answer, in seconds.

    Raises:
        ValueError: online is asked for and there is no key; there is no such mode.
    """
    for name, value in QUIET_VARIABLES.items():
        os.environ.setdefault(name, value)
    if os.environ.get("WANDB_MODE") == "":
        del os.environ["WANDB_MODE"]
    mode = os.environ.get("WANDB_MODE") or configured
    if mode not in (None, *MODES):
        raise ValueError(f"WANDB_MODE must be one of {', '.join(MODES)}, got {mode!r}")
    if mode in ("offline", "disabled"):
        return mode
    has_login = has_key()
    if mode == "online" and not has_login:
        raise ValueError("logger.wandb.mode=online needs a W&B key: wandb login, or logger.wandb.mode=offline")
    return mode or ("online" if has_login and _answers(_server(), seconds) else "offline")


def has_key() -> bool:
    """Return whether the user is logged in to the W&B server: by WANDB_API_KEY or a netrc file."""
    has_login = bool(os.environ.get("WANDB_API_KEY"))
    with suppress(OSError, netrc.NetrcParseError):
        host = urlsplit(_server()).hostname or ""
        has_login = has_login or netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    return has_login


def _server() -> str:
    from wandb.sdk import wandb_setup

    return wandb_setup.singleton().settings.base_url  # wandb.setup would start its service


def _answers(url: str, seconds: float) -> bool:
    """Return whether anything at this address answers HTTP in time, with any status.

    The time limit of `urlopen` is per read, and does not cover the name's look-up.
    """
    try:
        call_within(seconds, lambda: urlopen(url, timeout=seconds).close(), "asking the W&B server")
    except HTTPError:
        return True
    except (OSError, HTTPException):
        return False
    return True
