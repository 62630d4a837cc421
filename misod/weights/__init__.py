"""Model files: where they are, what they must hold, how they are made."""
