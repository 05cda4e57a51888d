"""Hand-written torch programs, one for each role and state of a plan: what they move is what `cost.volumes` says."""
