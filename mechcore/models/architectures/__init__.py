"""What differs between families of models, which are found by ``config.model_type``."""
