"""What vision models read of images: sizes, patches, labels."""

from meshwright.explain import shown
from meshwright.model.families.config import MAX_SIZE, Config

MAX_SIDE = 10**5
"""Pixels of an image's side."""


def pair(config: Config, name: str) -> tuple[int, int]:
    """A size that stands for height and width alike, or both of them. Raises DocumentError."""
    value = config.fields.get(name)
    if not isinstance(value, list | tuple):
        return (config.size(name, limit=MAX_SIDE),) * 2
    if len(value) != 2:
        raise config.error(name, f"must be a size, or a height and a width (got {shown(value)})")
    height, width = (Config({name: side}, config.source).size(name, limit=MAX_SIDE) for side in value)
    return height, width


def patches(config: Config, *, padded: bool = False) -> tuple[int, int]:
    """Rows and columns of patches of an image; `padded`: those at the edges may reach over it. Raises DocumentError
    where no patch fits.
    """
    (height, width), (tall, wide) = pair(config, "image_size"), pair(config, "patch_size")
    if not padded and (height < tall or width < wide):
        raise config.error("patch_size", f"a patch of {tall} x {wide} is larger than the image of {height} x {width}")
    return (-(-height // tall), -(-width // wide)) if padded else (height // tall, width // wide)


def labels(config: Config) -> int:
    """Classes of a classifier: `num_labels`, or as many as `id2label` names; two where neither is there. Raises
    DocumentError where they contradict.
    """
    names, count = config.inner("id2label").fields, config.optional_size("num_labels")
    if names and count not in (None, len(names)):
        raise config.error("num_labels", f"{count} contradicts id2label, which names {len(names)}")
    return count or len(names) or 2


def mlp_width(config: Config, width: int) -> int:
    """Inner width of an MLP, `mlp_ratio` times its outer one. Raises DocumentError."""
    ratio = config.fields.get("mlp_ratio")
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 1 <= ratio * width <= MAX_SIZE:
        raise config.error("mlp_ratio", f"must be a number over 0 (got {shown(ratio)})")
    return int(ratio * width)
