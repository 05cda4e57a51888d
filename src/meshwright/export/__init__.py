"""Handing plans over to other systems, and taking in what people run there today."""
