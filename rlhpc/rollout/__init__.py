"""Rollouts: policies drive sandboxes, round by round; every round is journaled, every group sealed."""
