"""Which layers see a window of positions and which see all, as `layer_types` and its older forms say."""

from meshwright.model.families.config import Config

KINDS = ("full_attention", "sliding_attention")


def layer_windows(config: Config, usual: list[bool], window: int | None) -> list[int | None]:
    """The window of each layer; none where it sees all positions. `usual` says which layers slide where `layer_types`
    is left out. Raises DocumentError.
    """
    kinds = config.words("layer_types", len(usual), KINDS)
    slides = usual if kinds is None else [kind == "sliding_attention" for kind in kinds]
    if any(slides) and window is None:
        raise config.error("layer_types", "names layers with sliding windows, but the configuration gives no window")
    return [window if slide else None for slide in slides]
