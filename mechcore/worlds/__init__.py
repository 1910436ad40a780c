"""The embedded models and the tiny world they were trained on."""
