"""Our runtime beside programs written by hand with torch's own parts, on the same four CPU processes.

python benchmarks/runtime_vs_torch.py [--pairs 24] [--only ddp]

Both train the same Llama from the same values; the steps of the two take turns, so that whatever else the machine
does meets both alike. The ratio is theirs over ours, of the medians: 1.05 says that ours is 5 % faster. Its interval
holds 95 of 100 resamplings of the pairs. Exits with 1 where the two do not train alike.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn

import meshwright as mw
from hand_written import CLIP, Ddp, DTensorTp, Fsdp, OneFOneB, adamw
from meshwright.train.launch import WorkerPool, preload

SIZES: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 2048,
    "max_position_embeddings": 128,
}
SAMPLES, LENGTH, PROCESSES, WARM, RESAMPLED = 16, 64, 4, 3, 10_000
PROGRAMS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "DDP": (Ddp, {"dp": 4, "micro_batches": 2}, 4),
    "FSDP2": (Fsdp, {"dp": 4, "zero": 3, "micro_batches": 2}, 4),
    "DTensor tp": (DTensorTp, {"tp": 4, "micro_batches": 2}, 4),
    "1F1B, a layer a stage": (OneFOneB, {"pp": 4, "micro_batches": 8}, 4),
    "1F1B, four layers a stage": (OneFOneB, {"pp": 4, "micro_batches": 8}, 16),
}
"""Name → the program by hand, our plan for the same, and the model's layers."""


class Pair(NamedTuple):
    """Seconds of one step each: on the wall, and of all ranks' CPUs."""

    theirs: float
    ours: float
    their_cpu: float
    our_cpu: float


def _module(layers: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, num_hidden_layers=layers, attn_implementation="sdpa")
    return LlamaForCausalLM(config).train()


def _batch(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, SIZES["vocab_size"], (SAMPLES, LENGTH), generator=generator)
    return {"input_ids": ids, "labels": ids}


class Ours:
    """`mw.parallelize` in one's own loop."""

    def __init__(self, module: nn.Module, plan: Any, recipe: Any) -> None:
        self.parallel = mw.parallelize(module, plan, recipe=recipe)
        self.optimizer = adamw(self.parallel.parameter_groups())

    def step(self, batch: dict[str, Tensor]) -> float:
        """One step."""
        loss = self.parallel.forward_backward(batch)
        self.parallel.clip_grad_norm_(CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss)


def _timed(step: Callable[[dict[str, Tensor]], float], batch: dict[str, Tensor]) -> tuple[float, float, float]:
    """Loss, seconds from the first rank's start to the last one's end, seconds of all CPUs."""
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    loss = step(batch)
    used = torch.tensor(time.process_time() - cpu, dtype=torch.float64)
    dist.barrier()
    took = time.perf_counter() - wall
    dist.all_reduce(used)
    return loss, took, float(used)


def measured(program: Any, layers: int, plan: Any, recipe: Any, pairs: int) -> tuple[list[Pair], float]:
    """On every rank: the pairs, and the largest difference of the losses."""
    theirs, ours = program(_module(layers), plan.micro_batches), Ours(_module(layers), plan, recipe)
    found, apart = [], 0.0
    for number in range(WARM + pairs):
        batch, both = _batch(number), {}
        for name, side in (("theirs", theirs), ("ours", ours))[:: 1 if number % 2 else -1]:
            both[name] = _timed(side.step, batch)
        apart = max(apart, abs(both["theirs"][0] - both["ours"][0]) / both["ours"][0])
        found.append(Pair(both["theirs"][1], both["ours"][1], both["theirs"][2], both["ours"][2]))
    return found[WARM:], apart


def ratio(theirs: list[float], ours: list[float]) -> tuple[float, float, float]:
    """Of the medians, and the bounds of 95 % of its resamplings.

    >>> ratio([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    (2.0, 2.0, 2.0)
    """
    draw, count = random.Random(0), len(ours)
    found = []
    for _ in range(RESAMPLED):
        taken = draw.choices(range(count), k=count)
        found.append(statistics.median(theirs[at] for at in taken) / statistics.median(ours[at] for at in taken))
    found.sort()
    whole = statistics.median(theirs) / statistics.median(ours)
    return whole, found[RESAMPLED // 40], found[-RESAMPLED // 40]


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--only", help="the programs whose name begins so")
    chosen = parser.parse_args()
    preload()
    say = Console(width=200, highlight=False).print
    precision = {"compute": "fp32", "reduce": "fp32", "master": None}
    recipe = mw.recipe(global_batch=SAMPLES, sequence=LENGTH, precision=precision)
    cluster = mw.cluster(f"cpu:{PROCESSES}")
    say("| program | theirs, s | ours, s | theirs over ours | 95 % | CPU seconds | 95 % | losses differ by |")
    say("|---|--:|--:|--:|--:|--:|--:|--:|")
    alike = True
    for name, (program, degrees, layers) in PROGRAMS.items():
        if chosen.only and not name.lower().startswith(chosen.only.lower()):
            continue
        plan = mw.uniform_plan(mw.model(_module(layers).config), cluster, recipe, **degrees)
        with WorkerPool(PROCESSES) as pool:
            pairs, apart = pool.run(measured, program, layers, plan, recipe, chosen.pairs, timeout=None)[0]
        wall = ratio([each.theirs for each in pairs], [each.ours for each in pairs])
        cpu = ratio([each.their_cpu for each in pairs], [each.our_cpu for each in pairs])
        say(
            f"| {name} | {statistics.median(each.theirs for each in pairs):.3f} | "
            f"{statistics.median(each.ours for each in pairs):.3f} | {wall[0]:.3f} | {wall[1]:.3f}–{wall[2]:.3f} | "
            f"{cpu[0]:.3f} | {cpu[1]:.3f}–{cpu[2]:.3f} | {apart:.1e} |"
        )
        alike = alike and apart < 1e-3
    return 0 if alike else 1


if __name__ == "__main__":
    sys.exit(main())
