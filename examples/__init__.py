"""Example programs for Tickertape."""
