"""Names of parameters: those that they have in the untouched module, whoever holds them now."""

import torch
from torch import nn

from meshwright.errors import PlanError, did_you_mean
from meshwright.model.spec import ModelSpec


class Names:
    """What was known of the whole module's parameters before this rank let go of other stages'."""

    def __init__(self, module: nn.Module, spec: ModelSpec) -> None:
        first = {id(parameter): name for name, parameter in module.named_parameters()}
        every = dict(module.named_parameters(remove_duplicate=False))
        self.own = {name: first[id(parameter)] for name, parameter in every.items()}
        """Any name → the first of the parameter's names."""
        self.shapes: dict[str, torch.Size] = {name: each.shape for name, each in module.named_parameters()}
        self.layers: dict[str, list[str]] = {}
        """First name → the layers that have the parameter, its owner first."""
        for name, own in self.own.items():
            layer, found = spec.layer_of(name), self.layers.setdefault(own, [])
            if layer is not None and layer not in found:
                found.append(layer)

    def find(self, name: str) -> str:
        """The first name of a parameter. Raises PlanError where there is none of this name."""
        if name not in self.own:
            raise PlanError(f"the module has no parameter '{name}'; {did_you_mean(name, self.own)}")
        return self.own[name]
