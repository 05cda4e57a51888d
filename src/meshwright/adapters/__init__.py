"""A plan in the training script that somebody has: `trainer` for transformers' Trainer, `fabric` for Lightning Fabric.

Nothing here is imported by the rest of the package: a script imports the one that it uses.
"""
