"""A small Llama in plain torch, and the micro-batches of a step.

Its pieces are named where a program puts a collective between them: around the attention core, before and after the
matrices of a block. Sizes do not depend on a configuration, only on the weights that a rank has, so that a slice of
the weights computes a slice of the heads.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN, FFN, HEADS, KV_HEADS, DIM, LAYERS, VOCABULARY = 32, 48, 8, 4, 4, 4, 64
EXPERTS, CHOSEN = 8, 2
SAMPLES, LENGTH, SEED = 8, 8, 1234

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries [batch, heads, seq, dim], keys and values [batch, kv heads, seq, dim] → [batch, heads, seq, dim]."""
Through = Callable[["Experts", Tensor], Tensor]
"""What experts answer to the copies of positions that chose them: [experts, copies, hidden] → the same."""


@dataclass(frozen=True)
class Job:
    """What a program is asked to do."""

    micro_batches: int = 2
    compute: torch.dtype = torch.float64
    sums: torch.dtype = torch.float64
    """The dtype in which gradients are reduced."""
    clipped: bool = True
    tied: bool = False
    """The head's matrix is the embedding's."""
    sparse: bool = False
    """Routed experts in place of each MLP."""
    gathered_again: bool = True
    """Sequence parallelism keeps a rank's own positions, and gathers them again in backward."""
    forwards_first: bool = False
    """All micro-batches go forward before the first goes back."""

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """Tokens and labels of each micro-batch, all samples: [samples, seq]."""
        generator = torch.Generator().manual_seed(SEED)
        both = torch.randint(0, VOCABULARY, (2, SAMPLES, LENGTH), generator=generator)
        return list(zip(*(part.chunk(self.micro_batches) for part in both), strict=True))


class Embed(nn.Embedding):
    """Tokens → [batch, seq, hidden]."""


class Layer(nn.Module):
    """A decoder layer: grouped-query attention with rotary positions, a gated MLP or routed experts."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN, eps=1e-6), nn.RMSNorm(HIDDEN, eps=1e-6)
        self.q, self.o = nn.Linear(HIDDEN, HEADS * DIM), nn.Linear(HEADS * DIM, HIDDEN)
        self.k, self.v = nn.Linear(HIDDEN, KV_HEADS * DIM), nn.Linear(HIDDEN, KV_HEADS * DIM)
        if sparse:
            self.experts = Experts()
        else:
            self.gate, self.up, self.down = nn.Linear(HIDDEN, FFN), nn.Linear(HIDDEN, FFN), nn.Linear(FFN, HIDDEN)

    def forward(
        self, x: Tensor, attend: "Attend | None" = None, first: int = 0, through: "Through | None" = None
    ) -> Tensor:
        """[batch, seq, hidden] → the same; `first` is the place of its first position."""
        x = x + self.o(core(functional.linear(self.norm1(x), *self.qkv), attend, first))
        if hasattr(self, "experts"):
            return x + self.experts(self.norm2(x), through)
        return x + self.down(gated(functional.linear(self.norm2(x), *self.gates)))

    def blocks(self) -> list[list[nn.Parameter]]:
        """The parameters of attention and of what is after it."""
        first = [parameter for name in ("norm1", "q", "k", "v", "o") for parameter in getattr(self, name).parameters()]
        known = {id(parameter) for parameter in first}
        return [first, [parameter for parameter in self.parameters() if id(parameter) not in known]]

    @property
    def qkv(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of queries, keys and values as one matrix."""
        return _joined(self.q, self.k, self.v)

    @property
    def gates(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of gate and up as one matrix."""
        return _joined(self.gate, self.up)


def _joined(*linears: nn.Linear) -> tuple[Tensor, Tensor]:
    return torch.cat([linear.weight for linear in linears]), torch.cat([linear.bias for linear in linears])


def core(qkv: Tensor, attend: Attend | None = None, first: int = 0) -> Tensor:
    """Attention on [batch, seq, queries + keys + values] → [batch, seq, heads · dim], of as many heads as it has."""
    q, k, v = (part.unflatten(-1, (-1, DIM)).transpose(1, 2) for part in _split(qkv))
    return (attend or causal)(rotated(q, first), rotated(k, first), v).transpose(1, 2).flatten(2)


def _split(qkv: Tensor) -> tuple[Tensor, ...]:
    unit = qkv.shape[-1] // (HEADS + 2 * KV_HEADS)
    return qkv.split([unit * HEADS, unit * KV_HEADS, unit * KV_HEADS], -1)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each position sees itself and those before it."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def rotated(x: Tensor, first: int) -> Tensor:
    """Rotary positions (Su 2021) on [batch, heads, seq, dim]."""
    places = torch.arange(first, first + x.shape[2], dtype=x.dtype)
    angles = places[:, None] * 10000.0 ** (-torch.arange(0, DIM, 2, dtype=x.dtype) / DIM)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def gated(both: Tensor) -> Tensor:
    """silu(gate) · up, of [..., gate + up]."""
    gate, up = both.chunk(2, -1)
    return functional.silu(gate) * up


class Experts(nn.Module):
    """A router and its experts. Who goes where is fixed by position, as evenly as can be (Roller 2021, hash layers);
    how much an expert's answer counts is the router's to learn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.gate_up = nn.Parameter(torch.randn(EXPERTS, HIDDEN, 2 * FFN) / HIDDEN**0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, FFN, HIDDEN) / FFN**0.5)

    def forward(self, x: Tensor, through: Through | None = None) -> Tensor:
        """[batch, seq, hidden] → the same."""
        choice = (torch.arange(LENGTH * CHOSEN) % EXPERTS).view(LENGTH, CHOSEN).repeat(x.shape[0], 1)
        weights = self.router(x.flatten(0, 1)).softmax(-1).gather(1, choice)
        order = choice.flatten().argsort(stable=True)
        copies = x.flatten(0, 1).repeat_interleave(CHOSEN, 0)[order]
        answers = (through or Experts.answer)(self, copies.unflatten(0, (EXPERTS, -1))).flatten(0, 1)[order.argsort()]
        return (answers.unflatten(0, (-1, CHOSEN)) * weights[..., None]).sum(1).view_as(x)

    def answer(self, copies: Tensor) -> Tensor:
        """[experts, copies, hidden] → the same, each expert its own."""
        return gated(copies @ self.gate_up) @ self.down


