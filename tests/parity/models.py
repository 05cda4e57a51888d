"""Small untouched models of the families that the runtime is proven with, besides Llama and GPT-2."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from meshwright.trace import trace
from tests.parity.encoders import CALLS, TRACED

if TYPE_CHECKING:
    from tests.parity.harness import Case

_IDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
_LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    **_IDS,
}
EXPERTS = 8
WINDOW = 5
"""Positions that a layer with a sliding window sees, fewer than a sample has."""


def _of(case: "Case", **fields: Any) -> dict[str, Any]:
    return {"vocab_size": case.vocabulary, "tie_word_embeddings": case.tied, **fields}


def _mistral(case: "Case") -> nn.Module:
    fields = _of(case, **_LLAMA, num_key_value_heads=case.kv_heads, sliding_window=WINDOW)
    return transformers.MistralForCausalLM(transformers.MistralConfig(**fields))


def _qwen3(case: "Case") -> nn.Module:
    fields = _of(case, **_LLAMA, num_key_value_heads=case.kv_heads, head_dim=8)
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**fields))


def _phi3(case: "Case") -> nn.Module:
    dropped = {"resid_pdrop": case.dropout, "embd_pdrop": 0.0}
    fields = _of(case, **_LLAMA, num_key_value_heads=case.kv_heads, **dropped)
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**fields))


def _gemma3(case: "Case") -> nn.Module:
    kinds = ["sliding_attention", "full_attention"] * 2
    fields = _of(case, **_LLAMA, num_key_value_heads=case.kv_heads, head_dim=8)
    fields |= {"sliding_window": WINDOW, "layer_types": kinds, "query_pre_attn_scalar": 8}
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**fields))


def _gpt_neox(case: "Case") -> nn.Module:
    fields = _of(case, **_LLAMA, hidden_dropout=case.dropout, max_position_embeddings=case.length)
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**fields))


def _opt(case: "Case") -> nn.Module:
    fields = _of(case, hidden_size=32, ffn_dim=48, num_hidden_layers=4, num_attention_heads=8, dropout=case.dropout)
    fields |= {"max_position_embeddings": case.length, "word_embed_proj_dim": 32, **_IDS}
    return transformers.OPTForCausalLM(transformers.OPTConfig(**fields))


def _falcon(case: "Case") -> nn.Module:
    grouped = case.kv_heads > 1
    fields = _of(case, hidden_size=32, num_hidden_layers=4, num_attention_heads=8, hidden_dropout=case.dropout)
    fields |= {"new_decoder_architecture": grouped, "multi_query": not grouped, **_IDS}
    return transformers.FalconForCausalLM(transformers.FalconConfig(**fields, num_kv_heads=case.kv_heads))


def _mixtral(case: "Case") -> nn.Module:
    fields = _of(case, **_LLAMA, num_key_value_heads=case.kv_heads, attention_dropout=case.attention_dropout)
    return _with_experts(
        transformers.MixtralForCausalLM(transformers.MixtralConfig(**fields, num_local_experts=EXPERTS)), case
    )


def _qwen3_moe(case: "Case") -> nn.Module:
    fields = _of(case, **_LLAMA, num_key_value_heads=case.kv_heads, attention_dropout=case.attention_dropout)
    fields |= {"head_dim": 8, "moe_intermediate_size": 24, "num_experts": EXPERTS, "num_experts_per_tok": 3}
    return _with_experts(
        transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**fields, norm_topk_prob=True)), case
    )


def _with_experts(module: Any, case: "Case") -> nn.Module:
    """torch's grouped products have no float64."""
    module.set_experts_implementation("eager" if case.dtype == torch.float64 else "grouped_mm")
    return module


class _Block(nn.Module):
    """A block that keeps all its matrices beside each other, and its norms and additions among them."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(seen.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.norm2(x)))))


class OwnTransformer(nn.Module):
    """A user's own, in plain PyTorch: tokens to logits."""

    def __init__(self, vocabulary: int, length: int, dropout: float) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, 32), nn.Embedding(length, 32)
        self.blocks = nn.ModuleList(_Block(32, 4, dropout) for _ in range(4))
        self.norm, self.logits = nn.LayerNorm(32), nn.Linear(32, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))


class _Unknown(_Block):
    """Its heads have a name that nobody knows, and it takes their width from what is there."""

    def forward(self, x: Tensor) -> Tensor:
        self.pieces = vars(self).pop("heads", None) or self.pieces
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.pieces, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class _Interleaved(_Block):
    """Each head's query, key and value lie together."""

    def forward(self, x: Tensor) -> Tensor:
        together = self.qkv(self.norm1(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        query, key, value = together.chunk(3, -1)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


MISLEADING = {"Unknown": _Unknown, "Interleaved": _Interleaved}
"""Blocks whose cut looks right and is not."""


def _misleading(block: type[_Block], case: "Case") -> nn.Module:
    module = OwnTransformer(case.vocabulary, case.length, 0.0)
    module.blocks = nn.ModuleList(block(32, 4, 0.0) for _ in range(4))
    return module


BUILDERS: dict[str, Callable[["Case"], nn.Module]] = {
    "mistral": _mistral,
    "qwen3": _qwen3,
    "phi3": _phi3,
    "gemma3_text": _gemma3,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "falcon": _falcon,
    "OwnTransformer": lambda case: OwnTransformer(case.vocabulary, case.length, case.dropout),
    **{name: partial(_misleading, block) for name, block in MISLEADING.items()},
}
"""By the family that a ModelSpec calls it."""

CALLS_DROPOUT: dict[str, dict[str, int | None]] = {
    "opt": {"model.decoder.layers.{}": None},
    "falcon": {"transformer.h.{}": None},
    "OwnTransformer": {"blocks.{}": None},
    **CALLS,
}
"""Families whose layers call dropout as a function, or one module of it twice → the paths of their layers, and how
many there are, where not the case's number.
"""


def with_own_vectors(module: nn.Module) -> nn.Module:
    """Gains and biases that are not all alike, so that no slice of one passes for another."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return module


def spec_of(module: nn.Module) -> Any:
    """What says which model it is: its configuration, or a trace."""
    traced = TRACED.get(type(module).__name__)
    config = getattr(module, "config", None) if traced is None else None
    if config is not None:
        return config
    return trace(module, traced if traced is not None else torch.zeros((2, LENGTH), dtype=torch.long))


LENGTH = 12
"""Positions of what a module is traced with."""
