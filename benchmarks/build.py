"""What a rank holds while a Llama of 1.1 billion parameters is built from the meta device on four processes.

python benchmarks/build.py
"""

import resource
import threading
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

import meshwright as mw
from meshwright.runtime.shard import local_part
from meshwright.train.launch import WorkerPool, preload

SIZES: dict[str, Any] = {  # TinyLlama's
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
PROCESSES, MIB = 4, 2**20
PLANS: dict[str, dict[str, Any]] = {
    "zero3": {"dp": 4, "zero": 3},
    "tp": {"tp": 4},
    "tp 2, zero3 over 2": {"tp": 2, "dp": 2, "zero": 3},
}


class Resident:
    """The most memory that the process had of its own while active, beyond what it had before, looked at every ms."""

    def __enter__(self) -> "Resident":
        self.before, self.most, self._stop = _own(), 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.001):
            self.most = max(self.most, _own() - self.before)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _own() -> int:
    """Bytes of the process's anonymous memory: what it wrote itself."""
    _, resident, shared = (int(number) for number in Path("/proc/self/statm").read_text().split()[:3])
    return (resident - shared) * resource.getpagesize()


def _on_meta() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(**SIZES, attn_implementation="sdpa")).train()


def _built(plan: Any, recipe: Any) -> tuple[float, ...]:
    """MiB at the peak, of the rank's part, of the largest layer; seconds, and those of the CPU."""
    module = _on_meta()
    spec = mw.model(module.config)
    size = dict.fromkeys((layer.name for layer in spec.layers), 0)
    for name, parameter in module.named_parameters():
        size[str(spec.layer_of(name))] += parameter.nbytes
    wall, cpu = time.perf_counter(), time.process_time()
    with Resident() as resident:
        mw.parallelize(module, plan, recipe=recipe)
    took = time.perf_counter() - wall, time.process_time() - cpu
    part = sum(local_part(each).nbytes for each in module.parameters())
    return resident.most / MIB, part / MIB, max(size.values()) / MIB, *took


def main() -> None:
    """Print a table."""
    preload()
    say = Console(width=200, highlight=False).print
    precision = {"compute": "fp32", "reduce": "fp32", "master": None}
    recipe = mw.recipe(global_batch=8, sequence=128, precision=precision)
    model = mw.model(_on_meta().config)
    say(f"{model.parameters / 1e9:.2f} billion parameters in float32, {model.parameters * 4 / MIB:,.0f} MiB; MiB:\n")
    say("| plan | a rank's part | largest layer | peak, fullest rank | limit | peak over limit | wall s | CPU s |")
    say("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name, sizes in PLANS.items():
        plan = mw.uniform_plan(model, mw.cluster(f"cpu:{PROCESSES}"), recipe, **sizes)
        with WorkerPool(PROCESSES) as pool:
            told = pool.run(_built, plan, recipe, timeout=900.0)
        peak, part, layer, wall, cpu = max(told)
        limit = 1.3 * part + layer
        say(
            f"| {name} | {part:,.0f} | {layer:,.0f} | {peak:,.0f} | {limit:,.0f} | {peak / limit:.2f} | "
            f"{wall:.1f} | {cpu:.1f} |"
        )


if __name__ == "__main__":
    main()
