"""Engines: how many sets are ablated, or paths cut, on the same examples."""
