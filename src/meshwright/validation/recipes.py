"""The recipe of a measured row: batch, sequence, dtypes, optimizer, adapters."""

import re

from meshwright.recipe.spec import Float, Lora, Optimizer, Precision, Recipe, Trainable
from meshwright.validation.frameworks import Framework
from meshwright.validation.rows import Measured
from meshwright.validation.unusable import Unusable

_COMPUTE: tuple[tuple[str, Float], ...] = ((r"^fp16", "fp16"), (r"^fp32", "fp32"), (r".", "bf16"))
_ADAPTED: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"\(q,k,v,o\)", ("q_proj", "k_proj", "v_proj", "o_proj")),
    (r"", ("q_proj", "k_proj", "v_proj")),
)
"""What notes say → what has adapters; where they say nothing as NeMo's recipes: `peft.target_modules = ['linear_qkv']`,
dim 16, alpha 32 (llama3_70b.py, llama31_405b.py)."""


def recipe_of(row: Measured, framework: Framework) -> Recipe:
    """Raises Unusable where a dtype is not said that cannot be told."""
    adapted = next(targets for pattern, targets in _ADAPTED if re.search(pattern, row.text("notes")))
    return Recipe(
        global_batch=row.count("global_batch"),
        sequence=row.count("seq_len"),
        precision=_precision(row, framework),
        optimizer=_optimizer(row),
        trainable=Trainable(lora=Lora(rank=16, alpha=32, targets=adapted) if row.text("task") == "LoRA" else None),
    )


def _precision(row: Measured, framework: Framework) -> Precision:
    text = row.text("precision").lower()
    if not text and framework.compute == "bf16":
        raise Unusable("the precision is not said, and may be bf16, fp8 or fp4")
    compute = next((dtype for pattern, dtype in _COMPUTE if re.search(pattern, text)), framework.compute)
    return Precision(
        compute=compute,
        reduce=framework.reduce or compute,
        master="fp32",
        matmul="fp4" if "fp4" in text else "fp8" if "fp8" in text else None,
        scaling="rows" if "rowwise" in text else "tensors",
    )


def _optimizer(row: Measured) -> Optimizer:
    text = row.text("optimizer").lower()
    name = "muon" if "muon" in text else "sgd" if "sgd" in text else "adamw"
    return Optimizer.model_validate({"name": name, "state": "bf16" if "bf16 moments" in text else "fp32"})
