"""The one exception a user can cause: it names the config key and what the key may be."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting cannot be used; its text is the single line the user sees (exit code 2).

    key: dotted config key as typed on the command line, e.g. ``arm.mixer.block_size``.
    value: what was given.  allowed: what the key may be, in words.
    """

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(f"{key}={value!r}: {allowed}")
        self.key, self.value, self.allowed = key, value, allowed

    def __reduce__(self) -> tuple[type, tuple[str, object, str]]:
        return type(self), (self.key, self.value, self.allowed)


class DataError(ValueError):
    """A file of ours is missing, damaged or foreign; its text names the file and the remedy (exit code 2)."""
