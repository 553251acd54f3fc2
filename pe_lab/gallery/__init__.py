"""A page for each positional encoding: its definition, its source, its known failures and what it is equal to."""
