"""A whole training step of ours beside Accelerate, DeepSpeed, and the same loop in bare PyTorch (FSDP2, ZeRO-3).

    python benchmarks/train_vs_peers.py [--pairs 24]

All train one Llama on the standard library's source, from the same values, sharded over the same four CPU
processes; their steps take turns, so that whatever else the machine does meets all alike. Ours is `meshwright train`'s
own loop with what a run does by default: data, votes, metrics, TensorBoard. The peers find their batch in memory and
write a line every ten steps. The ratio is theirs over ours, of the medians: of seconds it is that of tokens/s. Then
what of our step is spent outside forward, backward, clipping and optimizer. Exits with 1 where they do not learn alike.

Accelerate 1.15 takes FSDP2 for GPUs alone: here it is told after its start that it has it, and wraps and runs as it
does there. DeepSpeed (ZeRO-3, torch's AdamW) takes part where it is installed: from its source, without compiled
operators, `DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed`.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import meshwright as mw
from meshwright.plan.rules import Inputs
from meshwright.recipe.run import Run
from meshwright.runtime.initial import InitialValues
from meshwright.runtime.parallelize import parallelize
from meshwright.train.build import build_module
from meshwright.train.data import open_data
from meshwright.train.job import Job
from meshwright.train.launch import WorkerPool, preload
from meshwright.train.metrics import sinks
from meshwright.train.optimizers import Stepper
from meshwright.train.saver import Saver
from meshwright.train.trainer import Trainer
from runtime_vs_torch import LENGTH, PROCESSES, SAMPLES, WARM, ratio
from runtime_vs_torch import SIZES as ALIKE

SIZES: dict[str, Any] = ALIKE | {"num_hidden_layers": 4, "model_type": "llama", "tie_word_embeddings": False}
RATE, CLIP, LINE_EVERY = 1e-3, 1.0, 10
Batch = dict[str, Tensor]


class Cost(NamedTuple):
    """Seconds of a step: on the wall, from the first rank's start to the last one's end, and of all ranks' CPUs."""

    wall: float
    cpu: float


class Fsdp2:
    """The bare loop: FSDP2 by hand."""

    def __init__(self, module: Any, folder: Path) -> None:
        self.module = self.wrapped(module)
        self.optimizer = self.prepared(
            torch.optim.AdamW(module.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        )
        self.file = (folder / f"{type(self).__name__}-{dist.get_rank()}.jsonl").open("w")

    def wrapped(self, module: Any) -> Any:
        """The module, sharded: each layer, and the rest with the root."""
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in module.model.layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(module, mesh=mesh)

    def prepared(self, optimizer: torch.optim.Optimizer) -> Any:
        """The optimizer of the sharded parameters."""
        return optimizer

    def backward(self, loss: Tensor) -> None:
        """Gradients."""
        loss.backward()

    def clip(self) -> None:
        """By the global norm."""
        nn.utils.clip_grad_norm_(self.module.parameters(), CLIP)

    def step(self, number: int, batch: Batch) -> float:
        """One step on this rank's share of the global batch."""
        ids, labels = (batch[name].chunk(PROCESSES)[dist.get_rank()] for name in ("input_ids", "labels"))
        logits = self.module(input_ids=ids, use_cache=False).logits
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        self.backward(loss)
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        mean = loss.detach() / PROCESSES
        dist.all_reduce(mean)
        if dist.get_rank() == 0 and number % LINE_EVERY == 0:
            self.file.write(json.dumps({"step": number, "loss": float(mean)}) + "\n")
            self.file.flush()
        return float(mean)


class Accelerate(Fsdp2):
    """The same loop by Accelerate."""

    def __init__(self, module: Any, folder: Path) -> None:
        from accelerate import Accelerator, FullyShardedDataParallelPlugin
        from accelerate.utils import DistributedType

        rank, size = str(dist.get_rank()), str(dist.get_world_size())
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        self.accelerator = Accelerator(cpu=True)
        self.accelerator.state.distributed_type = DistributedType.FSDP
        self.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
            cpu_ram_efficient_loading=False,
        )
        super().__init__(module, folder)

    def wrapped(self, module: Any) -> Any:
        """Both are prepared together."""
        return module

    def prepared(self, optimizer: torch.optim.Optimizer) -> Any:
        """Accelerate's own wrapping, of module and optimizer."""
        self.module, made = self.accelerator.prepare(self.module, optimizer)
        return made

    def backward(self, loss: Tensor) -> None:
        """Gradients."""
        self.accelerator.backward(loss)

    def clip(self) -> None:
        """By the global norm."""
        self.accelerator.clip_grad_norm_(self.module.parameters(), CLIP)


