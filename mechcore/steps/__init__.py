"""The main study: its settings, and every step of it from a checkpoint and data to tables."""
