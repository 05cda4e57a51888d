"""Runs and machines turned into data."""
