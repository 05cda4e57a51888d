"""Any `torch.nn.Module` as a ModelSpec. Needs torch."""

from meshwright.trace.module import trace

__all__ = ["trace"]
