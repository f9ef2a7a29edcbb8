"""Read-only monitoring of a server over HTTP."""
