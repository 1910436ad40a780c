"""Effects of sets of components beyond their members: interactions, dividends, searches."""
