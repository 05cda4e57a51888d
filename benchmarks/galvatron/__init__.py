"""Galvatron's search on its own cost tables: its dynamic programme, its formula, and the proofs beside them."""
