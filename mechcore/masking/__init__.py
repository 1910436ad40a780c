"""The one intervention, and the mean activations it fills in."""
