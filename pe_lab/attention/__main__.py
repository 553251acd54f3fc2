"""Test the Triton kernels on this device: python -m pe_lab.attention selftest [--interpreter]."""

import argparse
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

INTERPRETED_LENGTH = 50  # there, tiles have at most 32 tokens
INTERPRETED_SECONDS = 3600
COLUMNS = ("family", "dtype", "cases", "largest error", "bound", "pass")


def main() -> None:
    """Print the table of the self-test; exit with status 1 if a case fails, or if it cannot run."""
    parser = argparse.ArgumentParser("python -m pe_lab.attention", description=__doc__)
    words = parser.add_subparsers(dest="word", required=True, metavar="WORD")
    test = words.add_parser("selftest", help="compare the Triton kernels with the reference, and keep the verdict")
    test.add_argument("--interpreter", action="store_true", help="in Triton's interpreter, on a CPU; keeps no verdict")
    test.add_argument("--device", help="one GPU, as cuda:1 (the current one)")
    test.add_argument("--share", nargs=2, metavar=("N/M", "FILE"), help=argparse.SUPPRESS)  # see selftest_verdict
    arguments = parser.parse_args()
    if arguments.interpreter or arguments.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported
    if arguments.share:
        run_share(arguments.share[0], Path(arguments.share[1]), arguments.device)
        return
    try:
        failed = selftest("cpu" if arguments.interpreter else arguments.device or "cuda")
    except ValueError as error:
        failed = str(error)
    if failed:
        print(f"error: {failed}", file=sys.stderr)
        sys.exit(1)


def selftest(device_name: str) -> str | None:
    """Run the self-test, print its table and keep its verdict; return why it failed, or None.

    Raises:
        ValueError: the device is not there, or Triton is not.
    """
    import torch

    from pe_lab.attention import selftest_verdict, triton
    from pe_lab.encodings.layout import Layout
    from pe_lab.encodings.terms import Terms

    if device_name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError("selftest needs a CUDA device, got none; --interpreter runs it on a CPU")
    device = torch.device(device_name)
    lengths = torch.ones(1, dtype=torch.long, device=device)
    if reason := triton.refusal_reason(
        torch.zeros(1, 1, 1, 16, device=device), Terms(), Layout.of_lengths(lengths, 1, True)
    ):
        raise ValueError(f"selftest cannot run: {reason}")
    verdict = (
        selftest_verdict.run_selftest(device)
        if device.type == "cuda"
        else selftest_verdict.run_selftest(device, seconds=INTERPRETED_SECONDS)
    )
    print("\n".join(format_table(verdict.rows)))
    for kind, times in verdict.milliseconds.items():
        print(f"{kind:28} triton {times['triton']:8.3f} ms  sdpa {times['sdpa']:8.3f} ms  {verdict.faster(kind)}")
    if device.type == "cuda":
        made_with = selftest_verdict.verdict_identity(device)
        selftest_verdict.write_verdict(selftest_verdict.verdict_path(made_with), made_with, verdict)
    return verdict.failed


def format_table(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the table: a line per family and precision, with the error nearest to its bound."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["family"], row["dtype"]), []).append(row)
    lines = [COLUMNS]
    for (family, dtype), members in groups.items():
        passed = all(row["error"] <= row["bound"] for row in members)
        worst = max(members, key=lambda row: (row["error"] != row["error"], row["error"] / row["bound"]))
        numbers = (f"{worst['error']:.1e}", f"{worst['bound']:.1e}")
        lines.append((family, dtype, str(len(members)), *numbers, "yes" if passed else "NO"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def run_share(part: str, path: Path, device_name: str) -> None:
    """Run the n-th of every m cases, or the timings, and append each outcome to a file."""
    import torch

    from pe_lab.attention.selftest import LENGTH, compare_case, selftest_cases, time_kernels

    device = torch.device(device_name)
    torch.set_num_threads(1)
    if device.index is not None:
        torch.cuda.set_device(device)
    with path.open("w", encoding="utf-8") as file:

        def note(**entry: object) -> None:
            print(json.dumps(entry), file=file, flush=True)

        if part == "race":
            note(milliseconds=time_kernels(device))
            return
        number, count = map(int, part.split("/"))
        length = INTERPRETED_LENGTH if device.type == "cpu" else LENGTH
        for case in selftest_cases(length)[number::count]:
            note(begin=case.name)
            note(row=asdict(compare_case(case, device)))


if __name__ == "__main__":
    main()
