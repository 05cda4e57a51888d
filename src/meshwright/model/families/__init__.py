"""How each family of models reads its configuration: a file a family."""