class DeepSpeed(Fsdp2):
    """The same loop by DeepSpeed's engine, which clips as it steps."""

    def wrapped(self, module: Any) -> Any:
        """Engine and optimizer are made together."""
        return module

    def prepared(self, optimizer: torch.optim.Optimizer) -> Any:
        """The engine, in the module's place and in the optimizer's."""
        import deepspeed

        self.module, *_ = deepspeed.initialize(
            model=self.module,
            optimizer=optimizer,
            dist_init_required=False,
            config={
                "train_micro_batch_size_per_gpu": SAMPLES // PROCESSES,
                "gradient_clipping": CLIP,
                "zero_optimization": {"stage": 3},
                "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False,
            },
        )
        return self.module

    def backward(self, loss: Tensor) -> None:
        """Gradients."""
        self.module.backward(loss)

    def clip(self) -> None:
        """Done by the engine's step."""


PEERS: dict[str, Callable[[nn.Module, Path], Any]] = {"bare PyTorch, FSDP2": Fsdp2, "Accelerate, FSDP2": Accelerate}
if find_spec("deepspeed") is not None:
    os.environ |= {"DS_ACCELERATOR": "cpu"}
    PEERS["DeepSpeed, ZeRO-3"] = DeepSpeed


class Inside:
    """How long this rank is in some functions: wall, CPU."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, on the clock."""

        def call(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            found = function(*args, **kwargs)
            self.wall, self.cpu = self.wall + time.perf_counter() - wall, self.cpu + time.process_time() - cpu
            return found

        return call


class Turns:
    """The data of our run, and the seam between its steps, where the peers take theirs."""

    def __init__(self, data: Any, peers: dict[str, Any], batches: list[Batch], inside: Inside) -> None:
        self._data, self._peers, self._batches, self._inside = data, peers, batches, inside
        self._start: tuple[float, float] | None = None
        self.costs: dict[str, list[Cost]] = {name: [] for name in ("ours", *peers)}
        self.losses: dict[str, list[float]] = {name: [] for name in peers}
        self.outside: list[Cost] = []
        """Of this rank's step what was not in a timed function, as shares of it."""

    def batch(self, step: int) -> Batch:
        """End our step before, let the peers take theirs, and begin ours."""
        if self._start is not None:
            self._end()
        for name in list(self._peers)[:: 1 if step % 2 else -1]:
            with self._on_the_clock(name):
                self.losses[name].append(self._peers[name].step(step + 1, self._batches[step]))
        dist.barrier()
        self._inside.wall = self._inside.cpu = 0.0
        self._start = time.perf_counter(), time.process_time()
        return dict(self._data.batch(step))

    def _end(self) -> None:
        assert self._start is not None
        wall, cpu = time.perf_counter() - self._start[0], time.process_time() - self._start[1]
        self.outside.append(Cost(1 - self._inside.wall / wall, 1 - self._inside.cpu / cpu))
        self._note("ours", self._start[0], cpu)

    @contextmanager
    def _on_the_clock(self, name: str) -> Iterator[None]:
        dist.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self._note(name, wall, time.process_time() - cpu)

    def _note(self, name: str, start: float, cpu: float) -> None:
        dist.barrier()
        wall, used = time.perf_counter() - start, torch.tensor(cpu, dtype=torch.float64)
        dist.all_reduce(used)
        self.costs[name].append(Cost(wall, float(used)))


def measured(job: Job) -> tuple[dict[str, list[Cost]], list[Cost], dict[str, float]]:
    """On every rank: what each step cost, shares outside of ours, and by how much the peers' losses differ."""
    warnings.filterwarnings("ignore")
    run = job.run
    values = InitialValues(build_module(run), run.recipe.seed)
    data = open_data(run.data, run.recipe, job.inputs.model)
    peers = {}
    for name, make in PEERS.items():
        module = build_module(run, device="cpu")
        for held, parameter in module.named_parameters():
            parameter.data.copy_(values.make(held, torch.device("cpu")))
        peers[name] = make(module, job.folder)
    inside, told = Inside(), []
    parallel = parallelize(build_module(run), job.inputs)
    stepper = Stepper(parallel, run.recipe.optimizer)
    for owner, names in ((parallel, ("forward_backward", "clip_grad_norm_")), (stepper, ("step",))):
        for each in names:
            setattr(owner, each, inside.timed(getattr(owner, each)))
    turns = Turns(data, peers, [data.batch(step) for step in range(run.last_step)], inside)
    opened = sinks(run, 0) if dist.get_rank() == 0 else []

    def tell(event: dict[str, Any]) -> None:
        told.append(event)
        for sink in opened:
            sink.tell(event)

    saver = Saver(job.folder, run.checkpoints, lambda step: {"step": step}, last=None)
    Trainer(job, parallel, stepper=stepper, data=turns, held_out=None, saver=saver, tell=tell).train(0)
    ours = {event["step"]: event["loss"] for event in told if event["event"] == "step"}
    apart = {
        name: max(abs(losses[step - 1] - loss) / loss for step, loss in ours.items())
        for name, losses in turns.losses.items()
    }
    return {name: each[WARM:] for name, each in turns.costs.items()}, turns.outside[WARM:], apart


def job_in(folder: Path, steps: int) -> Job:
    """Our run."""
    (folder / "config.json").write_text(json.dumps(SIZES))
    run = Run.from_data(
        {
            "meshwright_run": 1,
            "model": str(folder / "config.json"),
            "recipe": {
                "global_batch": SAMPLES,
                "sequence": LENGTH,
                "precision": {"compute": "fp32", "reduce": "fp32", "master": None},
                "optimizer": {"learning_rate": RATE},
                "clip_norm": CLIP,
            },
            "data": {"limit": 200},
            "steps": steps,
            "folder": str(folder / "run"),
        }
    )
    model, cluster = mw.model(run.model), mw.cluster(f"cpu:{PROCESSES}")
    plan = mw.uniform_plan(model, cluster, run.recipe, zero=3, micro_batches=1)
    job = Job(run, Inputs(plan, model, cluster, run.recipe))
    job.folder.mkdir()
    return job


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=24)
    typed = parser.parse_args()
    preload()
    say = Console(width=200, highlight=False).print
    with tempfile.TemporaryDirectory() as place, WorkerPool(PROCESSES) as pool:
        job = job_in(Path(place), WARM + typed.pairs + 1)  # the last has no seam behind it
        found = pool.run(measured, job, timeout=None)
    costs, _, apart = found[0]
    costs = {name: each[: typed.pairs] for name, each in costs.items()}
    ours = [Cost(*(statistics.median(getattr(each, kind) for each in costs["ours"]) for kind in Cost._fields))]
    say("| peer | theirs, s | ours, s | tokens/s, ours over theirs | 95 % | by CPU seconds | 95 % | losses differ by |")
    say("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name in PEERS:
        wall, cpu = (
            ratio([getattr(each, kind) for each in costs[name]], [getattr(each, kind) for each in costs["ours"]])
            for kind in Cost._fields
        )
        theirs = statistics.median(each.wall for each in costs[name])
        say(
            f"| {name} | {theirs:.3f} | {ours[0].wall:.3f} | {wall[0]:.3f} | {wall[1]:.3f}–{wall[2]:.3f} | "
            f"{cpu[0]:.3f} | {cpu[1]:.3f}–{cpu[2]:.3f} | {apart[name]:.1e} |"
        )
    shares = [each for _, outside, _ in found for each in outside]
    wall_share, cpu_share = (statistics.median(getattr(each, kind) for each in shares) for kind in Cost._fields)
    say(f"outside forward, backward, clipping and optimizer, median: {wall_share:.2%} of wall, {cpu_share:.2%} of CPU")
    return int(max(apart.values()) > 1e-3)


if __name__ == "__main__":
    sys.exit(main())
