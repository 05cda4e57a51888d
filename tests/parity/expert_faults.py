"""Faults of spread experts to plant in the workers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import Tensor

from meshwright.plan.groups import Purpose, purpose_axes
from meshwright.plan.spec import Row
from meshwright.runtime.experts import Spread
from meshwright.runtime.mesh import Peers


@contextmanager
def returned_in_another_order() -> Iterator[None]:
    """What comes back is taken for other positions'."""
    from meshwright.runtime import experts

    send, calls = experts._send, [0]

    def turned(rows: Tensor, *args: Any) -> Tensor:
        calls[0] += 1
        return send(rows, *args) if calls[0] % 2 else send(rows, *args).flip(0)

    with mock.patch.object(experts, "_send", turned):
        yield


@contextmanager
def summed_over_other_experts() -> Iterator[None]:
    """Gradients of experts are summed over ranks that hold others, as those of layers are."""

    def all_of_them(row: Row) -> dict[Purpose, tuple[str, ...]]:
        return purpose_axes(row) | {"replica": row.axes("dp", "ep")}

    with mock.patch("meshwright.runtime.place.purpose_axes", all_of_them):
        yield


@contextmanager
def copies_for_another_expert() -> Iterator[None]:
    """Copies are taken for those of the next expert."""
    computed = Spread._computed
    with mock.patch.object(Spread, "_computed", lambda spread, rows, counts: computed(spread, rows, counts.roll(1, 1))):
        yield


@contextmanager
def gradients_that_stay() -> Iterator[None]:
    """Positions learn nothing from the experts of other ranks."""
    from meshwright.runtime.experts import _Sent

    def own(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        peers: Peers = ctx.peers
        back = peers.send_rows(gradients[0].contiguous(), ctx.coming, ctx.leaving)
        starts = [sum(ctx.leaving[:place]) for place in range(peers.size + 1)]
        kept = back.new_zeros(back.shape)
        mine = slice(starts[peers.place], starts[peers.place + 1])
        kept[mine] = back[mine]
        return kept, None, None, None

    with mock.patch.object(_Sent, "backward", staticmethod(own)):
        yield
