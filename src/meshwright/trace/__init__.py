"""Any `torch.nn.Module` as a ModelSpec: `from meshwright.trace import trace`. torch is imported with it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.trace.module import trace

__all__ = ["trace"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from meshwright.trace import module

    return module.trace
