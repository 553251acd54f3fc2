"""Results as tables: read from a ledger, a study or W&B, with statistics, figures and text."""
