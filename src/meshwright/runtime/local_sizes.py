"""What a module's own code takes for the number of its heads, where a rank holds a share of them."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from meshwright.model.operators import Attention

_HEADS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "nhead", "heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_head", "n_kv_heads", "kv_heads")
_QUERIES = ("split_size",)
_GROUPS = ("num_key_value_groups",)
"""Names that transformers' modules, and plain PyTorch code, have for numbers of heads, of KV heads, of all values of
the queries, of query heads that share a KV head.
"""


class LocalConfig:
    """A configuration as a module that holds some heads reads it: the whole model's in all else, as it is then."""

    def __init__(self, whole: Any, local: Mapping[str, int]) -> None:
        self._whole = whole
        vars(self).update(local)

    def __getattr__(self, name: str) -> Any:
        """What is the same for all ranks."""
        return getattr(vars(self)["_whole"], name)


def localise(module: nn.Module, core: Attention, ways: int) -> None:
    """Let an attention module count the heads that one of `ways` ranks holds."""
    heads, kv = core.heads // ways, max(1, core.kv_heads // ways)
    sizes = dict.fromkeys(_HEADS, (core.heads, heads))
    sizes |= dict.fromkeys(_KV_HEADS, (core.kv_heads, kv))
    sizes |= dict.fromkeys(_QUERIES, (core.heads * core.head_dim, heads * core.head_dim))
    sizes |= dict.fromkeys(_GROUPS, (core.heads // core.kv_heads, heads // kv))
    for name, local in _found(module, sizes).items():
        setattr(module, name, local)
    config = getattr(module, "config", None)
    if config is not None and (local_sizes := _found(config, sizes)):
        vars(module)["config"] = LocalConfig(config, local_sizes)


def _found(holder: Any, sizes: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """The attributes that count what the core has, with this rank's numbers."""
    return {name: local for name, (whole, local) in sizes.items() if getattr(holder, name, None) == whole}
