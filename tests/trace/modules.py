"""Ten models that no family covers, each with example inputs: what a trace is held against torch's own counts on."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional


class Case(NamedTuple):
    """A model, and what it is called with."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    spans: tuple[str, ...]
    """The layers that its trace has."""
    length: int = 0
    """Positions of the example, where a recipe may choose them."""
    surplus: int = 0
    """Backward FLOPs of a sample that a trace counts too many: the first state of a recurrence wants no gradient."""


def resnet50() -> nn.Module:
    """Bottlenecks in stages of 3, 4, 6 and 3 (He 2016), as transformers has it."""
    return transformers.ResNetForImageClassification(transformers.ResNetConfig())


class Double(nn.Module):
    """Two convolutions with norms over the batch."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class UNet(nn.Module):
    """Down by pooling, up by transposed convolutions, with what went down put beside (Ronneberger 2015)."""

    def __init__(self, widths: tuple[int, ...] = (8, 16, 32), classes: int = 5) -> None:
        super().__init__()
        self.stem = Double(3, widths[0])
        steps = list(itertools.pairwise(widths))
        self.downs = nn.ModuleList(Double(narrow, wide) for narrow, wide in steps)
        self.widen = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, stride=2) for narrow, wide in reversed(steps))
        self.ups = nn.ModuleList(Double(2 * narrow, narrow) for narrow, _ in reversed(steps))
        self.out = nn.Conv2d(widths[0], classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        kept = [self.stem(image)]
        for down in self.downs:
            kept.append(down(functional.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for widen, up in zip(self.widen, self.ups, strict=True):
            x = up(torch.cat([kept.pop(), widen(x)], dim=1))
        return self.out(x)


class MixerBlock(nn.Module):
    """An MLP over the patches, then one over the channels (Tolstikhin 2021)."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, size: int = 32, patch: int = 8, width: int = 24, depth: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.blocks = nn.Sequential(*[MixerBlock((size // patch) ** 2, width) for _ in range(depth)])
        self.norm, self.classifier = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.blocks(self.patches(image).flatten(2).transpose(1, 2))
        return self.classifier(self.norm(x).mean(dim=1))


