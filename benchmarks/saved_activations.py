"""What one layer of a model of each family keeps for backward under each kernel set: bytes in bf16 on a GPU, for each
sample, position and number of the layer's output (s b h), without recompute.

Run `.venv/bin/python benchmarks/saved_activations.py`. It needs the base package only.
"""

from rich.console import Console
from rich.table import Table

from meshwright.cost.kernels import KERNEL_SETS
from meshwright.cost.saved import saved_bytes
from meshwright.model.resolve import from_catalog
from meshwright.model.spec import LayerStack, ModelSpec

SEQUENCE = 2048
MODELS = (
    *("gpt-175b", "gpt2", "opt-6.7b", "bloom-7b1", "mpt-7b", "gpt-neox-20b", "gpt-j-6b", "falcon-7b", "falcon-40b"),
    *("llama-2-7b", "llama-3-8b", "mistral-7b", "qwen2.5-7b", "qwen3-8b", "gemma-7b", "gemma-2-9b", "gemma-3-1b"),
    *("phi-2", "phi-4", "olmo-2-7b", "mixtral-8x7b", "phi-3.5-moe", "olmoe-1b-7b", "granite-3.0-1b-a400m"),
    *("qwen1.5-moe-a2.7b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v2-lite", "deepseek-v3", "mamba-2.8b"),
    *("mamba-codestral-7b", "bert-base", "roberta-base", "t5-large", "vit-base", "swin-base", "whisper-medium"),
)


def lengths(model: ModelSpec) -> dict[str, int]:
    """SEQUENCE, or what a stream fixes or reaches."""
    return {name: stream.length or min(SEQUENCE, stream.limit or SEQUENCE) for name, stream in model.streams.items()}


def typical(model: ModelSpec) -> LayerStack:
    """The last of the numbered layers: past leading dense ones, and a decoder's where there is one."""
    return next(stack for stack in reversed(model.stacks) if "." in stack.span)


def main() -> None:
    table = Table("model", "layer", "s", "h", *KERNEL_SETS, title="bytes per s b h, bf16, on GPUs")
    for name in MODELS:
        model = from_catalog(name)
        stack, positions = typical(model), lengths(model)
        numbers = positions[stack.stream] * stack.output
        kept = (saved_bytes(model, stack, kernels, positions) / numbers for kernels in KERNEL_SETS)
        sizes = str(positions[stack.stream]), str(stack.output)
        table.add_row(name, stack.span, *sizes, *(f"{value:.1f}" for value in kept))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
