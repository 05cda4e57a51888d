"""The artefact: which device does what with which layer."""
