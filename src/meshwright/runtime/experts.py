"""Routed experts that are spread over ranks (`ep`): positions go to the experts that they chose, and come back.

By all-to-all (Lepikhin 2020, section 3.2), exact: no expert has a capacity, nothing is dropped, and ranks get as many
positions as routers send them. A copy of a position travels for each expert that it chose. The weights of its choice
stay at home, where what came back is summed up by them, so that nothing but activations crosses. The module's own code
runs the experts of a rank, on what has come.
"""

from typing import Any

import torch
from torch import Tensor, nn

from meshwright.errors import PlanError
from meshwright.runtime.mesh import Peers
from meshwright.runtime.shard import Cut
from meshwright.runtime.split import SplitParameter


def check_routers(module: nn.Module) -> None:
    """Raises PlanError where a model does with its routers what the runtime does not: a loss that balances them, or
    noise.
    """
    config = getattr(module, "config", None)
    if getattr(config, "output_router_logits", False) and getattr(config, "router_aux_loss_coef", 0.0):
        raise PlanError(
            f"the model adds a loss that balances its routers ({config.router_aux_loss_coef:g}), which the runtime "  # type: ignore[union-attr]
            "does not yet; build it with output_router_logits=False"
        )
    if getattr(config, "router_jitter_noise", 0.0):
        raise PlanError(
            f"the model's routers draw noise ({config.router_jitter_noise:g}), which the runtime does not draw from "  # type: ignore[union-attr]
            "its counter; build it with router_jitter_noise=0"
        )


class _Sent(torch.autograd.Function):
    """Rows [n, hidden], runs of them for each of the group → those that came from each; gradients go back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, peers: Peers, leaving: list[int], coming: list[int]) -> Tensor:
        ctx.peers, ctx.leaving, ctx.coming = peers, leaving, coming
        return peers.send_rows(rows, leaving, coming)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.peers.send_rows(gradients[0].contiguous(), ctx.coming, ctx.leaving), None, None, None


def _send(rows: Tensor, peers: Peers, leaving: list[int], coming: list[int]) -> Tensor:
    return _Sent.apply(rows, peers, leaving, coming)  # type: ignore[no-untyped-call, no-any-return]


class _Share(torch.autograd.Function):
    """This rank's run of rows [n, ...] that all of a group hold; gradients are gathered."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        return share_of(rows, peers)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return torch.cat(ctx.peers.all_gather(gradients[0])), None


class _All(torch.autograd.Function):
    """The way back: every rank's run; of gradients, which are equal, its own."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        return torch.cat(peers.all_gather(rows))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return share_of(gradients[0], ctx.peers), None


def share_of(rows: Tensor, peers: Peers) -> Tensor:
    """This rank's run of rows that all of a group hold. Raises PlanError where they do not divide."""
    if len(rows) % peers.size:
        raise PlanError(
            f"{len(rows)} positions do not divide over the {peers.size} ranks that take a part of them each to their "
            "experts; take a multiple"
        )
    return rows.chunk(peers.size)[peers.place].clone(memory_format=torch.contiguous_format)


class Spread:
    """The forward of a module of experts, of which this rank holds a run where `peers` hold the others. `sharing` are
    the ranks that hold the same positions, of which each takes a part.
    """

    def __init__(self, module: nn.Module, peers: Peers | None, sharing: Peers | None) -> None:
        self.module, self.peers, self.sharing, self.inner = module, peers, sharing, module.forward
        self.count = int(module.num_experts) // (peers.size if peers else 1)  # type: ignore[arg-type]
        module.num_experts = self.count  # type: ignore[assignment]

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """[positions, hidden], [positions, k] experts, [positions, k] weights → [positions, hidden]."""
        sharing, k = self.sharing, top_k_index.shape[1]
        if sharing is None:
            return self._sent_to_experts(hidden_states, top_k_index, top_k_weights)
        both = torch.cat((hidden_states, top_k_weights), 1)  # one gradient is gathered, not two
        mine: Tensor = _Share.apply(both, sharing)  # type: ignore[no-untyped-call]
        out = self._sent_to_experts(mine[:, :-k], share_of(top_k_index, sharing), mine[:, -k:])
        return _All.apply(out, sharing)  # type: ignore[no-untyped-call, no-any-return]

    def _sent_to_experts(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """Of positions that no other rank has."""
        peers = self.peers
        if peers is None:
            return self.inner(x, index, weights)  # type: ignore[no-any-return]
        chosen = index.flatten()
        order = chosen.argsort(stable=True)
        here = chosen.bincount(minlength=self.count * peers.size).view(peers.size, self.count)
        there = torch.stack(peers.all_to_all(list(here)))
        leaving, coming = torch.stack((here, there)).sum(2).tolist()  # at once: each list waits for the device
        arrived = _send(x[order // index.shape[1]], peers, leaving, coming)
        back = _send(self._computed(arrived, there), peers, coming, leaving)
        copies = back[order.argsort()].view(*index.shape, -1)
        return (copies * weights[..., None]).sum(1).to(x.dtype)

    def _computed(self, arrived: Tensor, counts: Tensor) -> Tensor:
        """What this rank's experts make of copies that came, from each sender in the order of the experts: [senders,
        experts] of them.
        """
        if not len(arrived):  # still all take part in backward, and all parameters get a gradient
            return arrived + 0 * sum(parameter.sum() for parameter in self.module.parameters())
        experts = torch.arange(self.count, device=counts.device).repeat(len(counts))
        index = experts.repeat_interleave(counts.flatten())
        return self.inner(arrived, index[:, None], arrived.new_ones(len(arrived), 1))  # type: ignore[no-any-return]


def spread_experts(module: nn.Module, path: str, peers: Peers | None, sharing: Peers | None) -> list[SplitParameter]:
    """Let a module of experts hold those of this rank, and name the parameters to cut. The caller cuts them. Raises
    PlanError for a module that does not keep its experts along the first dim of its parameters.
    """
    if peers is None and sharing is None:
        return []
    count = getattr(module, "num_experts", None)
    named = list(module.named_parameters())
    unlike = next((name for name, each in named if "." in name or each.shape[0] != count), None)
    if unlike is not None:
        raise PlanError(
            f"ep spreads experts that are the first dim of a parameter, as transformers 5 keeps them, and "
            f"'{path}.{unlike}' is not; write 'dp' for it"
        )
    vars(module)["forward"] = Spread(module, peers, sharing)
    return [SplitParameter(module, name, path, Cut(0, peers)) for name, _ in named] if peers else []
