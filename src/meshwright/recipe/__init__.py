"""What is asked for: everything that changes convergence, or is a wish."""
