"""Predicted against published measurements, source by source; and the constants of calibrations, fitted to them."""
