"""The main study: from its settings to its jobs, its results and its page."""
