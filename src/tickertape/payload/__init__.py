"""Owns what a body is, by message type: its fields, its check, and the selection of its fields.

Must never know a topic, a filter's language or a peer: it is given bodies and paths.
"""
