"""A Hugging Face `config.json` → ModelSpec, without importing transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from meshwright.document import read_text
from meshwright.errors import DocumentError, did_you_mean
from meshwright.explain import explain, shown
from meshwright.model.families.bert import bert, distilbert, roberta, xlm_roberta
from meshwright.model.families.bloom import bloom
from meshwright.model.families.clip import clip
from meshwright.model.families.config import Config
from meshwright.model.families.deepseek import deepseek_v2, deepseek_v3
from meshwright.model.families.falcon import falcon
from meshwright.model.families.gemma import gemma, gemma2, gemma3_text
from meshwright.model.families.gpt2 import gpt2
from meshwright.model.families.gpt_neox import gpt_neox
from meshwright.model.families.gpt_oss import gpt_oss
from meshwright.model.families.gptj import gptj
from meshwright.model.families.jamba import jamba
from meshwright.model.families.llama import llama
from meshwright.model.families.llava import llava
from meshwright.model.families.mamba import falcon_mamba, mamba, mamba2
from meshwright.model.families.megatron_gpt import megatron_gpt
from meshwright.model.families.mistral import mistral
from meshwright.model.families.mixtral import granitemoe, mixtral, olmoe, phimoe
from meshwright.model.families.mpt import mpt
from meshwright.model.families.olmo2 import olmo2
from meshwright.model.families.opt import opt
from meshwright.model.families.phi import phi, phi3
from meshwright.model.families.qwen import qwen2, qwen3
from meshwright.model.families.qwen2_vl import qwen2_vl
from meshwright.model.families.qwen_moe import qwen2_moe, qwen3_moe
from meshwright.model.families.swin import swin
from meshwright.model.families.t5 import t5
from meshwright.model.families.vit import vit
from meshwright.model.families.whisper import whisper
from meshwright.model.spec import ModelSpec

FAMILIES: dict[str, Callable[[Config, str], ModelSpec]] = {
    "bert": bert,
    "bloom": bloom,
    "clip": clip,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "distilbert": distilbert,
    "falcon": falcon,
    "falcon_mamba": falcon_mamba,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3_text,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "gpt_oss": gpt_oss,
    "gptj": gptj,
    "granitemoe": granitemoe,
    "jamba": jamba,
    "kimi_k2": deepseek_v3,
    "llama": llama,
    "llava": llava,
    "mamba": mamba,
    "mamba2": mamba2,
    "megatron-gpt": megatron_gpt,
    "mistral": mistral,
    "mixtral": mixtral,
    "mpt": mpt,
    "olmo2": olmo2,
    "olmoe": olmoe,
    "opt": opt,
    "phi": phi,
    "phi3": phi3,
    "phimoe": phimoe,
    "qwen2": qwen2,
    "qwen2_moe": qwen2_moe,
    "qwen2_vl": qwen2_vl,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "roberta": roberta,
    "swin": swin,
    "t5": t5,
    "vit": vit,
    "whisper": whisper,
    "xlm-roberta": xlm_roberta,
}
"""The value of `model_type` → how to read the rest."""


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
        return FAMILIES[kind](Config(config, source), name.encode(errors="replace").decode())
    except ValidationError as error:  # sizes that do not go together
        raise DocumentError(explain(error, source)) from None


def read_config(path: str | Path, name: str = "") -> ModelSpec:
    """A `config.json`, or the folder that holds one → ModelSpec."""
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    try:
        config = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DocumentError(f"{file}{line}: not JSON: {getattr(error, 'msg', error)}") from None
    return from_config(config, name or file.resolve().parent.name, str(file))
