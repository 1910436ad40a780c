"""The one intervention, and the mean activations that it uses as the fill."""
