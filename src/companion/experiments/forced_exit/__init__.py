"""Answer accuracy against think length, without and with forced exit."""
