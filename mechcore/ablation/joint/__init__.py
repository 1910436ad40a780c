"""What sets of components do beyond their members: interactions, dividends, searches."""
