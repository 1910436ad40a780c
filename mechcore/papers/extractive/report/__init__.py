"""The page of a study of extractive structures: sections and figures from its tables."""
