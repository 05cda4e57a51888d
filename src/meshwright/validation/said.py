"""What sources say of their runs in scripts, configurations and other texts, where their tables leave it out.

Looked up in 2026-11:
* yanring/Megatron-MoE-ModelZoo, best_practice/qwen3/readme.md and sbatch_benchmarking.sh: the commands of the long
  sequences, of GB200 and of GB300; fp8 runs keep Adam's moments in bf16.
* NVIDIA-NeMo/Megatron-Bridge, scripts/performance: `cpu_offloading_num_layers` (llama3_workload_base_configs.py,
  llama31_workload_base_configs.py), `recompute_modules` (deepseek_workload_base_configs.py,
  kimi_workload_base_configs.py), expandable segments (perf_plugins.py). Its releases differ; these are of 2026.
* NVIDIA/dgxc-benchmarking: deepseek_v3/pretraining/launch.sh (`RM`), maxtext/configure.sh (`POLICY`).
* MLPerf Training v5.0 and v5.1: config_common.sh of llama31_405b; config_2xXE9680Lx8B200-SXM-180GB_2x8x1xtp1pp1cp1.sh
  (`FP8_ACT=1`) and config_GB200_1x4x2xtp1pp1cp1.sh (`CPU_OFFLOADING=1`, 20 layers) of llama2_70b_lora. Those of v5.0 on
  GB200 are not stored anywhere that was found; they are taken to be as those of v5.1.
* "Training a 1 Trillion Parameter Model With PyTorch Fully Sharded Data Parallel on AWS" (2022), on the runs of the
  blog of 2022-03: outer activations rest on the host, and each matrix is an FSDP unit.
"""

from dataclasses import replace

from meshwright.validation.rows import Measured
from meshwright.validation.traps import TRAPS, Trap

_UP = {"recompute": "selective (mla_up_proj)"}
_FSDP = r"^fsdp"


def _offloaded(model: str, gpu: str, precision: str, layers: int) -> Trap:
    """Megatron-Bridge under FSDP."""
    columns = {"model_name": model, "gpu": gpu, "precision": precision, "zero_stage_or_sharding": _FSDP}
    reason = f"offload: activations of {layers} layers, of the repository's performance scripts"
    return Trap("megatron_bridge", columns, reason, {"offload": f"activations of {layers} layers"})


SAID: tuple[Trap, ...] = (
    Trap(
        "megatron_moe_zoo",
        {"gpu": "H100", "notes": "long context"},
        "recompute: norms and mixtures of experts, of the readme's command",
        {"recompute": "selective (norm, moe)"},
    ),
    Trap(
        "megatron_moe_zoo",
        {"notes": "activation offloading"},
        "recompute: norms and activations, and activations of experts offloaded, of the readme's command",
        {"recompute": "selective (norm, act)", "offload": "activations of experts"},
    ),
    Trap(
        "megatron_moe_zoo",
        {"gpu": "GB200", "seq_len": "^131072$"},
        "gpu: GB300, whose section of the readme has the row; recompute: norms and activations, of its command",
        {"gpu": "GB300", "recompute": "selective (norm, act)"},
    ),
    _offloaded("LLAMA3_70B", "GB300", "^(FP8|NVFP4)", 20),
    _offloaded("LLAMA3_70B", "GB200", "^FP8", 40),
    _offloaded("LLAMA3.1_405B", "GB200", "^FP8", 92),
    *(
        Trap("megatron_bridge", columns, "recompute: MLA's up-projections, of its performance scripts", _UP)
        for columns in ({"model_name": "DeepSeekV3", "gpu": "GB200|^B200"}, {"model_name": "Kimi_K2"})
    ),
    Trap(
        "dgxc_bench",
        {"model_name": "DeepSeek", "gpu": "H100"},
        "recompute: MLA's up-projections, of the repository's launch.sh",
        _UP,
    ),
    Trap(
        "dgxc_bench",
        {"model_name": "DeepSeek", "gpu": "GB200"},
        "recompute: the core attention, of the repository's launch.sh",
        {"recompute": "selective"},
    ),
    Trap(
        "dgxc_bench",
        {"framework": "MaxText"},
        "recompute: all but what makes queries, keys and values, of the repository's configure.sh",
        {"recompute": "save_qkv_proj"},
    ),
    Trap(
        "megatron_moe_zoo",
        {"precision": "fp8"},
        "optimizer: moments in bf16, of sbatch_benchmarking.sh",
        {"optimizer": "adam (bf16 moments)"},
    ),
    Trap(
        "mlperf",
        {"task": "LoRA", "source": "config_2xXE9680Lx8B200-SXM-180GB_2x8x1xtp1pp1cp1"},
        "precision: what activations keep in fp8 too, of the submission's configuration (FP8_ACT=1)",
        {"precision": "fp8 (activations too)"},
    ),
    Trap(
        "mlperf",
        {"task": "LoRA", "gpu": "GB200", "tp": "^1$", "cp": "^1$"},
        "offload: activations of 20 layers, of a configuration of v5.1 for the same devices and layout",
        {"offload": "activations of 20 layers"},
    ),
    Trap(
        "pytorch_blogs",
        {"zero_stage_or_sharding": "parameter CPU offload"},
        "offload: inputs of layers too, and each matrix an FSDP unit, of the authors' text on the same runs",
        {"offload": "activations of all layers"},
    ),
)
"""Sources, columns, and what the columns should say."""


def known_of(row: Measured) -> list[Trap]:
    """What is known to be wrong with a row, and what is said of it elsewhere."""
    return [known for known in (*TRAPS, *SAID) if known.holds(row)]


def as_run(row: Measured) -> Measured:
    """The row with what is known to be wrong corrected, and what is said elsewhere filled in."""
    fields = dict(row.fields)
    for known in known_of(row):
        fields |= known.changes
    return replace(row, fields=fields)
