"""Eagle3: one decoder layer that drafts token by token from the target's features and its own output."""