class Head(nn.Module):
    """The last norm, the matrix to the vocabulary, and the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.matrix = nn.RMSNorm(HIDDEN, eps=1e-6), nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Summed cross entropy over all tokens of the global batch, in float32 or wider."""
        logits = wide(self.matrix(self.norm(x))).flatten(0, 1)
        return functional.cross_entropy(logits, labels.flatten(), reduction="sum") / (SAMPLES * LENGTH)


def wide(x: Tensor) -> Tensor:
    """As it is in float64, else in float32."""
    return x if x.dtype == torch.float64 else x.float()


class Model(nn.ModuleList):
    """Embed, layers, head: equal on every rank, from one seed."""

    def __init__(self, job: Job) -> None:
        torch.manual_seed(SEED)
        embed, head = Embed(VOCABULARY, HIDDEN), Head()
        super().__init__([embed, *(Layer(job.sparse) for _ in range(LAYERS)), head])
        if job.tied:
            head.matrix.weight = embed.weight
        self.job = job
        self.to(job.compute)

    def forward(self, tokens: Tensor, labels: Tensor, **settings: Any) -> Tensor:
        """The loss; `settings` are for every numbered layer."""
        return self.run(range(len(self)), tokens, labels, **settings)

    def blocks(self) -> list[list[nn.Parameter]]:
        """The parameters of each layer; of a numbered one, those of attention and those after it apart."""
        both = [layer.blocks() if isinstance(layer, Layer) else [list(layer.parameters())] for layer in self]
        return [block for blocks in both for block in blocks]

    def run(self, places: Iterable[int], x: Tensor, labels: Tensor, **settings: Any) -> Tensor:
        """Some layers alone, one after the other."""
        for place in places:
            layer = self[place]
            x = layer(x, **settings) if isinstance(layer, Layer) else layer(x, *[labels] * isinstance(layer, Head))
        return x


Passed = list[tuple[Tensor, Tensor]]
"""Input and output of each layer."""


def chain(
    model: Model,
    x: Tensor,
    labels: Tensor,
    before: Callable[[int], None] | None = None,
    after: Callable[[int], None] | None = None,
) -> Passed:
    """Input and output of each layer, cut off from the one before, so that a program can go back layer by layer.
    `before` is called with the place of each layer, `after` with that of each but the last.
    """
    passed: Passed = []
    for place in range(len(model)):
        if before:
            before(place)
        passed.append((x, model.run([place], x, labels)))
        x = passed[-1][1].detach().requires_grad_()
        if after and place + 1 < len(model):
            after(place)
    return passed


def one_hot(tokens: Tensor, rank: int, size: int, dtype: torch.dtype) -> Tensor:
    """[...] → [..., vocabulary / size]: a rank's slice; zeros where the token is another's."""
    return functional.one_hot(tokens, VOCABULARY).chunk(size, -1)[rank].to(dtype)
