"""The six experiments of a study of extractive structures, and their base."""
