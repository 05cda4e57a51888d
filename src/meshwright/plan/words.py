"""Words that a plan and the command line choose from, apart from the schema, which a command need not wait for."""

from typing import Literal

Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"]
Kernels = Literal[
    "hf-eager",
    "hf-sdpa",
    "hf-sdpa-xentropy",
    "hf-unpadded-xentropy",
    "mingpt",
    "torch-compile",
    "torchtitan",
    "megatron-eager",
    "megatron-fused",
    "megatron-fused-adding",
    "megatron-fused-eager",
    "megatron-flash",
    "megatron-flash-narrow",
    "megatron-deepspeed",
    "megatron-flash-eager",
    "megatron-flash1-eager",
    "megatron-flash-norm",
    "nanotron",
    "internevo",
]
