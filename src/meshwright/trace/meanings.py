"""What functions and modules mean, by their names: a table of torch's functions, and patterns of class names."""

import re

from torch import nn

from meshwright.trace.tape import words

ACTIVATIONS = words(
    "gelu silu relu relu_ relu6 leaky_relu elu selu celu hardswish hardsigmoid hardtanh mish softplus glu prelu "
    "logsigmoid tanhshrink softsign"
)
NORMS = {
    "layer_norm": "layer",
    "rms_norm": "rms",
    "batch_norm": "batch",
    "group_norm": "group",
    "instance_norm": "group",
}
DROPOUTS = frozenset(
    {"dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"}
)
POOLS = frozenset(
    f"{kind}_pool{dims}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for dims in (1, 2, 3)
)
LOSSES = frozenset({"cross_entropy"})
ATTENTION = "scaled_dot_product_attention"
FINITE = {"isfinite": True, "isinf": False, "isnan": False}
"""Functions that a model guards itself with, and what they say of numbers as they should be."""
MULTI_HEAD = "multi_head_attention_forward"
FUNCTIONS = ACTIVATIONS | NORMS.keys() | DROPOUTS | POOLS | LOSSES | {ATTENTION}
"""Functions of torch that are one operator, whatever they do inside."""

NORM, ACTIVATION = "norm:", "activation:"
"""How a module's meaning begins; the kind of the norm, or the function, follows."""

_NORM_CLASS = re.compile(r"(RMS|Layer|Batch|Group|Instance)_?Norm", re.IGNORECASE)
_ANY_NORM = re.compile(r"Norm(\d[dD])?$")
_KINDS = {"rms": "rms", "layer": "layer", "batch": "batch", "group": "group", "instance": "group"}
_ACTIVATION_CLASS = re.compile(r"(GELU|SiLU|ReLU|Swish|Mish|SELU|ELU)\w*$", re.IGNORECASE)
_FUNCTION_OF = {
    "newgeluactivation": "gelu_new",
    "gelutanh": "gelu_pytorch_tanh",
    "pytorchgelutanh": "gelu_pytorch_tanh",
    "quickgeluactivation": "quick_gelu",
    "fastgeluactivation": "gelu_fast",
    "geluactivation": "gelu",
    "bloomgelu": "gelu_new",
    "siluactivation": "silu",
    "relusquaredactivation": "relu2",
}


def module_meaning(module: nn.Module) -> str:
    """`norm:kind` or `activation:function` for a module that is one operator by its class; else empty.

    A norm's own class counts where it has no modules inside and parameters of one dimension alone.
    """
    if any(True for _ in module.children()) or type(module).__module__.startswith("torch.nn."):
        return ""  # torch's own are told by the functions that they call
    name, parameters = type(module).__name__, list(module.parameters(recurse=False))
    kind = _NORM_CLASS.search(name)
    if (kind or _ANY_NORM.search(name)) and all(parameter.dim() == 1 for parameter in parameters):
        return NORM + (_KINDS[kind.group(1).lower()] if kind else "rms")
    if not parameters and (name.lower() in _FUNCTION_OF or _ACTIVATION_CLASS.search(name)):
        return ACTIVATION + _FUNCTION_OF.get(name.lower(), name.removesuffix("Activation").lower())
    return ""
