"""Repairs of a classifier that fails out of domain, side by side and held out by kind."""
