"""The configurations of models that torchtitan 0.3.0 has, with what they set: arguments come on top of these.

`models/*/config_registry.py` there, looked up in 2026-11. All have AdamW as our recipes have it, but for the rate.
"""

from typing import Any, NamedTuple


class Preset(NamedTuple):
    """A configuration function, and the fields that it sets."""

    module: str
    name: str | None
    """None: the model has a flavor there, and no configuration."""
    flavor: str
    rate: float = 3e-4
    local_batch: int = 8
    sequence: int = 2048
    recompute: str = "half"
    tp: int = 1
    ep: int = 1
    schedule: str = "1f1b"
    compiled: bool = False
    eight_bits: bool = False

    def fields(self) -> dict[str, Any]:
        """What it says where an argument does not."""
        return {
            "recipe.optimizer.learning_rate": self.rate,
            "recipe.sequence": self.sequence,
            "local_batch": self.local_batch,
            "recompute": self.recompute,
            "tp": self.tp,
            "ep": self.ep,
            "schedule": self.schedule,
            "compiled": self.compiled,
        } | ({"recipe.precision.matmul": "fp8"} if self.eight_bits else {})


_LLAMA, _QWEN, _DEEPSEEK, _OSS = "llama3", "qwen3", "deepseek_v3", "gpt_oss"
PRESETS: dict[str, Preset] = {
    "llama-3.1-8b": Preset(_LLAMA, "llama3_8b", "8B", 3e-4, 1, 8192),
    "llama-3.1-70b": Preset(_LLAMA, "llama3_70b", "70B", 1.5e-4, 8, 8192, "full", tp=8),
    "llama-3.1-405b": Preset(
        _LLAMA, "llama3_405b", "405B", 8e-5, 2, 8192, "full", tp=8, compiled=True, eight_bits=True
    ),
    "llama-3.2-1b": Preset(_LLAMA, None, "1B"),
    "llama-3.2-3b": Preset(_LLAMA, None, "3B"),
    "qwen3-0.6b": Preset(_QWEN, "qwen3_0_6b", "0.6B", 3e-4, 4, 4096),
    "qwen3-1.7b": Preset(_QWEN, "qwen3_1_7b", "1.7B", 8e-4, 4, 4096),
    "qwen3-14b": Preset(_QWEN, "qwen3_14b", "14B", 8e-4, 4, 4096, "full"),
    "qwen3-32b": Preset(_QWEN, "qwen3_32b", "32B", 8e-4, 2, 4096, "full"),
    "qwen3-30b-a3b": Preset(_QWEN, "qwen3_30b_a3b", "30B-A3B", 8e-4, 2, 4096, "full"),
    "deepseek-v2-lite": Preset(_DEEPSEEK, "deepseek_v3_16b", "16B", 2.2e-4, 4, 4096, ep=8, schedule="interleaved"),
    "deepseek-v3": Preset(_DEEPSEEK, "deepseek_v3_671b", "671B", 2.2e-4, 4, 4096, ep=2, schedule="interleaved"),
    "gpt-oss-20b": Preset(_OSS, "gpt_oss_20b", "20b", 8e-4, 1, 8192, "full"),
    "gpt-oss-120b": Preset(_OSS, "gpt_oss_120b", "120b", 8e-4, 1, 8192, "full"),
}
"""Our model → what it is there."""
BY_NAME = {preset.name: name for name, preset in PRESETS.items() if preset.name}
BY_FLAVOR = {(preset.module, preset.flavor): name for name, preset in PRESETS.items()}
