"""Owns the language of filters: its text, its meaning, and functions that apply it to many bodies at once.

Must never know a topic's configuration, a subscription or a peer: it is given texts, types and bodies.
"""
