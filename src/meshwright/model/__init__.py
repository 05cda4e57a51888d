"""What is trained: layers, their parts and operators, without torch."""
