"""Checkpoint surgery: AttnRes started from a trained PreNorm checkpoint, and a short adaptation of both."""
