"""The note's pre-registered Phase 1: accepted length inside and outside the think span, domain by domain."""
