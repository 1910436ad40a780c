"""What differs between families of models: one file each, found by ``config.model_type``."""
