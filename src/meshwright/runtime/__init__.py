"""Doing: a plan applied to a module, over many processes."""
