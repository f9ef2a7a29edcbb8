"""Owns what the server tells about itself over HTTP; must never change anything in it."""
