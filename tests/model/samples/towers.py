"""Encoders, encoder-decoders, vision, speech, and several towers."""

from typing import Any

import torch

from tests.model.samples.build import BATCH, LENGTH, Sample, tokens
from tests.model.samples.dense import LLAMA

SOURCE, TARGET = 20, 12

_BERT = {
    "model_type": "bert",
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
_ROBERTA = _BERT | {"model_type": "roberta", "type_vocab_size": 1}
_DISTILBERT = {
    "model_type": "distilbert",
    "vocab_size": 48,
    "dim": 32,
    "hidden_dim": 40,
    "n_layers": 3,
    "n_heads": 4,
    "max_position_embeddings": 32,
}
_T5 = {
    "model_type": "t5",
    "vocab_size": 48,
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 40,
    "num_layers": 3,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}


_VIT = {
    "model_type": "vit",
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 24,
    "patch_size": 8,
}
_SWIN = {
    "model_type": "swin",
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [2, 3, 1],
    "num_heads": [2, 2, 4],
    "window_size": 4,
}

_WHISPER = {
    "model_type": "whisper",
    "vocab_size": 48,
    "d_model": 32,
    "num_mel_bins": 10,
    "encoder_layers": 3,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 24,
    "max_source_positions": 15,
    "max_target_positions": 30,
    "decoder_start_token_id": 1,
    "pad_token_id": 0,
}

_CLIP_VISION = {
    "model_type": "clip_vision_model",
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "image_size": 24,
    "patch_size": 8,
}
_CLIP_TEXT = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 30,
}
_CLIP = {"model_type": "clip", "vision_config": _CLIP_VISION, "text_config": _CLIP_TEXT, "projection_dim": 20}
_TEXT = LLAMA | {"num_key_value_heads": 2}
_LLAVA = {"model_type": "llava", "vision_config": _CLIP_VISION, "text_config": _TEXT, "image_token_index": 40}
_LLAVA_SIGLIP = _LLAVA | {
    "vision_config": _CLIP_VISION | {"model_type": "siglip_vision_model", "vision_use_head": False},
    "text_config": _TEXT | {"model_type": "qwen2"},
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
}

