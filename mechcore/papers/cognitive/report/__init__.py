"""The page of a study of the cognitive task: sections and figures from its tables."""
