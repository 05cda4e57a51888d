"""What a model learns to do: rows become the samples of a task."""
