"""Showing: tables and plain text."""
