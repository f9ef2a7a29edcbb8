"""Owns what server, client and command line share of TLS and tokens.

Must never know the protocol, a connection or a command: it turns bytes into cipher text and back, and says
what a certificate, a key or a token is.
"""
