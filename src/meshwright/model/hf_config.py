"""A Hugging Face `config.json` → ModelSpec, without importing transformers."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from meshwright.document import read_text
from meshwright.errors import DocumentError, did_you_mean
from meshwright.explain import explain, shown
from meshwright.model import families
from meshwright.model.families.config import Config
from meshwright.model.spec import ModelSpec

FAMILIES: dict[str, str] = {
    "bert": "bert:bert",
    "bloom": "bloom:bloom",
    "clip": "clip:clip",
    "deepseek_v2": "deepseek:deepseek_v2",
    "deepseek_v3": "deepseek:deepseek_v3",
    "distilbert": "bert:distilbert",
    "falcon": "falcon:falcon",
    "falcon_mamba": "mamba:falcon_mamba",
    "gemma": "gemma:gemma",
    "gemma2": "gemma:gemma2",
    "gemma3_text": "gemma:gemma3_text",
    "gpt2": "gpt2:gpt2",
    "gpt_neox": "gpt_neox:gpt_neox",
    "gpt_oss": "gpt_oss:gpt_oss",
    "gptj": "gptj:gptj",
    "granitemoe": "mixtral:granitemoe",
    "jamba": "jamba:jamba",
    "kimi_k2": "deepseek:deepseek_v3",
    "llama": "llama:llama",
    "llava": "llava:llava",
    "mamba": "mamba:mamba",
    "mamba2": "mamba:mamba2",
    "megatron-gpt": "megatron_gpt:megatron_gpt",
    "mistral": "mistral:mistral",
    "mixtral": "mixtral:mixtral",
    "mpt": "mpt:mpt",
    "olmo2": "olmo2:olmo2",
    "olmoe": "mixtral:olmoe",
    "opt": "opt:opt",
    "phi": "phi:phi",
    "phi3": "phi:phi3",
    "phimoe": "mixtral:phimoe",
    "qwen2": "qwen:qwen2",
    "qwen2_moe": "qwen_moe:qwen2_moe",
    "qwen2_vl": "qwen2_vl:qwen2_vl",
    "qwen3": "qwen:qwen3",
    "qwen3_moe": "qwen_moe:qwen3_moe",
    "roberta": "bert:roberta",
    "swin": "swin:swin",
    "t5": "t5:t5",
    "vit": "vit:vit",
    "whisper": "whisper:whisper",
    "xlm-roberta": "bert:xlm_roberta",
}
"""The value of `model_type` → how to read the rest: a module of `families` and its function, imported when wanted."""


def from_config(config: Any, name: str = "", source: str = "config") -> ModelSpec:
    """A `config.json` as a dictionary → ModelSpec. Raises DocumentError where a field is missing or the family is
    unknown.
    """
    if not isinstance(config, dict):
        raise DocumentError(f"{source}: a configuration is a mapping with a 'model_type'")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        said = f"{shown(kind)} is no family that is known" if kind is not None else "required key is missing"
        raise DocumentError(f"{source}: model_type: {said}; {did_you_mean(str(kind), FAMILIES)}")
    name = name or str(config.get("_name_or_path") or kind)
    try:  # JSON can hold halves of characters, YAML cannot
        return _reader(kind)(Config(config, source), name.encode(errors="replace").decode())
    except ValidationError as error:  # sizes that do not go together
        raise DocumentError(explain(error, source)) from None


def _reader(kind: str) -> Callable[[Config, str], ModelSpec]:
    module, function = FAMILIES[kind].split(":")
    found: Callable[[Config, str], ModelSpec] = getattr(import_module(f"{families.__name__}.{module}"), function)
    return found


def read_config(path: str | Path, name: str = "") -> ModelSpec:
    """A `config.json`, or the folder that holds one → ModelSpec."""
    file = _file_in(path)
    return from_config(config_of(path), name or file.resolve().parent.name, str(file))


def config_of(path: str | Path) -> Any:
    """What a `config.json`, or that of a folder, says. Raises DocumentError."""
    file = _file_in(path)
    try:
        return json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DocumentError(f"{file}{line}: not JSON: {getattr(error, 'msg', error)}") from None


def _file_in(path: str | Path) -> Path:
    return Path(path) / "config.json" if Path(path).is_dir() else Path(path)
