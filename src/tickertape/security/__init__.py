"""TLS and access tokens, shared by server, client and command line.

The package does not know the protocol, connections or commands.
"""
