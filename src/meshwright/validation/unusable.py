"""Rows that cannot be predicted, with the reason."""

from meshwright.errors import MeshwrightError


class Unusable(MeshwrightError):
    """A row lacks what a simulation needs, or asks for what cannot be said in a plan; the message is the reason."""
