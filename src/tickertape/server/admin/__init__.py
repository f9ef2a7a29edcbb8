"""Monitoring of a server over HTTP; it changes nothing in the server."""
