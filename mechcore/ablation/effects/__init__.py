"""The effects of ablating sets of components, and what they are evidence for."""