class TwoTower(nn.Module):
    """A user and an item, each an embedding with features and an MLP; every user is compared with every item."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(1000, width), nn.Embedding(500, width)
        self.user_tower = nn.Sequential(nn.Linear(width + 7, 32), nn.ReLU(), nn.Linear(32, 8))
        self.item_tower = nn.Sequential(nn.Linear(width + 3, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, user: Tensor, user_features: Tensor, item: Tensor, item_features: Tensor) -> Tensor:
        left = self.user_tower(torch.cat([self.users(user), user_features], dim=-1))
        right = self.item_tower(torch.cat([self.items(item), item_features], dim=-1))
        scores = functional.normalize(left, dim=-1) @ functional.normalize(right, dim=-1).T
        return functional.cross_entropy(scores, torch.arange(len(user), device=scores.device))


class Gan(nn.Module):
    """A generator from noise, and a discriminator that sees its images and real ones (Radford 2016)."""

    def __init__(self, noise: int = 12) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(noise, 32, 4),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 3, 4, stride=2, padding=1),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(3, 16, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(16, 32, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(32 * 16, 1),
        )

    def forward(self, noise: Tensor, real: Tensor) -> Tensor:
        made = self.generator(noise[:, :, None, None])
        return functional.softplus(self.discriminator(made)) + functional.softplus(-self.discriminator(real))


class DitBlock(nn.Module):
    """Attention and an MLP whose norms are shifted and scaled by what is asked for (Peebles 2023)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.adaln = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaln(condition)[:, None].chunk(6, dim=-1)
        batch, length, width = x.shape
        normed = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(normed).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + gate1 * self.proj(seen)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class Dit(nn.Module):
    def __init__(self, size: int = 16, patch: int = 2, width: int = 32, heads: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.x_embedder = nn.Conv2d(4, width, patch, stride=patch)
        self.pos_embed = nn.Parameter(torch.zeros(1, (size // patch) ** 2, width))
        self.t_embedder = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.y_embedder = nn.Embedding(11, width)
        self.blocks = nn.ModuleList(DitBlock(width, heads) for _ in range(depth))
        self.final_norm = nn.LayerNorm(width, elementwise_affine=False)
        self.final = nn.Linear(width, patch * patch * 8)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        steps = torch.exp(-math.log(10000) * torch.arange(32, device=x.device) / 32)
        waves = t[:, None].float() * steps
        condition = self.t_embedder(torch.cat([waves.cos(), waves.sin()], dim=-1)) + self.y_embedder(y)
        x = self.x_embedder(x).flatten(2).transpose(1, 2) + self.pos_embed
        for block in self.blocks:
            x = block(x, condition)
        return self.final(self.final_norm(x))


class GraphLayer(nn.Module):
    """Attention between nodes with a bias for each edge, and a sum over neighbours by the adjacency."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.neighbours = nn.Linear(width, width)
        self.edge_bias = nn.Linear(3, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, edges: Tensor, adjacency: Tensor) -> Tensor:
        batch, nodes, width = x.shape
        normed = self.norm(x)
        q, k, v = (each(normed).view(batch, nodes, self.heads, -1).transpose(1, 2) for each in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + self.edge_bias(edges).permute(0, 3, 1, 2)
        seen = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, nodes, width)
        x = x + self.o(seen) + adjacency @ self.neighbours(normed)
        return x + self.mlp(self.norm2(x))


class GraphTransformer(nn.Module):
    def __init__(self, width: int = 24, depth: int = 3) -> None:
        super().__init__()
        self.atoms = nn.Embedding(20, width)
        self.layers = nn.ModuleList(GraphLayer(width, 3) for _ in range(depth))
        self.readout = nn.Linear(width, 2)

    def forward(self, atoms: Tensor, edges: Tensor, adjacency: Tensor) -> Tensor:
        x = self.atoms(atoms)
        for layer in self.layers:
            x = layer(x, edges, adjacency)
        return self.readout(x.mean(dim=1))


class FtTransformer(nn.Module):
    """Every column of a table is a token (Gorishniy 2021)."""

    def __init__(self, numbers: int = 6, kinds: tuple[int, ...] = (4, 9, 3), width: int = 16) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(numbers, width))
        self.bias = nn.Parameter(torch.randn(numbers, width))
        self.kinds = nn.ModuleList(nn.Embedding(count, width) for count in kinds)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 40, batch_first=True, norm_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        tokens = [numbers[:, :, None] * self.weight + self.bias]
        tokens += [table(kinds[:, column : column + 1]) for column, table in enumerate(self.kinds)]
        x = torch.cat([self.cls.expand(len(numbers), -1, -1), *tokens], dim=1)
        return self.head(self.encoder(x)[:, 0])


class Speech(nn.Module):
    """Convolutions over the sound, a recurrent net both ways, and letters for every frame."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(1, width, 11, stride=5), nn.ReLU(), nn.Conv1d(width, width, 5, stride=2, groups=4), nn.ReLU()
        )
        self.recurrent = nn.LSTM(width, 12, num_layers=2, batch_first=True, bidirectional=True)
        self.letters = nn.Linear(24, 29)

    def forward(self, sound: Tensor) -> Tensor:
        found, _ = self.recurrent(self.front(sound).transpose(1, 2))
        return self.letters(found)


class Autoencoder(nn.Module):
    """Down to a few numbers with their spread, and back (Kingma 2014)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(50, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.mean, self.spread = nn.Linear(16, 4), nn.Linear(16, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 50))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.encoder(x)
        mean, spread = self.mean(hidden), self.spread(hidden)
        made = self.decoder(mean + torch.randn_like(spread) * (spread / 2).exp())
        return functional.mse_loss(made, x)


def _ids(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape)


MODULES: dict[str, Case] = {
    "resnet-50": Case(
        resnet50,
        lambda: {"pixel_values": torch.rand(2, 3, 64, 64), "labels": _ids(2, 2)},
        (
            "embed",
            "stage1.0",
            "stage1.1-2",
            "stage2.0",
            "stage2.1-3",
            "stage3.0",
            "stage3.1-5",
            "stage4.0",
            "stage4.1-2",
            "head",
        ),
    ),
    "u-net": Case(
        UNet,
        lambda: torch.rand(2, 3, 32, 32),
        ("embed", "downs.0", "downs.1", "widen.0", "ups.0", "widen.1", "ups.1", "head"),
    ),
    "mlp-mixer": Case(Mixer, lambda: torch.rand(2, 3, 32, 32), ("embed", "blocks.0-3", "head")),
    "two-tower": Case(
        TwoTower,
        lambda: (_ids(1000, 4), torch.rand(4, 7), _ids(500, 4), torch.rand(4, 3)),
        ("users", "user_tower", "items", "item_tower"),
    ),
    "gan": Case(Gan, lambda: (torch.rand(4, 12), torch.rand(4, 3, 16, 16)), ("generator", "discriminator")),
    "diffusion-transformer": Case(
        Dit,
        lambda: (torch.rand(2, 4, 16, 16), _ids(1000, 2), _ids(10, 2)),
        ("t_embedder", "embed", "blocks.0-2", "head"),
    ),
    "graph-transformer": Case(
        GraphTransformer,
        lambda: (_ids(20, 2, 14), torch.rand(2, 14, 14, 3), torch.rand(2, 14, 14)),
        ("embed", "layers.0-2", "head"),
        length=14,
    ),
    "tabular-transformer": Case(
        FtTransformer, lambda: (torch.rand(5, 6), _ids(3, 5, 3)), ("embed", "layers.0-2", "head")
    ),
    "speech-lstm": Case(
        Speech, lambda: torch.rand(2, 1, 200), ("front", "recurrent", "letters"), surplus=4 * 2 * 12 * 48
    ),
    "autoencoder": Case(Autoencoder, lambda: torch.rand(8, 50), ("encoder", "mean", "spread", "decoder")),
}
