"""Every parameter has exactly one owner: the layer whose modules hold it."""

from torch import nn

from meshwright.errors import PlanError, did_you_mean
from meshwright.model.spec import ModelSpec


def parameter_owners(module: nn.Module, spec: ModelSpec) -> dict[str, str]:
    """Parameter name → layer. Raises PlanError where the module is not the model of the spec: a module that is
    missing, a parameter that no layer covers, another number of parameters.
    """
    modules = dict(module.named_modules())
    named = (path for layer in spec.layers for path in layer.modules)
    missing = next((path for path in named if path not in modules), None)
    if missing is not None:
        raise PlanError(
            f"the module has no '{missing}', which model '{spec.name}' names; {did_you_mean(missing, modules)}"
        )
    owners = {}
    for name, _ in module.named_parameters():
        owner = spec.layer_of(name)
        if owner is None:
            raise PlanError(f"parameter '{name}' belongs to no layer of model '{spec.name}'")
        owners[name] = owner
    held = sum(parameter.numel() for parameter in module.parameters())
    if held != spec.parameters:
        raise PlanError(f"the module has {held:,} parameters, but model '{spec.name}' has {spec.parameters:,}")
    return owners
