"""How long a 70B Llama takes to be traced, and how much memory: it is built and run without values.

Run `.venv/bin/python benchmarks/trace.py`. Exits with 1 where it takes more than the limits. The seconds of the imports
are told apart.
"""

import resource
import sys
import time

from rich.console import Console
from rich.table import Table

LIMIT_S, LIMIT_GIB = 20.0, 4.0
LLAMA_70B = {  # meta-llama/Llama-3.1-70B, config.json
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
PARAMETERS = 70_553_706_496


def main() -> int:
    started = time.perf_counter()
    import transformers

    from meshwright.trace.module import trace

    config = transformers.LlamaConfig(**LLAMA_70B)
    imported = time.perf_counter()
    computing = time.process_time()
    spec = trace(lambda: transformers.LlamaForCausalLM(config), name="llama-3.1-70b")
    wall, cpu = time.perf_counter() - imported, time.process_time() - computing
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux: KiB
    table = Table(title=f"a trace of {spec.parameters:,} parameters in {len(spec.layers)} layers")
    for column in ("imports, s", "trace, wall s", "trace, CPU s", "peak resident, GiB"):
        table.add_column(column, justify="right")
    table.add_row(f"{imported - started:.1f}", f"{wall:.1f}", f"{cpu:.1f}", f"{gib:.2f}")
    Console().print(table)
    return int(spec.parameters != PARAMETERS or wall > LIMIT_S or gib > LIMIT_GIB)


if __name__ == "__main__":
    sys.exit(main())
