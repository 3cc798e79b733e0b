"""How good a policy is on held-out tasks, with what certainty, and whether another one is better."""
