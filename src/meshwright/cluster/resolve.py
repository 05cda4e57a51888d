"""A cluster from its shorthand or file."""

from pathlib import Path

from meshwright.cluster.shorthand import parse_cluster
from meshwright.cluster.spec import Cluster


def resolve_cluster(what: str | Path | Cluster) -> Cluster:
    """A shorthand (`4x8xh100`, `cpu:4`), a file or a Cluster → Cluster. Raises UnknownNameError, DocumentError."""
    if isinstance(what, Cluster):
        return what
    text = str(what)
    return Cluster.read(text) if isinstance(what, Path) or _is_path(text) else parse_cluster(text)


def _is_path(text: str) -> bool:
    try:
        return text.endswith((".yaml", ".yml", ".json")) or Path(text).exists()
    except (OSError, ValueError):
        return False
