"""The quality gate: no task reaches a rollout before it was seen to be failable and solvable."""
