"""Choosing: the fastest plan of a space, with a proof of how far from the best it can be."""
