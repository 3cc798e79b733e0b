"""Metrics of a run and what people see of them: progress, status, alerts, W&B, report."""
