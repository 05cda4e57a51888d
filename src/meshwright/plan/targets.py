"""What other systems can express of a plan, each by a named release: what their rules ask, and the search keeps to.

Megatron-LM: megatron-core 0.16.1, `transformer_config.py` and `model_parallel_config.py` (`tensor-`, `pipeline-`,
`context-`, `expert-model-parallel-size`; `cp_comm_type`: p2p is a ring, a2a is Ulysses; `recompute_granularity`,
`recompute_method: block`; `pipeline_model_parallel_layout` cuts layers anywhere; `use_distributed_optimizer`,
`num_distributed_optimizer_instances`), and the training script's `--use-tp-pp-dp-mapping`.
Its own FSDP (`--use-megatron-fsdp`) is left out.

torchtitan: 0.3.0, `config/configs.py` (ParallelismConfig), `distributed/parallel_dims.py` (cp is part of the FSDP mesh;
ep borrows ranks of FSDP and tp, so that experts have no tp of their own), `distributed/activation_checkpoint.py` (full,
or selective: every second matmul is computed again), `module_fqns_per_model_part`. `fsdp_reshard_after_forward: never`
gathers once a micro-batch, which no state of a plan does; but in pipelines once a step, as torch's stages let modules
of FSDP go after the last backward (`torch/distributed/pipelining/stage.py`), and `default` is the same there.

DeepSpeed: 0.19, `runtime/pipe/engine.py` (ZeRO 2 and 3 are refused with pipelines; TrainSchedule is 1f1b), the tutorial
"Automatic Tensor Parallelism (Training)" (AutoTP with ZeRO 0 to 2), "Ulysses". Pipelines, AutoTP and Ulysses are
documented each without the others; its MoE layer stands in the model's own code.

Accelerate: 1.15, FSDP2 alone (`fsdp_version: 2`, `utils/fsdp_utils.py`), with replicas by its `parallelism_config`.
`fsdp_offload_params` takes parameters and optimizer states together. Its `fsdp_reshard_after_forward: false` gathers
once a micro-batch, which no state of a plan does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

State = str | None


@dataclass(frozen=True)
class Target:
    """What a system can be told. Splits by the words of roles, and `pp`; states without the one that shards nothing."""

    title: str
    release: str
    splits: tuple[str, ...]
    states: tuple[str, ...]
    schedules: tuple[str, ...]
    recomputes: tuple[str, ...]
    """Words of `recompute`, from the least memory to the least time."""
    offloads: tuple[str, ...] = ()
    operators: bool = False
    """Whether it can recompute all but every second matrix (`save: [half-matmul, attention, collective]`)."""
    block: bool = False
    """Whether it can recompute so many layers of each stage and keep the rest."""
    beside: Mapping[str, tuple[State, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Split → the states that go with it, where not all do."""
    apart: tuple[tuple[str, str], ...] = ()
    """Splits that do not go together."""
    replicas: bool = False
    """Whether some ranks may shard what they have in common, and the others be replicas."""
    interlaced: bool = False
    """Whether it can number the stages of a pipeline before the replicas."""
    alike: bool = True
    """Whether all layers recompute alike, but for blocks."""
    kept: bool = False
    """Whether in pipelines it may gather parameters once a step, and then reduces gradients once: zero2, sync last."""
    experts_whole: bool = False
    """Whether experts that are spread have no tp of their own."""

    def goes_with(self, state: State, ways: Mapping[str, int]) -> bool:
        """Whether a state goes with splits of so many ways."""
        known = state is None or state in self.states
        return known and all(state in self.beside[name] for name in self.beside if ways.get(name, 1) > 1)

    def admits(self, ways: Mapping[str, int]) -> bool:
        """Whether splits of so many ways go together; `etp`: tp of the experts."""
        together = all(ways.get(one, 1) == 1 or ways.get(other, 1) == 1 for one, other in self.apart)
        whole = not self.experts_whole or ways.get("ep", 1) == 1 or ways.get("etp", 1) == 1
        return together and whole


TARGETS: dict[str, Target] = {
    "megatron": Target(
        title="Megatron-LM",
        release="megatron-core 0.16.1",
        splits=("dp", "tp", "tp+sp", "cp", "ulysses", "ep", "pp"),
        states=("zero1",),
        schedules=("1f1b", "interleaved"),
        recomputes=("full", "selective", "none"),
        offloads=("optimizer",),
        block=True,
        replicas=True,
        interlaced=True,
    ),
    "torchtitan": Target(
        title="torchtitan",
        release="torchtitan 0.3.0",
        splits=("dp", "tp", "tp+sp", "cp", "ep", "pp"),
        states=("zero3",),
        schedules=("gpipe", "1f1b", "interleaved", "zbv", "dualpipev"),
        recomputes=("full", "none"),
        operators=True,
        replicas=True,
        beside=MappingProxyType({"cp": ("zero3",)}),
        kept=True,
        experts_whole=True,
    ),
    "deepspeed": Target(
        title="DeepSpeed",
        release="deepspeed 0.19",
        splits=("dp", "tp", "ulysses", "pp"),
        states=("zero1", "zero2", "zero3"),
        schedules=("1f1b",),
        recomputes=("full", "none"),
        offloads=("optimizer", "parameters"),
        beside=MappingProxyType({"pp": (None, "zero1"), "tp": (None, "zero1", "zero2")}),
        apart=(("pp", "tp"), ("pp", "ulysses"), ("tp", "ulysses")),
    ),
    "accelerate": Target(
        title="Accelerate",
        release="accelerate 1.15",
        splits=("dp",),
        states=("zero3",),
        schedules=("1f1b",),
        recomputes=("full", "none"),
        offloads=("optimizer", "parameters"),
        replicas=True,
    ),
}
"""Scope → what it can express."""
