"""Probes of a finished run: what its checkpoint answers beyond its validation loss. Imported by no other
part.
"""
