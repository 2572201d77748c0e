"""Reads run records and decides what they show. Imports nothing that trains."""
