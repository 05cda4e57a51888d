"""LLaVA (transformers.models.llava): a vision tower of CLIP's or SigLIP's kind, two matrices, a language model."""

from collections.abc import Callable, Mapping

from meshwright.errors import did_you_mean
from meshwright.explain import shown
from meshwright.model.families.clip import TOWERS, VisionTower, vision_stacks
from meshwright.model.families.config import Config
from meshwright.model.families.encoders import single
from meshwright.model.families.llama import llama
from meshwright.model.families.mistral import mistral
from meshwright.model.families.nested import nested
from meshwright.model.families.qwen import qwen2
from meshwright.model.operators import Activation, Linear, Norm
from meshwright.model.spec import LayerStack, ModelSpec, Stream

LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
"""Of transformers' LlamaConfig, which LLaVA's configurations lean on."""
_VISION: Mapping[str, object] = {
    "model_type": "clip_vision_model",
    "intermediate_size": 4096,
    "hidden_size": 1024,
    "patch_size": 14,
    "image_size": 336,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
"""The tower where the configuration names none (transformers' LlavaConfig)."""
_TEXTS: Mapping[str, Callable[[Config, str], ModelSpec]] = {"llama": llama, "mistral": mistral, "qwen2": qwen2}
_AT = "model.vision_tower"


def llava(config: Config, name: str) -> ModelSpec:
    """Images go through the tower, of which usually the layer before the last is taken; patches without the class token
    then take the place of image tokens. The recipe says how many positions of images (`patches`, with a class token
    each; `merged`, without) and how many `tokens`, those of the images among them, a sample has.
    """
    config = config.completed({"vision_feature_layer": -2, "projector_hidden_act": "gelu"})
    vision, tower = _tower(config)
    text = config.inner("text_config")
    tied = config.flag("tie_word_embeddings", False) or text.flag("tie_word_embeddings", False)
    text = Config(text.fields | {"tie_word_embeddings": tied}, text.source)
    kind = text.word("model_type", "llama")
    if kind not in _TEXTS:
        raise text.error("model_type", f"{shown(kind)} is not known; {did_you_mean(kind, _TEXTS)}")
    language = _TEXTS[kind](text.completed(LLAMA) if kind == "llama" else text, name)
    stacks, shared, ties = nested(language, "model.language_model", "projector")
    last = vision.layers() - 1
    return ModelSpec(
        name=name,
        family="llava",
        source=config.source,
        streams={"patches": Stream(), "merged": Stream(), "tokens": Stream()},
        stacks=(
            *vision_stacks(vision, tower, _AT, seen="merged"),
            single(
                "vision_norm",
                "norm",
                [Norm(path=f"{_AT}.post_layernorm", kind="layer", width=vision.size("hidden_size"), bias=True)],
                modules=(f"{_AT}.post_layernorm",),
                output=vision.size("hidden_size"),
                reads=(f"vision.{last}",),
                stream="patches",
            ),
            _projector(config, vision, stacks[0].output),
            *stacks,
        ),
        shared=shared,
        ties=ties,
    )


def _tower(config: Config) -> tuple[Config, VisionTower]:
    """The tower's own configuration, and its kind."""
    vision = config.inner("vision_config")
    if not vision.fields:
        vision = Config(dict(_VISION), vision.source)
    kind = vision.word("model_type", "clip_vision_model")
    if kind not in TOWERS:
        raise vision.error("model_type", f"{shown(kind)} is not known; {did_you_mean(kind, TOWERS)}")
    tower = TOWERS[kind]
    strategy = "default" if tower.class_token else "full"
    config.only("vision_feature_select_strategy", strategy, default="default")
    if not tower.class_token:
        vision.only("vision_use_head", False, default=True)
    return vision.completed(tower.defaults), tower


def _projector(config: Config, vision: Config, hidden: int) -> LayerStack:
    at, bias = "model.multi_modal_projector", config.flag("multimodal_projector_bias", True)
    reads = _taken(config, vision.layers())
    return single(
        "projector",
        "mlp",
        [
            Linear(
                path=f"{at}.linear_1",
                inputs=len(reads) * vision.size("hidden_size"),
                outputs=hidden,
                bias=bias,
                split="column",
            ),
            Activation(path=f"{at}.act", function=config.word("projector_hidden_act", "gelu"), width=hidden),
            Linear(path=f"{at}.linear_2", inputs=hidden, outputs=hidden, bias=bias, split="row"),
        ],
        modules=(at,),
        output=hidden,
        reads=reads,
        stream="merged",
    )


def _taken(config: Config, layers: int) -> tuple[str, ...]:
    """The layers of the tower whose output is taken: counted from the embedding, or negative from the last."""
    said = config.fields["vision_feature_layer"]
    found = []
    for index in said if isinstance(said, list | tuple) else [said]:
        if isinstance(index, bool) or not isinstance(index, int) or not -layers - 1 <= index <= layers:
            limit = f"whole numbers from {-layers - 1} to {layers}"
            raise config.error("vision_feature_layer", f"must be one of, or a list of, {limit} (got {shown(said)})")
        place = index % (layers + 1)
        found.append(f"vision.{place - 1}" if place else "vision_embed")
    if not found or len(set(found)) != len(found):
        raise config.error("vision_feature_layer", f"names no layer, or one twice (got {shown(said)})")
    return tuple(found)