_QWEN2_VL = {
    "model_type": "qwen2_vl",
    "vision_config": {"depth": 2, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 4},
    "text_config": {name: value for name, value in _TEXT.items() if name != "model_type"}
    | {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
    "image_token_id": 40,
    "video_token_id": 41,
    "vision_start_token_id": 42,
    "vision_end_token_id": 43,
}


def pairs(config: dict[str, Any]) -> dict[str, Any]:
    """Ids of a source and a target."""
    source, target = (tokens(config, length)["input_ids"] for length in (SOURCE, TARGET))
    return {"input_ids": source, "labels": target}


def images(config: dict[str, Any]) -> dict[str, Any]:
    """Images with a label each."""
    size = config["image_size"]
    height, width = size if isinstance(size, list) else (size, size)
    pixels = torch.rand(BATCH, config.get("num_channels", 3), height, width)
    return {"pixel_values": pixels, "labels": torch.randint(0, config.get("num_labels", 2), (BATCH,))}


def speech(config: dict[str, Any]) -> dict[str, Any]:
    """Frames of audio, and ids of text."""
    frames = torch.rand(BATCH, config["num_mel_bins"], 2 * config["max_source_positions"])
    return {"input_features": frames, "labels": tokens(config)["labels"]}


def captions(config: dict[str, Any]) -> dict[str, Any]:
    """An image and a text for each sample."""
    pixels = images(config["vision_config"])["pixel_values"]
    return {"pixel_values": pixels, "input_ids": tokens(config["text_config"])["input_ids"], "return_loss": True}


def conversation(config: dict[str, Any]) -> dict[str, Any]:
    """An image and a text whose first tokens stand for its patches, for each sample."""
    vision, image = config["vision_config"], config["image_token_index"]
    ids = torch.randint(1, image, (BATCH, LENGTH))
    ids[:, : (vision["image_size"] // vision["patch_size"]) ** 2] = image
    return {"pixel_values": images(vision)["pixel_values"], "input_ids": ids, "labels": ids}


GRID = (1, 4, 8)
"""Frames, rows and columns of patches of an image; the merger makes one position of four."""


def questions(config: dict[str, Any]) -> dict[str, Any]:
    """An image and a text about it for each sample, whose first tokens stand for the merged patches."""
    vision, image = config["vision_config"], config["image_token_id"]
    patches = GRID[1] * GRID[2]
    ids = torch.randint(1, image, (BATCH, LENGTH))
    ids[:, : patches // 4] = image
    pixels = vision.get("in_channels", 3) * vision.get("temporal_patch_size", 2) * vision["patch_size"] ** 2
    return {
        "pixel_values": torch.rand(BATCH * patches, pixels),
        "image_grid_thw": torch.tensor([GRID] * BATCH),
        "input_ids": ids,
        "mm_token_type_ids": (ids == image).int(),
        "labels": ids,
    }


def sentences(config: dict[str, Any]) -> dict[str, Any]:
    """Token ids, and a class for each sample."""
    return tokens(config) | {"labels": torch.zeros(BATCH, dtype=torch.long)}


def _masked(name: str, config: dict[str, Any]) -> Sample:
    return Sample(name, config, "AutoModelForMaskedLM")


def _classes(name: str, config: dict[str, Any]) -> Sample:
    named = {"architectures": ["BertForSequenceClassification"]}
    return Sample(name, config | named, "AutoModelForSequenceClassification", batch=sentences)


def _t5(name: str, config: dict[str, Any]) -> Sample:
    return Sample(name, config, "AutoModelForSeq2SeqLM", {"source": SOURCE, "target": TARGET}, pairs)


def _images(name: str, config: dict[str, Any]) -> Sample:
    return Sample(name, config, "AutoModelForImageClassification", batch=images)


def _speech(name: str, config: dict[str, Any]) -> Sample:
    return Sample(name, config, "AutoModelForSpeechSeq2Seq", batch=speech)


def _captions(name: str, config: dict[str, Any]) -> Sample:
    return Sample(name, config, "AutoModelForZeroShotImageClassification", batch=captions)


def _llava(name: str, config: dict[str, Any], patches: int = 10) -> Sample:
    lengths = {"patches": patches, "merged": 9}
    return Sample(name, config, "AutoModelForImageTextToText", lengths, conversation, fake=False)


def _qwen2_vl(name: str, config: dict[str, Any]) -> Sample:
    lengths = {"patches": GRID[1] * GRID[2], "merged": GRID[1] * GRID[2] // 4}
    return Sample(name, config, "AutoModelForImageTextToText", lengths, questions, fake=False)


TOWERS: tuple[Sample, ...] = (
    _masked("bert", _BERT),
    _masked("bert-untied", _BERT | {"tie_word_embeddings": False}),
    _masked("bert-many-types", _BERT | {"type_vocab_size": 5, "num_hidden_layers": 1}),
    _classes("bert-classes", _BERT | {"num_labels": 3}),
    _classes("bert-classes-dropped", _BERT | {"id2label": {"0": "a", "1": "b"}, "classifier_dropout": 0.3}),
    _masked("roberta", _ROBERTA),
    _masked("roberta-untied", _ROBERTA | {"tie_word_embeddings": False}),
    _masked("xlm-roberta", _ROBERTA | {"model_type": "xlm-roberta"}),
    _masked("distilbert", _DISTILBERT),
    _masked("distilbert-untied", _DISTILBERT | {"tie_word_embeddings": False}),
    _t5("t5", _T5),
    _t5("t5-gated", _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    _t5("t5-uneven", _T5 | {"num_decoder_layers": 1, "d_kv": 8, "relative_attention_num_buckets": 16}),
    _images("vit", _VIT),
    _images("vit-wide", _VIT | {"image_size": [16, 40], "patch_size": [8, 4], "num_labels": 5}),
    _images("vit-no-bias", _VIT | {"qkv_bias": False, "num_channels": 1, "image_size": 28}),
    _images("swin", _SWIN),
    _images("swin-wide", _SWIN | {"image_size": [32, 64], "num_labels": 7, "qkv_bias": False, "mlp_ratio": 2.5}),
    _images("swin-padded", _SWIN | {"image_size": 39, "window_size": 3, "drop_path_rate": 0.0}),
    _images("swin-positions", _SWIN | {"use_absolute_embeddings": True, "depths": [1, 1, 2]}),
    _speech("whisper", _WHISPER),
    _speech("whisper-untied", _WHISPER | {"tie_word_embeddings": False, "decoder_layers": 1}),
    _speech("whisper-dropout", _WHISPER | {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}),
    _captions("clip", _CLIP),
    _captions("clip-wide", _CLIP | {"vision_config": _CLIP_VISION | {"patch_size": 4, "num_channels": 1}}),
    _llava("llava", _LLAVA),
    _llava("llava-last", _LLAVA | {"vision_feature_layer": -1, "multimodal_projector_bias": False}),
    _llava("llava-many", _LLAVA | {"vision_feature_layer": [0, -2, 1], "tie_word_embeddings": True}),
    _llava("llava-siglip", _LLAVA_SIGLIP, 9),
    _qwen2_vl("qwen2-vl", _QWEN2_VL),
    _qwen2_vl("qwen2-vl-tied", _QWEN2_VL | {"tie_word_embeddings": True}),
    _qwen2_vl("qwen2-vl-flat", {**_QWEN2_VL, **_QWEN2_VL["text_config"], "text_config": None}),
)
