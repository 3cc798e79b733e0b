"""Trajectories on disk: journal records, sealed segments, queries."""
