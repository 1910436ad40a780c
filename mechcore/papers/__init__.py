"""Studies of published papers, each a plug-in: its world, steps, decision rules and sections."""
