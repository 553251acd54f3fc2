"""Run a benchmark or a simulation by its name: python -m benchmarks NAME ..."""

import importlib
import sys

from pe_lab.system.escaping import escape_control
from pe_lab.system.names import unknown_name_message

BENCHMARKS = {
    "encoding_steps": "time a training step with each encoding on one thread of a CPU",
    "long_sequences": "measure the memory of a training step on long sequences, on a CPU",
    "speed": "time encodings in a plain model on a CPU, against transformers and against none",
    "study": "time the lab against a plain PyTorch loop",
    "ledger": "time reading and reporting a ledger of made-up cells",
    "peers": "time training steps beside x-transformers and transformers, on a CPU",
    "rate": "compare a training step with the rate of matrix products, on a CPU",
    "gpu": "run all that needs a GPU: self-test, tests, sanitizer, tune, kernels and a sweep",
    "gpu_steps": "time training steps on a GPU, as usual and as a CUDA graph",
    "kernels": "time attention by Triton, FlexAttention and PyTorch, on a GPU",
    "tune": "measure blocks of the kernels on this GPU and keep the fastest in the package's table",
    "resources": "list registers, spills and shared memory of the kernels, compiled without a GPU",
    "static": "count the kernels' instructions per pair, or choose blocks by them, without a GPU",
    "export": "run encodings compiled, exported, as ONNX and in transformers' models",
    "families": "put every encoding into every type of model of transformers that takes them",
    "faults": "kill, damage and starve sweeps, and count what is lost",
    "simulate_verdicts": "simulate studies under the protocol: how often verdicts are wrong",
    "simulate_tables": "simulate comparisons in tables of cells, whose variances are estimated together",
}


def main() -> None:
    """Run the benchmark that the first argument names, with the arguments after it; without any, list them."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        lines = [f"  {each:18}{text}" for each, text in BENCHMARKS.items()]
        print("\n".join(["usage: python -m benchmarks NAME ...", "", *lines, "", "NAME --help says more of each"]))
    elif name in BENCHMARKS:
        sys.argv = [f"python -m benchmarks {name}", *arguments]
        importlib.import_module(f"benchmarks.{name}").main()
    else:
        print(f"error: {escape_control(unknown_name_message('NAME', BENCHMARKS, name))}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
