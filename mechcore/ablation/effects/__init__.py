"""What ablating sets of components does, and what that is evidence for."""
