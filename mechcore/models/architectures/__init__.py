"""Differences between model families, which are looked up by ``config.model_type``."""
