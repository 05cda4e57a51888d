"""Small untouched models that are no plain decoders, with what they are fed and how their loss is taken."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import transformers
from torch import Generator, Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from tests.parity.harness import Case

CLASSES, PIXELS, MELS = 10, 16, 8
TARGETS = 7
"""Positions of what a decoder of another stream puts out."""
_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
Batch = dict[str, Tensor]


class Family(NamedTuple):
    """How to build one, feed it, and take its loss."""

    build: Callable[["Case"], nn.Module]
    feed: Callable[["Case", Generator], Batch]
    loss: str
    lengths: Callable[["Case"], Any] = lambda case: case.length
    """The recipe's `sequence`."""


def _bert_fields(case: "Case") -> dict[str, Any]:
    fields = {**_SIZES, "vocab_size": case.vocabulary, "max_position_embeddings": case.length}
    dropped = {"hidden_dropout_prob": case.dropout, "attention_probs_dropout_prob": case.attention_dropout}
    return {**fields, **dropped, "tie_word_embeddings": case.tied}


def _bert(case: "Case") -> nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(**_bert_fields(case)))


def _bert_classes(case: "Case") -> nn.Module:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**_bert_fields(case), num_labels=CLASSES))


def _vit(case: "Case") -> nn.Module:
    fields = {**_SIZES, "image_size": PIXELS, "patch_size": 4, "num_labels": CLASSES}
    dropped = {"hidden_dropout_prob": case.dropout, "attention_probs_dropout_prob": case.attention_dropout}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**fields, **dropped))


def _t5(case: "Case") -> nn.Module:
    fields = {"vocab_size": case.vocabulary, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    fields |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 8, "dropout_rate": case.dropout}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**fields, decoder_start_token_id=0))


def _whisper(case: "Case") -> nn.Module:
    sides = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}
    fields = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sides.items()}
    fields |= {"max_source_positions": case.length, "max_target_positions": TARGETS, "num_mel_bins": MELS}
    fields |= {"vocab_size": case.vocabulary, "d_model": 32, "decoder_start_token_id": 1}
    dropped = {"dropout": case.dropout, "attention_dropout": case.attention_dropout}
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    return transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**fields, **dropped, **special))


class _Basic(nn.Module):
    """A residual block of two convolutions (He 2016, figure 5, left)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.short: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(out + self.short(x))


class OwnResNet(nn.Module):
    """A user's own, in plain PyTorch: images to a value for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.blocks = nn.ModuleList([_Basic(8, 8, 1), _Basic(8, 16, 2), _Basic(16, 16, 1)])
        self.pool, self.classes = nn.AdaptiveAvgPool2d(1), nn.Linear(16, CLASSES)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.stem(pixel_values)
        for block in self.blocks:
            x = block(x)
        return self.classes(self.pool(x).flatten(1))


def _resnet(case: "Case") -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic", num_labels=CLASSES
    )
    return transformers.ResNetForImageClassification(config)


def _tokens(case: "Case", generator: Generator, length: int) -> Tensor:
    return torch.randint(1, case.vocabulary, (case.samples, length), generator=generator)


def _dropped(case: "Case", generator: Generator, labels: Tensor, share: float) -> Tensor:
    """Some labels, unevenly over the samples, do not count."""
    chance = torch.linspace(0.1, share, case.samples)[:, None]
    return labels.masked_fill(torch.rand(labels.shape, generator=generator) < chance, -100)


def _masked(case: "Case", generator: Generator) -> Batch:
    ids = _tokens(case, generator, case.length)
    batch = {"input_ids": ids, "labels": _dropped(case, generator, ids, 0.9)}
    if case.padded:
        real = torch.arange(case.length) < case.length - torch.arange(case.samples)[:, None]
        batch = {**batch, "labels": batch["labels"].masked_fill(~real, -100), "attention_mask": real.long()}
    return batch


def _classes(case: "Case", generator: Generator) -> Tensor:
    """A class for each sample; the second sample has none that counts."""
    labels = torch.randint(0, CLASSES, (case.samples,), generator=generator)
    return labels.index_fill(0, torch.tensor([1]), -100)


def _sentences(case: "Case", generator: Generator) -> Batch:
    return {**_masked(case, generator), "labels": _classes(case, generator)}


def _images(case: "Case", generator: Generator) -> Batch:
    pixels = torch.randn(case.samples, 3, PIXELS, PIXELS, generator=generator, dtype=torch.float64)
    return {"pixel_values": pixels, "labels": _classes(case, generator)}


def _pairs(case: "Case", generator: Generator) -> Batch:
    """Sentences, and shorter ones that they become."""
    batch = _masked(case, generator)
    return {**batch, "labels": _dropped(case, generator, _tokens(case, generator, TARGETS), 0.9)}


def _sounds(case: "Case", generator: Generator) -> Batch:
    sounds = torch.randn(case.samples, MELS, 2 * case.length, generator=generator, dtype=torch.float64)
    labels = _dropped(case, generator, _tokens(case, generator, TARGETS), 0.9)
    return {"input_features": sounds, "labels": labels}


FAMILIES: dict[str, Family] = {
    "t5": Family(_t5, _pairs, "seq2seq", lambda case: {"source": case.length, "target": TARGETS}),
    "whisper": Family(_whisper, _sounds, "seq2seq", lambda _: TARGETS),
    "bert": Family(_bert, _masked, "masked_lm"),
    "BertForSequenceClassification": Family(_bert_classes, _sentences, "classification"),
    "vit": Family(_vit, _images, "classification"),
    "ResNetForImageClassification": Family(_resnet, _images, "classification"),
    "OwnResNet": Family(lambda _: OwnResNet(), _images, "classification"),
}
"""By the name that a ModelSpec has for them."""

TRACED: dict[str, Any] = {
    "BertForSequenceClassification": {"input_ids": torch.zeros((2, 12), dtype=torch.long)},
    "ResNetForImageClassification": {"pixel_values": torch.zeros((2, 3, PIXELS, PIXELS))},
    "OwnResNet": torch.zeros((2, 3, PIXELS, PIXELS)),
}
"""Classes that no configuration describes, or another one → what they are traced with."""

_BERT = {"bert.encoder.layer.{}": None}
CALLS: dict[str, dict[str, int | None]] = {
    "bert": _BERT,
    "BertForSequenceClassification": _BERT,
    "vit": {"vit.layers.{}": None},
    "t5": {"encoder.block.{}": 2, "decoder.block.{}": 2},
    "whisper": {"": 1, "model.encoder.layers.{}": 2, "model.decoder.layers.{}": 2},
}
"""As `models.CALLS_DROPOUT`, of these."""
KEPT = ("bert", "BertForSequenceClassification", "t5")
"""Those of which only attention calls dropout: modules of it run once."""
