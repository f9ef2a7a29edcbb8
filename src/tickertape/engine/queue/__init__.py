"""Owns message queues: each one a fold of the log. Must never keep what the log does not have, but leases."""
